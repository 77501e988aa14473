"""What a tool asks a person in the middle of a call, and what it is told (MCP's InputRequiredResult, SEP-2322)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from toolhub_service.domain.json import JsonObject


@dataclass(frozen=True, slots=True)
class Question:
    message: str
    """For the person; untrusted text, bounded by the adapter."""
    schema: JsonObject
    """JSON Schema of the answer, an object; empty when yes or no is all that is asked."""
    continuation: str = field(repr=False)
    """Opaque to the hub, handed back with the answer; never shown, never logged."""


class QuestionAsked(Exception):
    """Raised by `Adapter.execute`: the tool waits for a person, and nothing has been done beyond that."""

    def __init__(self, question: Question) -> None:
        super().__init__("a question was asked")
        self.question = question


class Reply(NamedTuple):
    """What a person said to a question."""

    answer: JsonObject | None
    """Fits the question's schema; None: declined."""
    continuation: str
    """The question's own."""

    def __repr__(self) -> str:
        return "Reply(…)"
