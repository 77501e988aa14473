"""JSONPath (RFC 9535) with a step for each node visited; its regular expressions (RFC 9485) run in RE2.

The library's parser makes the segments of a query, to which a meter is added here. A segment costs steps for every
node that reaches it and every element that it will visit, times the number of its selectors; a filter costs its
length for every element that it evaluates, and the size of what it compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

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

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.tools.json_weight import CHARS_PER_STEP, weigh
from toolhub_service.tools.step_budget import StepBudget

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
        compiled = _compile_iregexp(pattern)
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
        for found in self._inner.resolve(map(self._charge_node, nodes)):
            self._budget.spend()
            yield found

    def _charge_node(self, node: JSONPathNode) -> JSONPathNode:
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
def _compile_iregexp(pattern: str) -> re2._Regexp | None:
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
