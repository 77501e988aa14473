"""JMESPath with a step for each node visited and for each element that a function or a comparison touches."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import jmespath.exceptions
import jmespath.functions
import jmespath.parser
import jmespath.visitor
import re2

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.tools.json_weight import CHARS_PER_STEP, weigh
from toolhub_service.tools.step_budget import StepBudget

_JSON_NUMBER = re2.compile(r"-?(0|[1-9][0-9]{0,300})(\.[0-9]{1,300})?([eE][+-]?[0-9]{1,3})?")
# Longer expressions are parsed each time: caching their trees is not worth the memory.
_KEPT_CHARS = 256
# Functions whose work grows with the whole content of their arguments, not only with the number of elements.
_DEEP = frozenset({"to_string", "contains", "join"})


def select_jmespath(document: Any, path: str, budget: StepBudget) -> Any:
    """Return the value that the expression selects. Raises ToolFailure INVALID_INPUT."""
    try:
        tree = _parsed_short(path) if len(path) <= _KEPT_CHARS else _parse_expression(path)
        return _MeteredInterpreter(budget).visit(tree, document)
    except jmespath.exceptions.JMESPathError as error:
        raise _failure_of(error) from None
    except (ValueError, ArithmeticError) as error:
        raise refuse(
            ErrorKind.INVALID_INPUT,
            "The path cannot be computed: a slice with step 0, or a number that is too large.",
            reason=type(error).__name__,
        ) from None


def _parse_expression(path: str) -> Any:
    """Return the expression as a tree. The library's own cache keeps trees of any size, so it is emptied at once."""
    try:
        return jmespath.parser.Parser().parse(path).parsed
    finally:
        jmespath.parser.Parser.purge()


_parsed_short = lru_cache(maxsize=256)(_parse_expression)


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
