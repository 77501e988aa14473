"""Selects from JSON by JMESPath or JSONPath, bounded in expression, work and result.

Neither library bounds its work: `[@,@]` repeated 20 times makes a million-element answer, `$..[?$..[?$..]]` visits n³
nodes, brackets nest until Python's stack ends. Here an expression has a length and a nesting limit, evaluation spends
steps (query_jmespath.py, query_jsonpath.py), and the answer is measured, as it would be written out, before it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import re2

from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.tools.query_jmespath import select_jmespath
from toolhub_service.tools.query_jsonpath import select_jsonpath
from toolhub_service.tools.query_weight import weigh
from toolhub_service.tools.step_budget import AT_ONCE_STEPS, StepBudget

Language = Literal["jmespath", "jsonpath"]

_ADVICE = "Select from a smaller part of the document, or write a narrower path."
_TOKENS = re2.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`\\]|\\.)*`|[(\[{]|[)\]}]")


@dataclass(frozen=True, slots=True)
class QueryLimits:
    expression_chars: int = 2048
    nesting: int = 32
    steps: int = 200_000
    result_weight: int = 1_000_000
    """Nodes plus characters of the answer."""
    result_nodes: int = 1_000_000

    @property
    def at_once(self) -> QueryLimits:
        """The same, of what is selected on the event loop."""
        few = min(self.steps, AT_ONCE_STEPS)
        return replace(self, steps=few, result_nodes=min(self.result_nodes, AT_ONCE_STEPS))


def select(document: Any, path: str, language: Language, limits: QueryLimits) -> Any:
    """What the path selects: JMESPath's value (null for nothing), or the list of values that JSONPath finds.

    Raises ToolFailure INVALID_INPUT: a syntax error with its position, or the limit that was broken.
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
