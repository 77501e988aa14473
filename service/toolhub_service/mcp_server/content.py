"""What an upstream MCP server answered, as content blocks again: a client's model is to see the image, not its base64.

Within the hub such an answer is a value, which guards and records know how to judge (`adapters/mcp/calling.py` says
which): texts joined, other blocks in their order, what is binary and large kept as an artifact. Blocks come out of that
value, never around it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, cast

from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import ToolResult
from toolhub_service.mcp_server.calls import resource_link
from toolhub_service.runtime.artifacts import Artifacts

EMBEDDED_MAX_BYTES: Final = 512 * 1024
"""Of all that is taken out of artifacts into one answer: an answer is one event, of which clients take 1 MiB."""

_TEXT: Final = "text"
_CONTENT: Final = "content"
_ARTIFACT: Final = "artifact"
_OURS: Final = frozenset({_ARTIFACT, "bytes", "sha256", "dropped"})
# As the protocol has them (ContentBlock), with what each must have.
_BLOCKS: Final[Mapping[str, tuple[str, ...]]] = {
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
    "resource": ("resource",),
}


def is_blocks(answer: ToolResult) -> bool:
    """Whether the value is made of content blocks alone: the server sent no structured content."""
    value = answer.value
    if not isinstance(value, dict) or not value.keys() <= {_TEXT, _CONTENT}:
        return False
    return any(each.attributes.get("structured") == "false" for each in answer.evidence)


async def blocks_of(answer: ToolResult, principal_id: str, artifacts: Artifacts) -> list[dict[str, Any]]:
    """The blocks, with as much of what was kept as an artifact as one answer may hold, and links to the rest."""
    value = cast("dict[str, JsonValue]", answer.value)
    text, others = value.get(_TEXT), _items(value.get(_CONTENT))
    taken = _Taken(principal_id, artifacts)
    blocks = [await taken.block(each) for each in others if isinstance(each, Mapping)]
    shown: list[dict[str, Any]] = [{"type": "text", "text": text}] if text or not blocks else []
    shown += [block for block in blocks if block is not None]
    return shown + [resource_link(ref) for ref in answer.artifacts if ref.artifact_id not in taken.ids]


class _Taken:
    """What one answer takes out of artifacts."""

    def __init__(self, principal_id: str, artifacts: Artifacts) -> None:
        self._principal_id = principal_id
        self._artifacts = artifacts
        self._left_bytes = EMBEDDED_MAX_BYTES
        self.ids: set[str] = set()

    async def block(self, shown: JsonObject) -> dict[str, Any] | None:
        """The block as the protocol has it; words for one that is not there; None where a link stands for it."""
        kind = str(shown.get("type"))
        if kind == "resource" and isinstance(resource := shown.get("resource"), Mapping):
            place = "text" if str(resource.get("mimeType", "")).startswith("text/") else "blob"
            held = await self._whole(resource, place)
            return None if held is None else {**shown, "resource": held}
        made = await self._whole(shown, "data") if kind in ("image", "audio") else dict(shown)
        if made is not None and not all(isinstance(made.get(key), str) for key in _BLOCKS.get(kind, ("",))):
            dropped = made.get("dropped", "its server sent it in a form that the protocol does not have")
            return {"type": "text", "text": f"[{kind[:20]}: left out, {dropped}]"}
        return made

    async def _whole(self, holder: JsonObject, place: str) -> dict[str, Any] | None:
        artifact_id = holder.get(_ARTIFACT)
        if not isinstance(artifact_id, str):
            return dict(holder)
        with suppress(ToolFailure):  # the link, which stands instead, says the same
            artifact = await self._artifacts.open(self._principal_id, artifact_id)
            if artifact.size_bytes <= self._left_bytes:
                self._left_bytes -= artifact.size_bytes
                data = bytearray()
                async with aclosing(cast(Any, self._artifacts.read(artifact))) as chunks:
                    async for chunk in chunks:
                        data += chunk
                self.ids.add(artifact_id)
                kept = {key: value for key, value in holder.items() if key not in _OURS}
                carried = data.decode("utf-8", "replace") if place == "text" else base64.b64encode(data).decode()
                return {**kept, place: carried}
        return None


def _items(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
