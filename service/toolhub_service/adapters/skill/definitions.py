"""Tools of skills: for each skill one that reads it, and with a sidecar one that runs it.

A pin covers the digest of the skill's whole tree: a changed file makes another definition, which must be accepted.
Unlike a server's annotations, a sidecar's are trusted: they are pinned together with the code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import structs

from toolhub_service.adapters.definitions import ANY_OBJECT, PROBLEM_MAX_CHARS, Overrides, SourceTerms, unusable
from toolhub_service.adapters.skill.manifest import Manifest, ManifestInvalid
from toolhub_service.adapters.skill.runnable import runnable
from toolhub_service.adapters.skill.skill import Skill
from toolhub_service.adapters.tool_names import known_name
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import Annotations, CostHints, SkillListing, ToolSpec, ToolState
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.sections.source_config import ToolTerms

READ: Final = "read"
READ_S: Final = 30.0
_ROOM_S: Final = 10.0
"""Time to copy a skill's files before it runs, and to store its results."""
_DIGEST_CHARS: Final = 16
_FILES_LISTED_MAX: Final = 300

READ_INPUT: Final[JsonObject] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "resource": {
            "type": "string",
            "minLength": 1,
            "maxLength": 1_000,
            "description": "Path of one file of the skill, as `resources` lists it; without: the instructions.",
        }
    },
}
READ_OUTPUT: Final[JsonObject] = {
    "type": "object",
    "required": ["skill", "digest"],
    "properties": {
        "skill": {"type": "string", "description": "Name of the skill."},
        "digest": {"type": "string", "description": "SHA-256 over the skill's whole tree."},
        "instructions": {"type": "string", "description": "Markdown of its SKILL.md, without the frontmatter."},
        "compatibility": {"type": "string"},
        "runsAs": {"type": "string", "description": "Name of the tool that runs the skill, where there is one."},
        "resources": {
            "type": "array",
            "description": "Its other files, to be read one by one with `resource`.",
            "items": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "bytes": {"type": "integer"}},
            },
        },
        "resource": {"type": "string"},
        "bytes": {"type": "integer"},
        "sha256": {"type": "string"},
        "text": {"type": "string", "description": "Of a file of at most 64 KiB that is UTF-8."},
        "artifact": {"type": "string", "description": "Id of the artifact that holds another file."},
        "dropped": {"type": "string", "description": "Why it is not kept as an artifact."},
    },
}


@dataclass(frozen=True, slots=True)
class SkillTool:
    """What a call of a tool needs: the pinned skill, and how it is run."""

    skill: Skill
    manifest: Manifest | None = None
    """None: the tool reads the skill."""
    runs_as: str = ""
    """Full name of the tool that runs the skill; empty: none."""


class DefinitionMaker:
    """Makes the definitions of one source."""

    def __init__(self, terms: SourceTerms, overrides: Overrides) -> None:
        self._terms = terms
        self._overrides = overrides

    def reading(self, skill: Skill) -> Definition | None:
        """Return the tool that reads the skill; None when the operator does not offer it. Raises Unnamed."""
        own_name = f"{skill.name}.{READ}"
        chosen = self._overrides.of(own_name)
        if not chosen.offered:
            return None
        description = (
            f"{skill.file.description}\n\nReads the skill `{skill.name}`: its instructions and the list of its files; "
            "with `resource`, one of them."
        )
        spec = self._spec(
            own_name,
            skill,
            chosen,
            description=description,
            input_schema=READ_INPUT,
            output_schema=READ_OUTPUT,
            annotations=Annotations(read_only=True, idempotent=True),
        )
        seconds = chosen.timeout_s or READ_S
        limits = structs.replace(spec.limits, timeout_s=seconds, call_max_s=seconds)
        # A separate breaker: a skill whose runs fail can still be read.
        listed = SkillListing(
            skill.file.frontmatter,
            tuple((each.path, each.sha256, each.size_bytes) for each in skill.files if not each.link),
        )
        return Definition(_anew(spec, limits=limits, upstream="", skill=listed), {"name": own_name, **_remote(skill)})

    def running(
        self, skill: Skill, unavailable: Callable[[Manifest], str]
    ) -> tuple[Definition, Manifest | None] | None:
        """Return the tool that runs the skill, and its manifest if that can be used; None when there is none, or the
        operator does not offer it. `unavailable`: why a manifest cannot be run here. Raises Unnamed."""
        chosen = self._overrides.of(skill.name)
        if skill.sidecar is None or not chosen.offered:
            return None
        remote = {"name": skill.name, **_remote(skill), "manifest": _as_json(skill.sidecar)}
        try:
            made = runnable(skill)
        except ManifestInvalid as invalid:
            problem = f"Its `{skill.sidecar_path}` cannot be used: {'; '.join(invalid.problems)}"
            spec = self._spec(
                skill.name,
                skill,
                chosen,
                description=skill.file.description,
                input_schema=ANY_OBJECT,
                output_schema={},
                annotations=Annotations(),
            )
            return Definition(spec, remote, excerpt(problem, PROBLEM_MAX_CHARS)), None
        if made is None:
            return None
        manifest, problem = made.manifest, ""
        for key, schema in (("input_schema", manifest.input_schema), ("output_schema", manifest.output_schema)):
            if why := unusable(schema, compile_schema):
                problem = problem or f"The {key} of its `{skill.sidecar_path}` cannot be used: {why}"
        spec = self._running_spec(skill, manifest, chosen, problem)
        if why := "" if problem else unavailable(manifest):
            spec = replace(spec, state=ToolState.UNAVAILABLE, state_reason=why)
        return Definition(spec, remote, problem), manifest

    def _running_spec(self, skill: Skill, manifest: Manifest, chosen: ToolTerms, problem: str) -> ToolSpec:
        spec = self._spec(
            skill.name,
            skill,
            chosen,
            description=skill.file.description,
            input_schema=ANY_OBJECT if problem else manifest.input_schema,
            output_schema={} if problem else manifest.output_schema,
            annotations=_annotations(manifest, chosen),
        )
        # The skill's own limit ends it first, with a clear message.
        own_s, operators_s = manifest.limits.timeout_s + _ROOM_S, chosen.timeout_s or self._terms.timeout_s
        return _anew(
            spec,
            version=manifest.version,
            capabilities=spec.capabilities | frozenset(manifest.capabilities),
            cost=CostHints(is_async=manifest.is_job),
            limits=structs.replace(
                spec.limits,
                timeout_s=min(own_s, operators_s),
                call_max_s=operators_s if operators_s < own_s else 0.0,
            ),
            # A separate breaker: a skill whose runs fail must not stop calls of others.
            upstream=f"{self._terms.upstream}/{skill.name}",
            # The only effects of a plan or a program are its calls.
            replays=manifest.mode != "script",
        )

    def _spec(self, own_name: str, skill: Skill, chosen: ToolTerms, **facts: Any) -> ToolSpec:
        name = known_name(self._terms.name, own_name, "A skill")
        return self._terms.spec(name, f"{own_name}@{skill.digest[:_DIGEST_CHARS]}", chosen, **facts)


def _annotations(manifest: Manifest, chosen: ToolTerms) -> Annotations:
    declared = manifest.annotations

    def of(operators: bool | None, own: bool) -> bool:
        return own if operators is None else operators

    return Annotations(
        read_only=of(chosen.read_only, declared.read_only),
        destructive=of(chosen.destructive, declared.destructive),
        idempotent=of(chosen.idempotent, declared.idempotent),
        open_world=declared.open_world,
        supports_progress=True,
    )


def _anew(spec: ToolSpec, **changes: Any) -> ToolSpec:
    """Return the definition with the changes and a new digest."""
    return replace(spec, digest="", **changes)


def _remote(skill: Skill) -> dict[str, JsonValue]:
    """Return the skill's properties for a pin."""
    file = skill.file
    listed: JsonValue = {each.path: each.sha256 for each in skill.files}
    if len(skill.files) > _FILES_LISTED_MAX:
        # The digest covers all of them; a list of thousands would make the pin too large to be shown.
        listed = f"{len(skill.files)} files"
    fields: Mapping[str, JsonValue] = {
        "skill": file.name,
        "description": file.description,
        "license": file.license,
        "compatibility": file.compatibility,
        "metadata": dict(file.metadata),
        "allowedTools": list(file.allowed_tools),
    }
    return {**{key: value for key, value in fields.items() if value}, "digest": skill.digest, "files": listed}


def _as_json(sidecar: bytes) -> JsonValue:
    """Return the sidecar for people who compare; if it is not JSON, the digest of its file."""
    try:
        value: JsonValue = json.loads(sidecar)
    except (ValueError, RecursionError):
        return None
    return value
