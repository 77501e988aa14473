"""References to artifacts in the arguments of a call: `{"$artifact": "<artifact_id>"}` becomes the artifact's text.

All references are found and their sizes checked before a byte is read; each counts as often as it occurs. In the
arguments that the audit log shows, artifact_id, digest and size replace the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from toolhub_service.aio.cooperative import in_thread
from toolhub_service.domain.artifact import Artifact, ArtifactService
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.schema.json_structure import has_many_values
from toolhub_service.schema.references import step_of

REFERENCE = "$artifact"
# Most different artifacts in one call's arguments.
_ARTIFACTS_MAX = 100


class ResolvedArguments(NamedTuple):
    args: JsonObject
    """With every reference replaced by the artifact's text."""
    shown: JsonObject
    """For the audit log: with artifact_id, sha256 and size in place of each reference."""


async def resolve_arguments(
    args: JsonObject, principal_id: str, artifact_service: ArtifactService, max_bytes: int
) -> ResolvedArguments:
    """Resolve all references. Raises ToolFailure NOT_FOUND or INVALID_INPUT, each with what to do."""
    is_large = has_many_values(args)
    counts = await in_thread(_counts, args) if is_large else _counts(args)
    if not counts:
        return ResolvedArguments(args, args)
    if len(counts) > _ARTIFACTS_MAX:
        message = f"The arguments name {len(counts)} artifacts; the most is {_ARTIFACTS_MAX}. Split the call."
        raise refuse(ErrorKind.INVALID_INPUT, message, max_artifacts=_ARTIFACTS_MAX)
    artifacts = {artifact_id: await artifact_service.open(principal_id, artifact_id) for artifact_id in counts}
    total_bytes = sum(artifacts[artifact_id].size_bytes * count for artifact_id, count in counts.items())
    if total_bytes > max_bytes:
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"The artifacts in the arguments come to {total_bytes} bytes; the most is {max_bytes}. "
            "Pass a smaller part, or a path or URL where the tool takes one.",
            size_bytes=total_bytes,
            max_bytes=max_bytes,
        )
    texts = {artifact_id: await _text(artifact, artifact_service) for artifact_id, artifact in artifacts.items()}
    shown = {artifact_id: describe_artifact(artifact) for artifact_id, artifact in artifacts.items()}
    return (
        await in_thread(replace_references, args, texts, shown) if is_large else replace_references(args, texts, shown)
    )


def _counts(args: JsonObject) -> Counter[str]:
    """Return how often each artifact is referred to. Raises as `_references` does."""
    return Counter(_references(args, ()))


def replace_references(
    args: JsonObject, texts: Mapping[str, str], shown: Mapping[str, JsonObject]
) -> ResolvedArguments:
    return ResolvedArguments(
        cast(JsonObject, replace_in_value(args, texts)), cast(JsonObject, replace_in_value(args, shown))
    )


def _references(value: JsonValue, path: tuple[str | int, ...]) -> Iterator[str]:
    """Yield every artifact_id as often as it occurs. Raises INVALID_INPUT for a malformed reference."""
    if isinstance(value, Mapping):
        if REFERENCE in value:
            yield _reference(value, path)
            return
        for key, item in value.items():
            yield from _references(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _references(item, (*path, index))


def _reference(value: Mapping[str, JsonValue], path: tuple[str | int, ...]) -> str:
    artifact_id = value[REFERENCE]
    if not path:
        raise refuse_malformed(path, "replaces all arguments: use it in place of one string")
    if len(value) > 1:
        raise refuse_malformed(path, f'has other members: write only {{"{REFERENCE}": "<artifact_id>"}}')
    if not isinstance(artifact_id, str):
        raise refuse_malformed(path, "is not a string: give the artifact_id as a string")
    return artifact_id


def refuse_malformed(path: tuple[str | int, ...], what: str) -> ToolFailure:
    at = "".join([step_of(str(step)) for step in path])
    return refuse(ErrorKind.INVALID_INPUT, f"The artifact reference at `{at or '/'}` {what}.", path=at)


async def _text(artifact: Artifact, artifact_service: ArtifactService) -> str:
    data = b"".join([chunk async for chunk in artifact_service.read(artifact)])
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"Artifact {artifact.artifact_id} is not UTF-8 text (byte {error.start}), so it cannot be an argument. "
            "Convert it, or use a tool that takes a file.",
            artifact_id=artifact.artifact_id,
            at_byte=error.start,
        ) from None


def describe_artifact(artifact: Artifact) -> JsonObject:
    return {REFERENCE: artifact.artifact_id, "sha256": artifact.sha256, "size_bytes": artifact.size_bytes}


def replace_in_value(value: JsonValue, by: Mapping[str, JsonValue]) -> JsonValue:
    if isinstance(value, Mapping):
        if REFERENCE in value:
            return by[cast(str, value[REFERENCE])]
        return {key: replace_in_value(item, by) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_in_value(item, by) for item in value]
    return value
