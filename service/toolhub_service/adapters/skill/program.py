"""Mode `program`: a file of the skill in the hub's interpreter for programs, with the calls that the skill may make."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toolhub_service.adapters.skill.runnable import Runnable
from toolhub_service.adapters.skill.tree import TreeFile, read_file
from toolhub_service.adapters.upstream import not_loaded
from toolhub_service.domain.artifact import ArtifactRef, ArtifactService
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.ports import Clock, EventSink, InnerCalls
from toolhub_service.domain.result import Evidence
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.programs.interpreter import Interpreter
from toolhub_service.tools.programs.program_calls import ProgramProgress
from toolhub_service.tools.programs.program_run import ProgramText, run_program
from toolhub_service.tools.workspace.workspace import Workspace

_CODE_MAX_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProgramParts:
    """What all runs of a hub share."""

    interpreter: Interpreter
    artifacts: ArtifactService
    clock: Clock


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    value: JsonValue
    evidence: Sequence[Evidence]
    artifacts: Sequence[ArtifactRef]


async def run_skill_program(
    parts: ProgramParts, call: GrantedCall, sink: EventSink, made: Runnable, calls: InnerCalls
) -> ProgramOutcome:
    """Run the file. `calls`: narrowed to what the skill may use. Raises as `run_program`, and TreeChanged for a file
    that does not match the digest."""
    text = ProgramText(await _code(call, made), call.args, None, made.manifest.limits.calls)
    asked = call.call
    context: ToolContext[ProgramProgress] = ToolContext(
        call_id=asked.call_id,
        principal_id=asked.principal.id,
        request_id=asked.context.request_id,
        deadline_s=call.deadline_s,
        constraints=call.verdict.constraints,
        sink=sink,
        open_workspace=_no_workspace,
        idempotency_key=call.idempotency_key,
        reply=call.reply,
        call=asked,
        artifact_service=parts.artifacts,
        calls=lambda: calls,
    )
    ended = await run_program(parts.interpreter, text, context, parts.clock.unix_ms, context.report)
    return ProgramOutcome(ended.value, context.evidence, context.artifacts)


async def _code(call: GrantedCall, made: Runnable) -> str:
    assert made.manifest.program is not None
    file: TreeFile | None = made.skill.tree.find(made.manifest.program.file)
    if file is None:
        raise not_loaded(call.spec.name)
    try:
        return (await asyncio.to_thread(read_file, made.skill.folder, file, _CODE_MAX_BYTES)).decode()
    except UnicodeDecodeError:
        message = f"The program of the skill {made.skill.name} is not UTF-8 text. Use another tool, or tell its author."
        raise refuse(ErrorKind.EXECUTION_ERROR, message) from None


def _no_workspace() -> Workspace:
    raise refuse(ErrorKind.TOOL_UNAVAILABLE, "A program of a skill reaches files by calls alone.", retryable=False)
