"""What a tool answered (CallToolResult, as JSON) as an `Outcome`.

The value is one of two shapes:

    structured content, as it is                 where the tool sent some
    {"text": "…", "content": [...]}              else: its text blocks joined by line breaks, and, only where there are
                                                 any, its other blocks in their order

Binary blocks (images, audio, blobs) and long texts of resources beyond 16 KiB never stand in a value: they are kept as
artifacts, and a block says which, with size and sha256. Beside structured content every binary block is kept so. Where
nothing can be kept, the block says why, and the outcome is `truncated`: what the call did is answered all the same.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from toolhub_service.adapters.shortening import kept_json
from toolhub_service.domain.artifact import OCTETS, ArtifactRef
from toolhub_service.domain.artifact_ports import ArtifactDesk
from toolhub_service.domain.call import Call, GrantedCall
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome

BLOCKS_MAX: Final = 1_000
INLINE_MAX_BYTES: Final = 16 * 1024
"""Of base64, or of a resource's text."""
RAW_MAX_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 256 * 1024
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}(; ?[\x20-\x7e]{1,100})?")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


class Answerer(NamedTuple):
    """Who answered, for evidence; what it says of itself is untrusted and bounded."""

    server: str = ""
    protocol: str = ""


def text_of(result: JsonObject) -> str:
    """The text blocks of a result, joined by line breaks."""
    return "\n".join(str(block["text"]) for block in _blocks(result) if _is_text(block))


def is_result(result: JsonObject) -> bool:
    """Whether it has what a result must have at the least."""
    return isinstance(result.get("content"), list | tuple) or "structuredContent" in result


async def outcome_of(
    result: JsonObject, call: GrantedCall, by: Answerer, desk: ArtifactDesk | None, *, keep_raw: bool = False
) -> Outcome:
    """`desk`: where what is too large for a value goes; None: nowhere."""
    blocks = _blocks(result)
    others = [block for block in blocks[:BLOCKS_MAX] if not _is_text(block)]
    is_structured = result.get("structuredContent") is not None or (
        "structuredContent" in result and bool(call.spec.output_schema)
    )
    keeping = _Keeping(call.call, desk, 0 if is_structured else INLINE_MAX_BYTES)
    shown = [await keeping.shown(block) for block in others] if others else []
    value: JsonValue = result.get("structuredContent")
    if not is_structured:
        text = "\n".join([str(block["text"]) for block in blocks[:BLOCKS_MAX] if _is_text(block)])
        value = {"text": text, "content": shown} if shown else {"text": text}
    dropped = max(0, len(blocks) - BLOCKS_MAX)
    return Outcome(
        value=value,
        evidence=(_evidence(call, by, is_structured=is_structured, others=len(others), dropped=dropped),),
        artifacts=tuple(keeping.artifacts),
        truncated=keeping.is_incomplete or dropped > 0,
        raw=kept_json(result, RAW_MAX_BYTES) if keep_raw else None,
    )


class _Keeping:
    """The large parts of one result on their way into artifacts."""

    def __init__(self, call: Call, desk: ArtifactDesk | None, inline_max_bytes: int) -> None:
        self._call = call
        self._desk = desk
        self._inline_max_bytes = inline_max_bytes
        self.artifacts: list[ArtifactRef] = []
        self.is_incomplete = False

    async def shown(self, block: JsonObject) -> JsonObject:
        """The block as a value may hold it."""
        resource = block.get("resource")
        if isinstance(resource, Mapping):
            return {**block, "resource": await self._lightened(resource, "blob", "text")}
        return await self._lightened(block, "data")

    async def _lightened(self, holder: JsonObject, *places: str) -> JsonObject:
        """Without what is too large; whatever else it says stays."""
        place = next((place for place in places if isinstance(holder.get(place), str)), "")
        carried = holder.get(place)
        limit = INLINE_MAX_BYTES if place == "text" else self._inline_max_bytes
        if not isinstance(carried, str) or len(carried) <= limit:
            return holder
        rest = {key: value for key, value in holder.items() if key != place}
        data = carried.encode("utf-8", "replace") if place == "text" else _decoded(carried)
        if data is None:
            self.is_incomplete = True
            return {**rest, "dropped": "it is not base64"}
        facts: JsonObject = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return {**rest, **facts, **await self._kept(data, holder)}

    async def _kept(self, data: bytes, holder: JsonObject) -> JsonObject:
        """What became of the bytes. An effect that was had is answered, whatever becomes of what it brought."""
        if self._desk is None:
            self.is_incomplete = True
            return {"dropped": "this hub keeps no artifacts"}
        try:
            artifact = await self._desk.keep(
                _chunks(data), call=self._call, media_type=_media_type(holder), name=_file_name(holder)
            )
        except ToolFailure as failure:
            self.is_incomplete = True
            return {"dropped": f"it could not be kept: {failure.error.kind.value}"}
        self.artifacts.append(artifact.ref)
        return {"artifact": artifact.artifact_id}


def _blocks(result: JsonObject) -> Sequence[JsonObject]:
    content = result.get("content")
    if not isinstance(content, list | tuple):
        return ()
    return [block for block in content if isinstance(block, Mapping)]


def _is_text(block: JsonObject) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def _decoded(base64: str) -> bytes | None:
    try:
        return binascii.a2b_base64(base64)
    except ValueError:
        return None


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]


def _media_type(holder: JsonObject) -> str:
    said = holder.get("mimeType")
    return said if isinstance(said, str) and _MEDIA_TYPE.fullmatch(said) else OCTETS


def _file_name(holder: JsonObject) -> str:
    """What the last part of a resource's URI calls it, where that is harmless."""
    uri = holder.get("uri")
    name = uri.rpartition("/")[2] if isinstance(uri, str) else ""
    return name if _FILE_NAME.fullmatch(name) else ""


def _evidence(call: GrantedCall, by: Answerer, *, is_structured: bool, others: int, dropped: int) -> Evidence:
    spec = call.spec
    attributes = {
        "source": spec.source,
        "server": by.server,
        "protocol": by.protocol,
        "remote_tool": spec.resource_id,
        "structured": "true" if is_structured else "false",
    }
    if others:
        attributes["other_blocks"] = str(others)
    if dropped:
        attributes["dropped_blocks"] = str(dropped)
    return Evidence(
        EvidenceType.TOOL,
        call.call.call_id,
        f"{spec.name} answered{f' by {by.server}' if by.server else ''}",
        attributes=attributes,
    )
