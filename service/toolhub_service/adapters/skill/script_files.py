"""The files of a script's run: artifacts that it receives, and artifacts made from the files that it leaves.

These files come from an untrusted program, so they are read like a skill's own tree: below descriptors, without
following links, only files and folders, within limits, and each file is stored only with the digest computed before.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeAlias

from toolhub_service.adapters.skill.manifest import ARTIFACT_FORMAT, DeclaredArtifact, Manifest
from toolhub_service.adapters.skill.tree import (
    Tree,
    TreeChanged,
    TreeFile,
    TreeLimits,
    TreeRefused,
    open_file,
    read_tree,
)
from toolhub_service.domain.artifact import OCTETS, ArtifactRef, ArtifactService
from toolhub_service.domain.call import Call
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject, JsonValue

Kept: TypeAlias = tuple[ArtifactRef, ...]

_CHUNK_BYTES: Final = 256 * 1024
_GIVEN_MAX: Final = 64
_FOLDERS_MAX: Final = 64
_DEPTH_MAX: Final = 8
_NAME_CHARS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


async def put_artifacts(
    folder: Path, manifest: Manifest, args: JsonObject, artifacts: ArtifactService, principal_id: str
) -> JsonObject:
    """Return the arguments with each artifact's id that the schema declares replaced by a file's path.

    Raises ToolFailure NOT_FOUND for an artifact that is not the caller's, FILE_TOO_LARGE, INVALID_INPUT.
    """
    given = dict(args)
    names = _names(manifest.input_schema)
    count, left_bytes = 0, manifest.limits.artifact_bytes
    for name in names & given.keys():
        value = given[name]
        ids = value if isinstance(value, list) else [value]
        paths: list[JsonValue] = []
        for artifact_id in ids:
            count += 1
            if not isinstance(artifact_id, str) or count > _GIVEN_MAX:
                message = f"/{name} must hold ids of artifacts, {_GIVEN_MAX} in all at most."
                raise refuse(ErrorKind.INVALID_INPUT, message, argument=name)
            artifact = await artifacts.open(principal_id, artifact_id)
            left_bytes -= artifact.size_bytes
            if left_bytes < 0:
                message = (
                    f"The artifacts have more than {manifest.limits.artifact_bytes:,} bytes, which this skill takes."
                )
                raise refuse(ErrorKind.FILE_TOO_LARGE, message)
            target = folder / f"{count}_{_plain(artifact.name)}"
            await _write(target, artifacts.read(artifact))
            paths.append(str(target))
        given[name] = paths if isinstance(value, list) else paths[0]
    return given


async def keep_output(folder: Path, manifest: Manifest, artifacts: ArtifactService, call: Call) -> Kept:
    """Store the files of the folder as artifacts. Raises ToolFailure when it contains what cannot be one, more than the
    sidecar allows, or less than it requires; then none is stored."""
    tree = await asyncio.to_thread(_read_written_tree, folder, manifest)
    _check_files(tree, manifest)
    kept: list[ArtifactRef] = []
    try:
        for file in tree.files:
            media_type = _media_type(file.path, manifest.artifacts)
            name = file.path.rpartition("/")[2]
            artifact = await artifacts.keep(_chunks(folder, file), call=call, media_type=media_type, name=name)
            kept.append(artifact.ref)
    except BaseException:
        await artifacts.release([ref.artifact_id for ref in kept])
        raise
    return tuple(kept)


def _read_written_tree(folder: Path, manifest: Manifest) -> Tree:
    limits = manifest.limits
    bounds = TreeLimits(
        files_max=limits.artifacts + _FOLDERS_MAX,
        total_max_bytes=limits.artifact_bytes,
        file_max_bytes=limits.artifact_bytes,
        depth_max=_DEPTH_MAX,
    )
    try:
        return read_tree(folder, bounds)
    except TreeRefused as refused:
        raise _unfit(str(refused), "OUTPUT_TYPE") from None
    except OSError:
        raise refuse(ErrorKind.IO_ERROR, "The output folder cannot be read. An operator must look.") from None


def _check_files(tree: Tree, manifest: Manifest) -> None:
    if links := [file.path for file in tree.files if file.link]:
        raise _unfit(f"{links[0]} is a link", "OUTPUT_TYPE", links[0])
    if len(tree.files) > manifest.limits.artifacts:
        found = f"it has {len(tree.files)} files, and `limits.artifacts` is {manifest.limits.artifacts}"
        raise _unfit(found, "OUTPUT_TOO_MANY")
    for declared in manifest.required_artifacts:
        if not any(fnmatchcase(file.path, declared.name) for file in tree.files):
            raise _unfit(f"no file is named {declared.name}, which is required", "OUTPUT_MISSING", declared.name)


def _unfit(why: str, cause: str, filename: str = "") -> ToolFailure:
    message = (
        f"The skill ended, but what it left in its output folder cannot be taken: {why}. Its author must leave plain "
        "files there, as the sidecar declares."
    )
    return refuse(ErrorKind.EXECUTION_ERROR, message, cause=cause, filename=filename)


def _media_type(path: str, declared: Sequence[DeclaredArtifact]) -> str:
    return next((each.media_type for each in declared if fnmatchcase(path, each.name)), OCTETS)


async def _chunks(folder: Path, file: TreeFile) -> AsyncIterator[bytes]:
    """Yield its bytes. Raises ToolFailure when it cannot be read, or has changed since the walk."""
    try:
        with open_file(folder, file) as descriptor:
            while chunk := await asyncio.to_thread(os.read, descriptor, _CHUNK_BYTES):
                yield chunk
    except (TreeChanged, OSError):
        raise _unfit(f"{file.path} changed while it was read", "OUTPUT_DAMAGED", file.path) from None


async def _write(target: Path, chunks: AsyncIterator[bytes]) -> None:
    try:
        with target.open("xb") as file:
            os.fchmod(file.fileno(), 0o644)
            async for chunk in chunks:
                await asyncio.to_thread(file.write, chunk)
    except OSError:
        raise refuse(ErrorKind.IO_ERROR, "An artifact could not be laid out for the skill.") from None


def _names(schema: Mapping[str, Any]) -> set[str]:
    """Return the names of the arguments that are artifacts, or lists of them."""
    properties = schema.get("properties")
    return set(_of_artifacts(properties)) if isinstance(properties, Mapping) else set()


def _of_artifacts(properties: Mapping[str, Any]) -> Iterator[str]:
    for name, part in properties.items():
        items = part.get("items") if isinstance(part, Mapping) else None
        if any(isinstance(each, Mapping) and each.get("format") == ARTIFACT_FORMAT for each in (part, items)):
            yield name


def _plain(name: str) -> str:
    """Return a foreign file name reduced to harmless characters."""
    text = "".join(char if char in _NAME_CHARS else "_" for char in name[-64:])
    return text.lstrip(".-") or "file"
