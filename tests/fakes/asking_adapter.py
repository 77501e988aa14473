"""A tool that asks people in the middle of a call: its questions in turn, then its effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from toolhub_service.domain.call import (
    NO_PRECONDITIONS,
    GrantedCall,
    PlannedCall,
    Preconditions,
    Question,
    QuestionAsked,
)
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import NOTHING_FIXED, EventSink, FixedTerms
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.tool import Annotations, ToolKind, ToolSpec

CANARY: Final = "c0ntinuation-canary"
"""Part of every continuation."""
COLOUR: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "colour": {"type": "string", "enum": ["red", "green"]},
        "password": {"type": "string", "default": "none"},
    },
    "required": ["colour"],
    "additionalProperties": False,
}
FREE: Final[JsonObject] = {}
"""Yes or no is all that is asked."""
RESULT: Final[JsonObject] = {"type": "object", "properties": {"said": {"type": "array"}}, "required": ["said"]}


def a_question(message: str = "Which colour?", schema: Mapping[str, Any] = COLOUR) -> Question:
    """Its continuation is the adapter's."""
    return Question(message, schema, "")


class AskingAdapter:
    """Stateless as an MCP server is: which question was answered stands in the continuation."""

    def __init__(self, *questions: Question, kind: ToolKind = ToolKind.MCP) -> None:
        self.kind = kind
        self.questions: Sequence[Question] = questions or (a_question(),)
        self.calls: list[GrantedCall] = []
        self.done: list[Any] = []
        """What was answered last, of each run that came to its end."""

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        self.calls.append(call)
        reply = call.reply
        at = 0 if reply is None else int(reply.continuation.rpartition(":")[2]) + 1
        if at < len(self.questions):
            question = self.questions[at]
            raise QuestionAsked(replace(question, continuation=f"{CANARY}{question.continuation}:{at}"))
        answer = None if reply is None else reply.answer
        self.done.append(answer)
        return Outcome(value={"said": [answer]})

    def effects(self, call: GrantedCall) -> Sequence[str]:
        return ("Ask.",)

    async def preconditions(self, planned: PlannedCall) -> Preconditions:
        return NO_PRECONDITIONS

    def has_side_effects(self, planned: PlannedCall) -> bool:
        return planned.spec.has_side_effects

    def upstream(self, planned: PlannedCall) -> str:
        return planned.spec.upstream_key

    def fixed_terms(self, spec: ToolSpec) -> FixedTerms:
        return NOTHING_FIXED

    def resumes(self, spec: ToolSpec) -> bool:
        return False


def an_asking_tool(
    name: str = "asker/paint", kind: ToolKind = ToolKind.MCP, capability: str = "write:fs", **annotations: bool
) -> ToolSpec:
    return ToolSpec(
        name=name,
        kind=kind,
        description="Paint the wall, when somebody has said how.",
        input_schema={"type": "object", "properties": {"wall": {"type": "string"}}},
        output_schema=RESULT,
        capabilities=frozenset({capability}),
        annotations=Annotations(**annotations),
        source="asker",
    )
