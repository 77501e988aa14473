"""Selects from JSON by JMESPath or JSONPath, bounded in expression, work and result.

Neither library bounds its work: `[@,@]` repeated 20 times makes a million-element answer, `$..[?$..[?$..]]` visits n³
nodes, brackets nest until Python's stack ends. Here an expression has a length and a nesting limit, evaluation spends
steps, and the answer's serialized size is measured before it is returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import jmespath.exceptions
import jmespath.functions
import jmespath.parser
import jmespath.visitor
import re2
from iregexp_check import check
from jsonpath_rfc9535 import JSONPathEnvironment, JSONPathNode
from jsonpath_rfc9535.exceptions import JSONPathError, JSONPathRecursionError
from jsonpath_rfc9535.filter_expressions import ComparisonExpression, Expression, FilterContext, FilterExpression
from jsonpath_rfc9535.function_extensions import ExpressionType, FilterFunction
from jsonpath_rfc9535.node import JSONPathNodeList
from jsonpath_rfc9535.parse import Parser
from jsonpath_rfc9535.segments import JSONPathRecursiveDescentSegment, JSONPathSegment
from jsonpath_rfc9535.selectors import FilterSelector
from jsonpath_rfc9535.tokens import TokenStream

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.tools.step_budget import CHARS_PER_STEP, Language, QueryLimits, StepBudget, weigh

# JSONPath (RFC 9535) with a step for each node visited; its regular expressions (RFC 9485) run in RE2.
#
# The library's parser makes the segments of a query, to which a meter is added here. A segment costs steps for every
# node that reaches it and every element that it will visit, times the number of its selectors; a filter costs its
# length for every element that it evaluates, and the size of what it compares.

_PATTERN_CHARS_MAX = 1000
_PATTERN_MEMORY_BYTES = 1024 * 1024
# A filter's length approximates its number of parts.
_FILTER_CHARS_PER_STEP = 4


def select_jsonpath(document: Any, path: str, budget: StepBudget) -> list[Any]:
    """Return the values that the query finds, in document order. Raises ToolFailure INVALID_INPUT."""
    try:
        return [node.value for node in _MeteredEnvironment(budget).compile(path).finditer(document)]
    except JSONPathRecursionError:
        raise refuse(
            ErrorKind.INVALID_INPUT, "The document is nested too deeply for `..`: select a part first."
        ) from None
    except JSONPathError as error:
        position = max(error.token.index, 0) if error.token else 0
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"The path is not valid JSONPath (RFC 9535) at position {position}: {error.args[0]}. "
            "It starts with '$', such as $.store.book[?@.price < 10].title.",
            position=position,
        ) from None
    except (ValueError, ArithmeticError, IndexError) as error:
        raise refuse(
            ErrorKind.INVALID_INPUT,
            "The path is not valid JSONPath (RFC 9535): a number or an escape in it cannot be read.",
            reason=type(error).__name__,
        ) from None


class _Pattern(FilterFunction):
    """`match` and `search`: an I-Regexp in linear time. An invalid I-Regexp matches nothing (RFC 9535, 2.4.6)."""

    arg_types = [ExpressionType.VALUE, ExpressionType.VALUE]  # noqa: RUF012 - as the library declares it
    return_type = ExpressionType.LOGICAL

    def __init__(self, budget: StepBudget, *, whole: bool) -> None:
        self._budget = budget
        self._whole = whole

    def __call__(self, text: object, pattern: object) -> bool:
        if not isinstance(text, str) or not isinstance(pattern, str):
            return False
        if len(pattern) > _PATTERN_CHARS_MAX:
            raise refuse(ErrorKind.INVALID_INPUT, f"A pattern may have at most {_PATTERN_CHARS_MAX} characters.")
        self._budget.spend(len(text) // CHARS_PER_STEP)
        compiled = _compiled(pattern)
        return compiled is not None and (compiled.fullmatch(text) if self._whole else compiled.search(text)) is not None


class _Charged(Expression):
    """A part of a filter that costs steps whenever it is evaluated, for itself and for the values that it yields."""

    def __init__(self, inner: Expression, steps: int, budget: StepBudget) -> None:
        super().__init__(inner.token)
        self._inner = inner
        self._steps = steps
        self._budget = budget

    def evaluate(self, context: FilterContext) -> object:
        self._budget.spend(self._steps)
        value = self._inner.evaluate(context)
        for node in value if isinstance(value, JSONPathNodeList) else ():
            weigh(node.value, self._budget)
        return value


class _MeteredSegment(JSONPathSegment):
    """A segment that spends a step for every node and element on the way."""

    def __init__(self, inner: JSONPathSegment, budget: StepBudget) -> None:
        super().__init__(env=inner.env, token=inner.token, selectors=inner.selectors)
        self._inner = inner
        self._budget = budget

    def resolve(self, nodes: Iterable[JSONPathNode]) -> Iterator[JSONPathNode]:
        for found in self._inner.resolve(map(self._charged, nodes)):
            self._budget.spend()
            yield found

    def _charged(self, node: JSONPathNode) -> JSONPathNode:
        """Return the node after spending its steps: `..` visits all descendants, any other segment its children."""
        pending = [node.value]
        while pending:
            container = pending.pop()
            if not isinstance(container, list | dict):
                continue
            self._budget.spend(1 + len(container) * len(self.selectors))
            if isinstance(self, _MeteredDescent):
                pending += container.values() if isinstance(container, dict) else container
        return node


class _MeteredDescent(_MeteredSegment, JSONPathRecursiveDescentSegment):
    """The same for `..`, by which the library detects a query that may find many nodes."""


class _MeteredParser(Parser):
    """The library's parser, producing metered segments."""

    env: _MeteredEnvironment

    def parse_query(self, stream: TokenStream, *, in_filter: bool = False) -> Iterator[JSONPathSegment]:
        for segment in super().parse_query(stream, in_filter=in_filter):
            descends = isinstance(segment, JSONPathRecursiveDescentSegment)
            yield (_MeteredDescent if descends else _MeteredSegment)(segment, self.env.budget)

    def parse_infix_expression(self, stream: TokenStream, left: Expression) -> Expression:
        expression = super().parse_infix_expression(stream, left)
        if isinstance(expression, ComparisonExpression):
            expression.left = _Charged(expression.left, 1, self.env.budget)
            expression.right = _Charged(expression.right, 1, self.env.budget)
        return expression

    def parse_filter_selector(self, stream: TokenStream) -> FilterSelector:
        start = stream.current.index
        selector = super().parse_filter_selector(stream)
        parts = 1 + (stream.current.index - start) // _FILTER_CHARS_PER_STEP
        charged = _Charged(selector.expression, parts, self.env.budget)
        return FilterSelector(env=self.env, token=selector.token, expression=FilterExpression(charged.token, charged))


class _MeteredEnvironment(JSONPathEnvironment):
    """One query's environment; cheap to make, so each call has its own budget."""

    parser_class = _MeteredParser

    def __init__(self, budget: StepBudget) -> None:
        self.budget = budget
        super().__init__()

    def setup_function_extensions(self) -> None:
        super().setup_function_extensions()
        self.function_extensions["match"] = _Pattern(self.budget, whole=True)
        self.function_extensions["search"] = _Pattern(self.budget, whole=False)


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re2._Regexp | None:
    """Return an I-Regexp as RE2: the same syntax, but `.` is any character except line breaks. None when it is
    invalid."""
    if not check(pattern):
        return None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY_BYTES
    try:
        return re2.compile(_without_dots(pattern), options)
    except re2.error:
        return None


def _without_dots(pattern: str) -> str:
    """Return the pattern with each dot outside of classes replaced by its meaning in RFC 9485 (5.3)."""
    parts: list[str] = []
    escaped = in_class = False
    for char in pattern:
        plain = not escaped
        in_class = (in_class or char == "[") and char != "]" if plain else in_class
        parts.append(r"[^\n\r]" if plain and char == "." and not in_class else char)
        escaped = plain and char == "\\"
    return "".join(parts)


# JMESPath with a step for each node visited and for each element that a function or a comparison touches.

_JSON_NUMBER = re2.compile(r"-?(0|[1-9][0-9]{0,300})(\.[0-9]{1,300})?([eE][+-]?[0-9]{1,3})?")
# Longer expressions are parsed each time: caching their trees is not worth the memory.
_KEPT_CHARS = 256
# Functions whose work grows with the whole content of their arguments, not only with the number of elements.
_DEEP = frozenset({"to_string", "contains", "join"})


def select_jmespath(document: Any, path: str, budget: StepBudget) -> Any:
    """Return the value that the expression selects. Raises ToolFailure INVALID_INPUT."""
    try:
        tree = _parsed_short(path) if len(path) <= _KEPT_CHARS else _parsed(path)
        return _MeteredInterpreter(budget).visit(tree, document)
    except jmespath.exceptions.JMESPathError as error:
        raise _failure_of(error) from None
    except (ValueError, ArithmeticError) as error:
        raise refuse(
            ErrorKind.INVALID_INPUT,
            "The path cannot be computed: a slice with step 0, or a number that is too large.",
            reason=type(error).__name__,
        ) from None


def _parsed(path: str) -> Any:
    """Return the expression as a tree. The library's own cache keeps trees of any size, so it is emptied at once."""
    try:
        return jmespath.parser.Parser().parse(path).parsed
    finally:
        jmespath.parser.Parser.purge()


_parsed_short = lru_cache(maxsize=256)(_parsed)


class _MeteredFunctions(jmespath.functions.Functions):
    """JMESPath's functions, each of which spends steps for its arguments before it runs."""

    def __init__(self, budget: StepBudget) -> None:
        self._budget = budget

    def call_function(self, function_name: str, resolved_args: Iterable[Any]) -> Any:
        resolved_args = list(resolved_args)
        for argument in resolved_args:
            if function_name in _DEEP:
                weigh(argument, self._budget)
            elif isinstance(argument, list | dict):
                self._budget.spend(len(argument))
            elif isinstance(argument, str):
                self._budget.spend(len(argument) // CHARS_PER_STEP)
        return super().call_function(function_name, resolved_args)

    @jmespath.functions.signature({"types": []})
    def _func_to_number(self, arg: Any) -> int | float | None:
        """Accept JSON's numbers only: Python's own conversion also accepts `nan`, `1_000` and surrounding blanks."""
        if isinstance(arg, int | float) and not isinstance(arg, bool):
            return arg
        if not isinstance(arg, str) or (match := _JSON_NUMBER.fullmatch(arg)) is None:
            return None
        return float(arg) if match[2] or match[3] else int(arg)


class _MeteredInterpreter(jmespath.visitor.TreeInterpreter):
    """JMESPath's interpreter, which spends steps for each visit and for the bulk work of single visits."""

    def __init__(self, budget: StepBudget) -> None:
        super().__init__(jmespath.visitor.Options(custom_functions=_MeteredFunctions(budget)))
        self._budget = budget

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        self._budget.spend()
        return super().visit(node, *args, **kwargs)

    def visit_comparator(self, node: Any, value: Any) -> Any:
        left, right = (self.visit(child, value) for child in node["children"])
        weigh(left, self._budget)
        weigh(right, self._budget)
        settled: Any = dict(node, children=[{"type": "literal", "value": operand} for operand in (left, right)])
        return super().visit_comparator(settled, value)

    def visit_flatten(self, node: Any, value: Any) -> Any:
        merged = super().visit_flatten(node, value)
        self._budget.spend(len(merged or ()))
        return merged

    def visit_slice(self, node: Any, value: Any) -> Any:
        part = super().visit_slice(node, value)
        self._budget.spend(len(part or ()))
        return part


def _failure_of(error: jmespath.exceptions.JMESPathError) -> ToolFailure:
    if isinstance(error, jmespath.exceptions.ArityError):
        return refuse(
            ErrorKind.INVALID_INPUT, f"The path calls {error.function_name}() with the wrong number of arguments."
        )
    if isinstance(error, jmespath.exceptions.IncompleteExpressionError):
        position = error.lex_position
        return refuse(
            ErrorKind.INVALID_INPUT, "The path ends too early: a name or a bracket is missing.", position=position
        )
    if isinstance(error, jmespath.exceptions.ParseError):
        return refuse(
            ErrorKind.INVALID_INPUT,
            f"The path is not valid JMESPath at position {error.lex_position}: unexpected "
            f'{str(error.token_value)[:40]!r}. Quote keys with special characters: "my-key".',
            position=error.lex_position,
        )
    if isinstance(error, jmespath.exceptions.JMESPathTypeError):
        return refuse(
            ErrorKind.INVALID_INPUT,
            f"{error.function_name}() was given {error.actual_type}; it takes {', '.join(error.expected_types)}.",
            function=error.function_name,
        )
    if isinstance(error, jmespath.exceptions.UnknownFunctionError):
        known = sorted(jmespath.functions.Functions.FUNCTION_TABLE)
        return refuse(
            ErrorKind.INVALID_INPUT,
            "The path calls an unknown function; JMESPath does not have it.",
            functions=list(known),
        )
    return refuse(ErrorKind.INVALID_INPUT, "The path is empty or not valid JMESPath.")


_ADVICE = "Select from a smaller part of the document, or write a narrower path."
_TOKENS = re2.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`\\]|\\.)*`|[(\[{]|[)\]}]")


def select(document: Any, path: str, language: Language, limits: QueryLimits) -> Any:
    """Return JMESPath's value (null for nothing), or the list of values that JSONPath finds.

    Raises ToolFailure INVALID_INPUT: a syntax error with its position, or the limit that was exceeded.
    """
    _check_expression(path, limits)
    budget = StepBudget(limits.steps, _ADVICE)
    try:
        found = (select_jmespath if language == "jmespath" else select_jsonpath)(document, path, budget)
    except RecursionError:
        raise refuse(ErrorKind.INVALID_INPUT, "The path is nested too deeply: split it into several calls.") from None
    too_large = f"The answer is too large. {_ADVICE}"
    nodes = StepBudget(limits.result_nodes, too_large)
    weigh(found, StepBudget(limits.result_weight, too_large), chars_per_step=1, nodes=nodes)
    return found


def _check_expression(path: str, limits: QueryLimits) -> None:
    if len(path) > limits.expression_chars:
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"The path has {len(path)} characters; at most {limits.expression_chars} are read.",
            max_chars=limits.expression_chars,
        )
    depth = deepest = 0
    for token in _TOKENS.findall(path):
        depth += (token in ("(", "[", "{")) - (token in (")", "]", "}"))
        deepest = max(deepest, depth)
    if deepest > limits.nesting:
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"The path nests brackets {deepest} deep; at most {limits.nesting} are read. Split it into several calls.",
            max_nesting=limits.nesting,
        )
