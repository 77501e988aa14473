"""Files in a workflow's result.

An item of a result has files under `binary`, by property: `{mimeType, fileName, fileSize, data, id}`. In the mode
`default` (in memory), and from Code nodes that write it so, `data` is base64: the file becomes an artifact. Otherwise
(`filesystem`, the default of 2.x, `s3`, `database`) `data` only names the mode, and `id` the file, which n8n gives to
logged-in users but through no route of its public API (OpenAPI of 2.8.4). Such a file is reported as missing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from toolhub_service.adapters.n8n.answers import plain_media_type
from toolhub_service.adapters.n8n.client import LARGE_BYTES, quote_foreign
from toolhub_service.adapters.upstream import as_object, keep_bytes
from toolhub_service.domain.artifact import ArtifactRef, ArtifactService
from toolhub_service.domain.call import Call
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType
from toolhub_service.guards.secrets import Redact

FILES_MAX: Final = 32
"""Per result; further files are only counted."""
_WORD_MAX_CHARS: Final = 120
_NAMED_MAX: Final = 5
_ELSEWHERE: Final = "it stays in n8n, whose API does not return files"
_UNREADABLE: Final = "n8n's description of it is not a file"


class ItemFile(NamedTuple):
    """One file of one item, as n8n describes it."""

    item: int
    """Index from 0."""
    name: str
    """The property."""
    fields: JsonObject


@dataclass(slots=True)
class Files:
    """All files of a result: those stored, and why others were not."""

    by_item: dict[int, dict[str, JsonValue]] = field(default_factory=dict)
    artifacts: tuple[ArtifactRef, ...] = ()
    evidence: list[Evidence] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Descriptions of the files that were not stored."""

    def merge_files(self, value: JsonValue) -> JsonValue:
        """Return the result; an item that consists of files only is replaced by these files."""
        if isinstance(value, list):
            return [self._of(at, item) for at, item in enumerate(value)]
        return self._of(0, value)

    def _of(self, item: int, value: JsonValue) -> JsonValue:
        # An item with values of its own keeps them; its files are named in the evidence.
        return self.by_item.get(item, value) if value is None or value == {} else value


def files_in(items: Sequence[JsonObject]) -> list[ItemFile]:
    return [
        ItemFile(at, name, file)
        for at, item in enumerate(items)
        for name, described in (as_object(item.get("binary")) or {}).items()
        if (file := as_object(described)) is not None
    ]


async def keep_files(
    found: Sequence[ItemFile], call: Call, artifacts: ArtifactService | None, redact: Redact, execution_id: str
) -> Files:
    """Store each file, or note why it is not stored."""
    files = Files()
    for file in found[:FILES_MAX]:
        about = {name: quote_foreign(_text(file.fields, key), redact, _WORD_MAX_CHARS) for name, key in _WORDS.items()}
        described: JsonObject = {name: words for name, words in about.items() if words}
        shown = f"`{quote_foreign(file.name, redact, _WORD_MAX_CHARS)}` of item {file.item + 1}"
        data = await _data(file.fields)
        if isinstance(data, str):
            value: JsonObject = {**described, "dropped": data}
        else:
            media_type = plain_media_type(_text(file.fields, "mimeType"))
            value, refs = await keep_bytes(data, call, artifacts, media_type=media_type)
            value = {**described, **value}
            files.artifacts += refs
            for ref in refs:
                summary = f"file {shown}: {ref.media_type}, {ref.size_bytes:,} bytes"
                files.evidence.append(
                    Evidence(EvidenceType.FILE, ref.artifact_id, summary, sha256=ref.sha256, attributes=about)
                )
        if "artifact" not in value:
            files.missing.append(f"{shown} ({', '.join(about[name] for name in _SHOWN if about[name]) or 'a file'})")
        files.by_item.setdefault(file.item, {})[file.name] = value
    if len(found) > FILES_MAX:
        files.missing.append(f"{len(found) - FILES_MAX} more")
    if files.missing:
        files.evidence.append(_missing_evidence(files.missing, execution_id))
    return files


_WORDS: Final = {"filename": "fileName", "media_type": "mimeType", "size": "fileSize"}
_SHOWN: Final = ("filename", "media_type", "size")


async def _data(fields: JsonObject) -> bytes | str:
    """Return the file's bytes, or a clause that says why there are none."""
    text = fields.get("data")
    # With an id, `data` names n8n's store and is no content.
    if not isinstance(text, str) or fields.get("id"):
        return _ELSEWHERE
    return _decode(text) if len(text) <= LARGE_BYTES else await asyncio.to_thread(_decode, text)


def _decode(text: str) -> bytes | str:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return _UNREADABLE


def _text(fields: JsonObject, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _missing_evidence(missing: Sequence[str], execution_id: str) -> Evidence:
    named = "; ".join(missing[:_NAMED_MAX]) + (f"; {len(missing) - _NAMED_MAX} more" if missing[_NAMED_MAX:] else "")
    summary = f"files that are not in the result: {named}. See execution {execution_id} in n8n"
    return Evidence(EvidenceType.TOOL, execution_id, summary, attributes={"missing_files": str(len(missing))})
