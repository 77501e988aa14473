"""Step 6 for skills: reads one, or runs one as its sidecar declares."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from toolhub_service.adapters.skill.checkout import Checkouts
from toolhub_service.adapters.skill.definitions import SkillTool
from toolhub_service.adapters.skill.kind import SkillSource, endpoint_of
from toolhub_service.adapters.skill.manifest import Manifest
from toolhub_service.adapters.skill.program import ProgramParts
from toolhub_service.adapters.skill.runner import SkillRuns
from toolhub_service.adapters.skill.script import ScriptParts
from toolhub_service.adapters.skill.skill import Skill
from toolhub_service.adapters.skill.skill_file import FILE_MAX_BYTES, FILE_NAMES, read_skill_file
from toolhub_service.adapters.skill.source import RunnableHere, SkillToolSource
from toolhub_service.adapters.skill.tree import LIMITS, TreeChanged, TreeFile, read_file, show_path
from toolhub_service.adapters.source_kind import OpenedSource, SourceAdapter, SourceDeps
from toolhub_service.adapters.upstream import keep_bytes
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome
from toolhub_service.domain.tool import ToolKind, ToolSpec


class SkillRunner(RunnableHere, Protocol):
    """Runs skills in the modes of their sidecars."""

    async def run(self, call: GrantedCall, sink: EventSink, skill: Skill, manifest: Manifest) -> Outcome:
        """Run the skill. Raises ToolFailure, and TreeChanged for files that do not match the skill's digest."""

    async def foresee(self, call: GrantedCall, skill: Skill, manifest: Manifest) -> Sequence[str]:
        """Return the same as `effects`, for a dry run, which also plans the calls that the skill would make."""

    def effects(self, call: GrantedCall, skill: Skill, manifest: Manifest) -> Sequence[str]:
        """Return what the call would do now, one sentence per effect. Raises ToolFailure when it would fail."""


class SkillOpener:
    """Implements `Opener`."""

    def __init__(self, deps: SourceDeps) -> None:
        self._deps = deps
        self._checkouts = Checkouts(deps.data_dir / "skills", deps.redactor.text)
        programs = ProgramParts(deps.programs, deps.artifacts, deps.clock)
        parts = ScriptParts(deps.ladder, deps.artifacts, deps.redactor.text)
        self.adapter = SkillAdapter(deps.artifacts, SkillRuns(parts, programs, deps.inner_calls, deps.script_python))

    def endpoint(self, name: str, entry: SkillSource) -> str:
        return endpoint_of(entry)

    def open(self, name: str, entry: SkillSource) -> OpenedSource:
        runner = self.adapter.runner
        source = SkillToolSource(
            name,
            entry,
            self._checkouts,
            redact=self._deps.redactor.text,
            runner=runner,
        )
        self.adapter.put(source)
        return OpenedSource(source)

    def forget(self, name: str) -> None:
        self.adapter.remove(name)


class SkillAdapter(SourceAdapter[SkillToolSource]):
    """Implements `Adapter` for all sources of skills."""

    kind = ToolKind.SKILL

    def __init__(self, artifacts: ArtifactService | None, runner: SkillRunner | None = None) -> None:
        super().__init__()
        self.runner = runner
        self._artifacts = artifacts

    def put(self, source: SkillToolSource) -> None:
        """Call the tools of this source from now on; one of the same name is replaced, not closed."""
        self._sources[source.name] = source

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        source, tool = self._find_tool(call)
        try:
            if tool.manifest is None:
                return await read_skill(call, tool, self._artifacts)
            assert self.runner is not None  # otherwise no tool of the kind is offered
            return await self.runner.run(call, sink, tool.skill, tool.manifest)
        except TreeChanged as changed:
            source.note_change()
            raise _stale_files(call, str(changed)) from changed

    async def foresee(self, call: GrantedCall) -> Sequence[str]:
        _, tool = self._find_tool(call)
        if tool.manifest is None or self.runner is None:
            return ()
        return await self.runner.foresee(call, tool.skill, tool.manifest)

    def effects(self, call: GrantedCall) -> Sequence[str]:
        _, tool = self._find_tool(call)
        if tool.manifest is None or self.runner is None:
            return ()
        return self.runner.effects(call, tool.skill, tool.manifest)

    def resumes(self, spec: ToolSpec) -> bool:
        return False

    def _find_tool(self, call: GrantedCall) -> tuple[SkillToolSource, SkillTool]:
        """Return the tool. Raises ToolFailure when the source was removed, or was read again and the skill has
        changed."""
        source = self._source(call)
        tool = source.tool(call.spec.resource_id)
        if tool is None:
            raise _stale_files(call, "the skill was read anew")
        return source, tool


def _stale_files(call: GrantedCall, what: str) -> ToolFailure:
    reason = f"its files are not those that were approved ({what}): `toolhub pins diff {call.spec.name}` shows them"
    message = f"{call.spec.name} was not called: {reason}. Use another tool, or ask an operator."
    return refuse(ErrorKind.TOOL_QUARANTINED, message, reason=reason)


# Reading a skill: its instructions with the list of its files, or one file; verified against the pinned digests.

TEXT_MAX_BYTES: Final = 64 * 1024
"""Limit of a file that is returned as text."""
INSTRUCTIONS_MAX_BYTES: Final = 256 * 1024


async def read_skill(call: GrantedCall, tool: SkillTool, artifacts: ArtifactService | None) -> Outcome:
    """Return the outcome. Raises ToolFailure NOT_FOUND and FILE_TOO_LARGE, and TreeChanged for bytes that do not match
    the digest."""
    resource = call.args.get("resource")
    if isinstance(resource, str):
        return await _resource(call, tool, resource, artifacts)
    return await _instructions(tool)


async def _instructions(tool: SkillTool) -> Outcome:
    skill = tool.skill
    file = next(skill.tree.by_path[name] for name in FILE_NAMES if name in skill.tree.by_path)
    data = await asyncio.to_thread(read_file, skill.folder, file, FILE_MAX_BYTES)
    body = read_skill_file(data, skill.folder.name).body
    if len(body.encode()) > INSTRUCTIONS_MAX_BYTES:
        raise _too_long(file)
    value: dict[str, JsonValue] = {
        "skill": skill.name,
        "digest": skill.digest,
        "instructions": body,
        "resources": [
            {"path": each.path, "bytes": each.size_bytes} for each in skill.files if each is not file and not each.link
        ],
    }
    if skill.file.compatibility:
        value["compatibility"] = skill.file.compatibility
    if tool.runs_as:
        value["runsAs"] = tool.runs_as
    return Outcome(value=value, evidence=(_evidence(skill, file),))


async def _resource(call: GrantedCall, tool: SkillTool, path: str, artifacts: ArtifactService | None) -> Outcome:
    skill = tool.skill
    file = skill.tree.find(path)
    if file is None:
        raise _no_such_file(call, path)
    data = await asyncio.to_thread(read_file, skill.folder, file, LIMITS.file_max_bytes)
    value: dict[str, JsonValue] = {
        "skill": skill.name,
        "digest": skill.digest,
        "resource": file.path,
        "bytes": file.size_bytes,
        "sha256": file.sha256,
    }
    text = _text(data)
    if text is not None:
        return Outcome(value={**value, "text": text}, evidence=(_evidence(skill, file),))
    kept, references = await keep_bytes(data, call.call, artifacts, name=file.path.rpartition("/")[2])
    return Outcome(value={**value, **kept}, artifacts=references, evidence=(_evidence(skill, file),))


def _text(data: bytes) -> str | None:
    """Return the data as text; None when they are too large or no text."""
    if len(data) > TEXT_MAX_BYTES or b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _evidence(skill: Skill, file: TreeFile) -> Evidence:
    return Evidence(
        type=EvidenceType.FILE,
        ref=f"skill:{skill.name}/{file.path}",
        summary=f"Read {file.path} of the skill {skill.name}",
        sha256=file.sha256,
        attributes={"skill_digest": skill.digest},
    )


def _no_such_file(call: GrantedCall, path: str) -> ToolFailure:
    message = f"The skill has no file {show_path(path)}. Call {call.spec.name} without `resource`: it lists them."
    return refuse(ErrorKind.NOT_FOUND, message)


def _too_long(file: TreeFile) -> ToolFailure:
    message = (
        f"The instructions of the skill have more than {INSTRUCTIONS_MAX_BYTES:,} bytes. Read {show_path(file.path)} "
        "as a `resource`: it becomes an artifact."
    )
    return refuse(ErrorKind.FILE_TOO_LARGE, message, size_bytes=file.size_bytes, max_bytes=INSTRUCTIONS_MAX_BYTES)
