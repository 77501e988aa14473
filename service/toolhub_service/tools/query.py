"""Selects from JSON by JMESPath or JSONPath, bounded in expression, work and result.

Neither library bounds its work: `[@,@]` repeated 20 times makes a million-element answer, `$..[?$..[?$..]]` visits n³
nodes, brackets nest until Python's stack ends. Here an expression has a length and a nesting limit, evaluation spends
steps, and the answer's serialized size is measured before it is returned.
"""

from __future__ import annotations

from typing import Any

import re2

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.tools.json_weight import weigh
from toolhub_service.tools.query_limits import Language, QueryLimits
from toolhub_service.tools.select_jmespath import select_jmespath
from toolhub_service.tools.select_jsonpath import select_jsonpath
from toolhub_service.tools.step_budget import StepBudget

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
