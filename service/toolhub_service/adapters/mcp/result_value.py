"""The value of a result (CallToolResult, as JSON). It has one of two shapes:

    structured content, as it is        where the tool sent some, or declares some and sent it as a text
    {"text": "…", "content": [...]}     else: its text blocks joined by line breaks, and all its blocks in
                                        their order where others than plain texts are among them

Blocks and `_meta` that the value does not have are in `Outcome.said`.

Binary blocks (images, audio, blobs) and texts of resources beyond 16 KiB are kept as artifacts, and a block says
which, with size and sha256; beside structured content all binary blocks are kept so. Where nothing can be kept, the
block says why, and the outcome is `truncated`.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final

from toolhub_service.adapters.mcp.answers import (
    is_plain_text,
    own_meta,
    read_as_declared,
    said_beside,
)
from toolhub_service.adapters.mcp.transports.repairs import take_remarks
from toolhub_service.adapters.upstream import (
    as_object,
    as_string,
    keep_bytes,
    keep_json,
)
from toolhub_service.domain.artifact import ArtifactRef, ArtifactService
from toolhub_service.domain.call import Call, GrantedCall
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome
from toolhub_service.guards.secrets import Redact
from toolhub_service.schema.repaired_json import repair_evidence

BLOCKS_MAX: Final = 1_000
INLINE_MAX_BYTES: Final = 16 * 1024  # of base64, or of a resource's text
_BESIDE_MAX_CHARS: Final = 256 * 1024  # of texts beside a value; an MCP client is never sent more
ERROR_TEXT_MAX_BYTES: Final = 4 * 1024  # of a resource's text in an error
RAW_MAX_BYTES: Final = 64 * 1024
_HUBS_OWN: Final = frozenset({"artifact", "bytes", "sha256", "dropped"})
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def text_of(result: JsonObject) -> str:
    """Return the text blocks of a result, joined by line breaks."""
    return "\n".join(str(block["text"]) for block in blocks_of(result) if _is_text(block))


def is_result(result: JsonObject) -> bool:
    """Return whether it has the members that a result needs at least."""
    return isinstance(result.get("content"), list | tuple) or "structuredContent" in result


async def outcome_of(
    result: JsonObject,
    call: GrantedCall,
    artifacts: ArtifactService | None,
    *,
    server: str,
    protocol: str,
    redact: Redact = str,
    keep_raw: bool = False,
) -> Outcome:
    """Return the outcome of a result. `artifacts`: stores what is too large for a value; None: nothing is stored.
    `server`: its own name for itself, bounded. Raises ToolFailure OUTPUT_SCHEMA_INVALID for a text in place of the
    structured content that the tool declares."""
    result, repairs = take_remarks(result)
    # Each block is processed on the event loop, so their number is bounded.
    sent = blocks_of(result)
    blocks = sent[:BLOCKS_MAX]
    others = [block for block in blocks if not _is_text(block)]
    # A null counts only where the tool's schema declares structured content; other servers send it for "none".
    is_structured = result.get("structuredContent") is not None or (
        "structuredContent" in result and bool(call.spec.output_schema)
    )
    keeping = LargeParts(call.call, artifacts, 0 if is_structured else INLINE_MAX_BYTES)
    is_plain = not others and all(map(is_plain_text, blocks))
    shown = blocks if is_plain else [await keeping.block_value(unkept(block)) for block in blocks]
    value: JsonValue = result.get("structuredContent")
    beside: Sequence[JsonObject] = shown if is_structured or (is_plain and len(shown) > 1) else ()
    if not is_structured:
        plain: JsonObject = {"text": "\n".join([str(block["text"]) for block in blocks if _is_text(block)])}
        value = plain if is_plain else {**plain, "content": list(shown)}
        if call.spec.output_schema:
            value, is_structured = read_as_declared(call.spec, value, redact)
            beside = shown if is_structured else beside
    if sum(len(str(block["text"])) for block in beside if _is_text(block)) > _BESIDE_MAX_CHARS:
        # The value has the texts too, unless it is structured: then each large one becomes an artifact.
        beside = [await keeping.contents(block) for block in beside] if is_structured else ()
    dropped = len(sent) - len(blocks)
    attributes = {
        "source": call.spec.source,
        "server": server,
        "protocol": protocol,
        "remote_tool": call.spec.resource_id,
        "structured": "true" if is_structured else "false",
    }
    if others:
        attributes["other_blocks"] = str(len(others))
    if dropped:
        attributes["dropped_blocks"] = str(dropped)
    summary = f"{call.spec.name} answered{f' by {server}' if server else ''}"
    proof = Evidence(EvidenceType.TOOL, call.call.call_id, summary, attributes=attributes)
    return Outcome(
        value=value,
        evidence=(proof, *repair_evidence(call.call.call_id, repairs)),
        artifacts=tuple(keeping.refs),
        truncated=keeping.is_incomplete or dropped > 0,
        raw=keep_json(result, RAW_MAX_BYTES) if keep_raw else None,
        said=said_beside(value, beside, own_meta(result)),
    )


def unkept(block: JsonObject) -> JsonObject:
    """Return the block without the members by which only the hub says that a part became an artifact or could not."""
    # Otherwise a server could claim an artifact that the hub never stored.
    plain = {place: member for place, member in block.items() if place not in _HUBS_OWN}
    if (resource := as_object(plain.get("resource"))) is not None:
        plain["resource"] = {place: member for place, member in resource.items() if place not in _HUBS_OWN}
    return plain


class LargeParts:
    """Moves the large parts of one result into artifacts."""

    def __init__(
        self,
        call: Call,
        artifacts: ArtifactService | None,
        inline_max_bytes: int,
        text_max_bytes: int = INLINE_MAX_BYTES,
    ) -> None:
        """Up to `inline_max_bytes` of base64 and `text_max_bytes` of a resource's text stay in the result."""
        self._call = call
        self.artifacts = artifacts
        self._inline_max_bytes = inline_max_bytes
        self._text_max_bytes = text_max_bytes
        self.refs: list[ArtifactRef] = []
        self.is_incomplete = False

    async def block_value(self, block: JsonObject) -> JsonObject:
        """Return the block in a form that a value can hold; a text stays, as the whole value is cut."""
        resource = as_object(block.get("resource"))
        if resource is not None:
            return {**block, "resource": await self.contents(resource)}
        return block if _is_text(block) else await self._lighten(block, "data")

    async def contents(self, resource: JsonObject) -> JsonObject:
        """Return the contents of a resource in a form that a value can hold."""
        return await self._lighten(resource, "blob", "text")

    async def _lighten(self, holder: JsonObject, *places: str) -> JsonObject:
        """Return the holder without the members that are too large; the others stay."""
        place = next((place for place in places if isinstance(holder.get(place), str)), "")
        carried = as_string(holder.get(place))
        if len(carried) <= (self._text_max_bytes if place == "text" else self._inline_max_bytes):
            return holder
        rest = {key: value for key, value in holder.items() if key != place}
        try:
            data = carried.encode("utf-8", "replace") if place == "text" else binascii.a2b_base64(carried)
        except ValueError:
            self.is_incomplete = True
            return {**rest, "dropped": "it is not base64"}
        media_type = as_string(holder.get("mimeType"))
        facts, refs = await keep_bytes(data, self._call, self.artifacts, media_type=media_type, name=_file_name(holder))
        self.refs += refs
        self.is_incomplete |= not refs
        return {**rest, **facts}


def blocks_of(result: JsonObject) -> Sequence[JsonObject]:
    content = result.get("content")
    if not isinstance(content, list | tuple):
        return ()
    # Some servers send bare strings, which can only be meant as texts.
    texts = ({"type": "text", "text": block} if isinstance(block, str) else block for block in content)
    return [block for block in texts if isinstance(block, Mapping)]


def _is_text(block: JsonObject) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def _file_name(holder: JsonObject) -> str:
    """Return the last part of a resource's URI as a file name if it is harmless, else an empty one."""
    name = as_string(holder.get("uri")).rpartition("/")[2]
    return name if _FILE_NAME.fullmatch(name) else ""


def is_finite(number: float) -> bool:
    """Return whether a double can hold it: an integer of a server may have any number of digits."""
    try:
        return isfinite(number)
    except OverflowError:
        return False
