"""The content blocks of an upstream MCP server, as a client of the hub gets them: images, not their base64 as text.

Within the hub an answer is a value, which guards and records can check; `adapters/mcp/calling.py` describes it, and
`ToolResult.said` has the blocks that the value lacks. Large binary content is stored as an artifact and put back into
its block here, as far as one answer may hold it; a link stands for the rest.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, cast

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import ToolResult
from toolhub_service.runtime.artifacts.service import Artifacts

EMBEDDED_MAX_BYTES: Final = 512 * 1024
"""Limit of bytes from artifacts in one answer: an answer is one event, of which clients accept 1 MiB."""

_TEXT: Final = "text"
_CONTENT: Final = "content"
_ARTIFACT: Final = "artifact"
_OURS: Final = frozenset({_ARTIFACT, "bytes", "sha256", "dropped"})
# The protocol's ContentBlock types, with their required members.
_BLOCKS: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
    "resource": ("resource",),
}


def is_blocks(answer: ToolResult) -> bool:
    """Return whether the value consists only of content blocks: the server sent no structured content."""
    value = answer.value
    if not isinstance(value, dict) or not value.keys() <= {_TEXT, _CONTENT}:
        return False
    return any(each.attributes.get("structured") == "false" for each in answer.evidence)


def content_of(answer: ToolResult) -> Sequence[JsonObject] | None:
    """Return all blocks of the server in their order; None when the value says all of it."""
    if answer.error is not None:
        details = answer.error.details
        return _mappings(details.get(_CONTENT)) if "structuredContent" in details or _CONTENT in details else None
    said = _mappings((answer.said or {}).get(_CONTENT))
    if said or not is_blocks(answer):
        return said or None
    value = cast("dict[str, JsonValue]", answer.value)
    text = value.get(_TEXT)
    blocks = _mappings(value.get(_CONTENT))
    # Results of earlier versions keep texts apart from the other blocks.
    if not any(block.get("type") == "text" for block in blocks) and (text or not blocks):
        return [{"type": "text", "text": text}, *blocks]
    return blocks


def text_bytes_of(content: Sequence[JsonObject]) -> int:
    """Return how many bytes of text a model reads in these blocks."""
    return sum(len(_text_of(block).encode("utf-8", "replace")) for block in content)


def _text_of(block: JsonObject) -> str:
    resource = block.get("resource")
    text = (resource if isinstance(resource, Mapping) else block).get(_TEXT)
    return text if isinstance(text, str) else ""


class Taken:
    """What one answer takes of blocks and artifacts."""

    def __init__(self, principal_id: str, artifacts: Artifacts, text_max_bytes: int, rest: str) -> None:
        """`rest`: where the whole is, as the end of a mark."""
        self._principal_id = principal_id
        self._artifacts = artifacts
        self._left_bytes = EMBEDDED_MAX_BYTES
        self._left_text_bytes = text_max_bytes
        self._rest = rest
        self.ids: set[str] = set()

    async def blocks(self, content: Sequence[JsonObject]) -> list[dict[str, Any]]:
        """Return the blocks in their order."""
        shown = [await self._block(each) for each in content]
        return [block for block in shown if block is not None]

    async def _block(self, shown: JsonObject) -> dict[str, Any] | None:
        """Return the block of the protocol; a text for a missing one; None if a link replaces it."""
        kind = str(shown.get("type"))
        if kind == "resource" and isinstance(resource := shown.get("resource"), Mapping):
            place = _TEXT if str(resource.get("mimeType", "")).startswith("text/") else "blob"
            held = await self._whole(resource, place)
            return None if held is None else {**shown, "resource": self._cut(held)}
        place = {"image": "data", "audio": "data", "text": _TEXT}.get(kind, "")
        made = await self._whole(shown, place) if place else dict(shown)
        if kind not in _BLOCKS:
            # A kind of the server's own, such as "json": a model can read it all the same.
            return self._cut({"type": "text", "text": json.dumps(made, ensure_ascii=False)})
        if made is not None and not all(isinstance(made.get(key), str) for key in _BLOCKS[kind]):
            dropped = made.get("dropped", "its server sent it in a form that the protocol does not have")
            return {"type": "text", "text": f"[{kind[:20]}: left out, {dropped}]"}
        return None if made is None else self._cut(made)

    def _cut(self, holder: dict[str, Any]) -> dict[str, Any]:
        """Return the holder with as much of its text as is left to be shown."""
        text = holder.get(_TEXT)
        if not isinstance(text, str):
            return holder
        data = text.encode("utf-8", "replace")
        if len(data) <= self._left_text_bytes:
            self._left_text_bytes -= len(data)
            return holder
        kept = data[: self._left_text_bytes].decode("utf-8", "ignore")
        self._left_text_bytes = 0
        mark = f"[cut: {len(text) - len(kept):,} of {len(text):,} characters left out{self._rest}]"
        return {**holder, _TEXT: f"{kept}… {mark}" if kept else mark}

    async def _whole(self, holder: JsonObject, place: str) -> dict[str, Any] | None:
        artifact_id = holder.get(_ARTIFACT)
        if not isinstance(artifact_id, str):
            return dict(holder)
        left_bytes = self._left_text_bytes if place == _TEXT else self._left_bytes
        with suppress(ToolFailure):  # the link, which replaces it, says the same
            artifact = await self._artifacts.open(self._principal_id, artifact_id)
            # Checked before it is read, so that an oversized one costs no memory.
            if artifact.size_bytes <= left_bytes:
                if place != _TEXT:
                    self._left_bytes -= artifact.size_bytes
                data = bytearray()
                async with aclosing(cast(Any, self._artifacts.read(artifact))) as chunks:
                    async for chunk in chunks:
                        data += chunk
                self.ids.add(artifact_id)
                kept = {key: value for key, value in holder.items() if key not in _OURS}
                # Replaced: a server may declare bytes as text that are not UTF-8, and an answer must stay JSON.
                carried = data.decode("utf-8", "replace") if place == _TEXT else base64.b64encode(data).decode()
                return {**kept, place: carried}
        return None


def _mappings(value: JsonValue) -> Sequence[JsonObject]:
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return [item for item in items if isinstance(item, Mapping)]
