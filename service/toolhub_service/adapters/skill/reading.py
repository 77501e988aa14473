"""Reading a skill: its instructions with the list of its files, or one file; held to the digests that were pinned."""

from __future__ import annotations

import asyncio
from typing import Final

from toolhub_service.adapters.skill.definitions import SkillTool
from toolhub_service.adapters.skill.skill import Skill
from toolhub_service.adapters.skill.skill_file import FILE_MAX_BYTES, FILE_NAMES, read_skill_file
from toolhub_service.adapters.skill.tree import LIMITS, TreeFile, read_file, shown
from toolhub_service.adapters.upstream import kept_bytes
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome

TEXT_MAX_BYTES: Final = 64 * 1024
"""Of a file that is answered as text."""
INSTRUCTIONS_MAX_BYTES: Final = 256 * 1024


async def read_skill(call: GrantedCall, tool: SkillTool, artifacts: ArtifactService | None) -> Outcome:
    """Raises ToolFailure NOT_FOUND and FILE_TOO_LARGE, and TreeChanged for bytes that are not those of the digest."""
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
    kept, references = await kept_bytes(data, call.call, artifacts, name=file.path.rpartition("/")[2])
    return Outcome(value={**value, **kept}, artifacts=references, evidence=(_evidence(skill, file),))


def _text(data: bytes) -> str | None:
    """None for what is large, or no text."""
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
    message = f"The skill has no file {shown(path)}. Call {call.spec.name} without `resource`: it lists them."
    return refuse(ErrorKind.NOT_FOUND, message)


def _too_long(file: TreeFile) -> ToolFailure:
    message = (
        f"The instructions of the skill have more than {INSTRUCTIONS_MAX_BYTES:,} bytes. Read {shown(file.path)} as a "
        "`resource`: it becomes an artifact."
    )
    return refuse(ErrorKind.FILE_TOO_LARGE, message, size_bytes=file.size_bytes, max_bytes=INSTRUCTIONS_MAX_BYTES)
