"""The files of an execution's result: kept as artifacts where n8n hands them out, and named where it does not.

An item has files under `binary`, by property: `{mimeType, fileName, fileSize, data, id}`. With the mode `default` (in
memory), and of Code nodes that write them so, `data` is base64. Else (`filesystem`, the default of 2.x, `s3`,
`database`) it only names the mode, and `id` the file: n8n gives it to persons who are logged in, and no route of its
public API does (OpenAPI of 2.8.4). Such a file is told as missing, never passed over.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from toolhub_service.adapters.n8n.answers import kept
from toolhub_service.adapters.n8n.client import LARGE_BYTES
from toolhub_service.adapters.n8n.words import quoted
from toolhub_service.adapters.shortening import as_object
from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.artifact_ports import ArtifactDesk
from toolhub_service.domain.call import Call
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType
from toolhub_service.guards.redaction import Redact

FILES_MAX: Final = 32
"""Of one result; more are only counted."""
_WORD_MAX_CHARS: Final = 120
_NAMED_MAX: Final = 5
_ELSEWHERE: Final = "it stays in n8n, whose API hands out no files"
_UNREADABLE: Final = "what n8n tells of it is no file"


class ItemFile(NamedTuple):
    """One file of one item, as n8n tells of it."""

    item: int
    """From 0."""
    name: str
    """The property."""
    told: JsonObject


@dataclass(slots=True)
class Files:
    """What became of all files of a result."""

    by_item: dict[int, dict[str, JsonValue]] = field(default_factory=dict)
    artifacts: tuple[ArtifactRef, ...] = ()
    evidence: list[Evidence] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Those that are not kept, in words."""

    def beside(self, value: JsonValue) -> JsonValue:
        """The result; what an item that is nothing but files is in it is these files."""
        if isinstance(value, list):
            return [self._of(at, item) for at, item in enumerate(value)]
        return self._of(0, value)

    def _of(self, item: int, value: JsonValue) -> JsonValue:
        return self.by_item.get(item, value) if value is None or value == {} else value


def files_in(items: Sequence[JsonObject]) -> list[ItemFile]:
    return [*_files(items)]


async def kept_files(
    found: Sequence[ItemFile], call: Call, desk: ArtifactDesk | None, redact: Redact, execution_id: str
) -> Files:
    """Each kept, or told why it is not."""
    files = Files()
    for file in found[:FILES_MAX]:
        about = {name: quoted(_text(file.told, key), redact, _WORD_MAX_CHARS) for name, key in _WORDS.items()}
        said: JsonObject = {name: words for name, words in about.items() if words}
        shown = f"`{quoted(file.name, redact, _WORD_MAX_CHARS)}` of item {file.item + 1}"
        data = await _data(file.told)
        if isinstance(data, str):
            value: JsonObject = {**said, "dropped": data}
        else:
            value, refs = await kept(data, _text(file.told, "mimeType"), call, desk)
            value = {**said, **value}
            files.artifacts += refs
            files.evidence += [_evidence(ref, shown, about) for ref in refs]
        if "artifact" not in value:
            files.missing.append(f"{shown} ({', '.join(about[name] for name in _SHOWN if about[name]) or 'a file'})")
        files.by_item.setdefault(file.item, {})[file.name] = value
    if len(found) > FILES_MAX:
        files.missing.append(f"{len(found) - FILES_MAX} more")
    if files.missing:
        files.evidence.append(_told_missing(files.missing, execution_id))
    return files


_WORDS: Final = {"filename": "fileName", "media_type": "mimeType", "size": "fileSize"}
_SHOWN: Final = ("filename", "media_type", "size")


def _files(items: Sequence[JsonObject]) -> Iterator[ItemFile]:
    for at, item in enumerate(items):
        for name, told in (as_object(item.get("binary")) or {}).items():
            file = as_object(told)
            if file is not None:
                yield ItemFile(at, name, file)


async def _data(told: JsonObject) -> bytes | str:
    """Its bytes, or why there are none; a clause."""
    text = told.get("data")
    if not isinstance(text, str) or told.get("id"):
        return _ELSEWHERE
    return _decoded(text) if len(text) <= LARGE_BYTES else await asyncio.to_thread(_decoded, text)


def _decoded(text: str) -> bytes | str:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return _UNREADABLE


def _text(told: JsonObject, name: str) -> str:
    value = told.get(name)
    return value if isinstance(value, str) else ""


def _evidence(ref: ArtifactRef, shown: str, about: dict[str, str]) -> Evidence:
    summary = f"file {shown}: {ref.media_type}, {ref.size_bytes:,} bytes"
    return Evidence(EvidenceType.FILE, ref.artifact_id, summary, sha256=ref.sha256, attributes=about)


def _told_missing(missing: Sequence[str], execution_id: str) -> Evidence:
    named = "; ".join(missing[:_NAMED_MAX]) + (f"; {len(missing) - _NAMED_MAX} more" if missing[_NAMED_MAX:] else "")
    summary = f"files that are not in the result: {named}. Look in n8n, at execution {execution_id}"
    return Evidence(EvidenceType.TOOL, execution_id, summary, attributes={"missing_files": str(len(missing))})
