"""What a dry run answers: what would happen, step by step, and a digest to commit exactly that."""

from __future__ import annotations

from dataclasses import dataclass

from toolhub_service.domain.errors import ToolError
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.step import StepName


@dataclass(frozen=True, slots=True)
class StepVerdict:
    step: StepName
    ok: bool
    rule_id: str = ""
    reason: str = ""
    remedy: str = ""
    error: ToolError | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    call_id: str
    tool: str
    tool_version: str
    tool_digest: str
    args: JsonObject
    defaults_applied: tuple[str, ...]
    steps: tuple[StepVerdict, ...]
    effects: tuple[str, ...]
    """What the tool says it would do, one sentence each."""
    plan_digest: str
    """Empty when a step refused: there is nothing to commit."""
    expires_at_unix_ms: int
