"""What a tool's result says beside its value: blocks in their order, `_meta`, the parts of an error, JSON in a text.

The value is what the hub checks, cuts and shows over gRPC; MCP clients of the hub get the server's own blocks, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from toolhub_service.adapters.upstream import as_object, keep_json, quote_foreign, write_json
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.secrets import Redact
from toolhub_service.schema.repaired_json import read_repaired
from toolhub_service.schema.tool_schemas import for_tool

META_MAX_BYTES: Final = 16 * 1024
ERROR_TEXT_MAX_CHARS: Final = 16_000
"""Of all texts in the details of an error together."""
ERROR_BLOCKS_MAX: Final = 50
STRUCTURE_MAX_BYTES: Final = 64 * 1024
# Names that only the protocol or the hub may use.
_RESERVED: Final = ("toolhub/", "io.modelcontextprotocol/", "modelcontextprotocol.io/")
_SHORTEST_EXCERPT: Final = 64


def is_plain_text(block: JsonObject) -> bool:
    """Return whether the block is a text and nothing else, such as annotations."""
    return len(block) == 2 and block.get("type") == "text" and isinstance(block.get("text"), str)


def own_meta(holder: JsonObject) -> JsonObject:
    """Return the server's own entries of `_meta`; none where they are too large to be passed on."""
    meta = holder.get("_meta")
    if not isinstance(meta, Mapping):
        return {}
    own = {name: value for name, value in meta.items() if not name.startswith(_RESERVED)}
    return own if own and len(write_json(own) or b"x" * META_MAX_BYTES) < META_MAX_BYTES else {}


def said_beside(value: JsonValue, blocks: Sequence[JsonObject], meta: JsonObject) -> JsonObject | None:
    """Return `ToolResult.said`; `blocks`: all of them where the value does not have them."""
    said: dict[str, JsonValue] = {"_meta": meta} if meta else {}
    if blocks and not (len(blocks) == 1 and _is_json_of(blocks[0], value)):
        said["content"] = list(blocks)
    return said or None


def _is_json_of(block: JsonObject, value: JsonValue) -> bool:
    """Return whether the block only repeats structured content, as servers send it for older clients."""
    if not is_plain_text(block):
        return False
    repaired = read_repaired(str(block["text"]).encode("utf-8", "replace"))
    return repaired is not None and repaired.value == value


def read_as_declared(spec: ToolSpec, value: JsonObject, redact: Redact) -> tuple[JsonValue, bool]:
    """Return the value of a tool that declares an output schema and sent no structured content, and whether it was read
    from its text.

    Raises ToolFailure OUTPUT_SCHEMA_INVALID, with the text, for one that fits neither way.
    """
    text, validate = str(value["text"]), for_tool(spec).validate_output
    repaired = read_repaired(text.encode("utf-8", "replace"))
    if repaired is not None and not validate(repaired.value):
        return repaired.value, True
    if not validate(value):
        return value, False
    effect = " It may have had its effect: do not repeat it blindly." if spec.has_side_effects else ""
    said = quote_foreign(text, redact)
    message = f"{spec.name} sent no structuredContent, though it declares an output schema.{effect}"
    raise refuse(ErrorKind.OUTPUT_SCHEMA_INVALID, f"{message} It sent: {said}" if said else message)


def error_details(
    blocks: Sequence[JsonObject], structured: JsonValue, excerpt_chars: int, redact: Redact
) -> JsonObject:
    """Return the details of an error that a tool reports: what its message, an excerpt of the text, does not show."""
    details: dict[str, JsonValue] = {}
    if structured is not None:
        details["structuredContent"] = _clean_value(keep_json(structured, STRUCTURE_MAX_BYTES), redact)
    if len(blocks) > 1 or any(not is_plain_text(each) or len(str(each["text"])) > excerpt_chars for each in blocks):
        content = [_clean_value(keep_json(block, STRUCTURE_MAX_BYTES), redact) for block in _bound_blocks(blocks)]
        # Metadata that is large in all blocks together is no reason for an answer without end.
        details["content"] = content if len(write_json(content) or b"") <= 2 * STRUCTURE_MAX_BYTES else content[:1]
    return details


def _clean_value(value: JsonValue, redact: Redact) -> JsonValue:
    """Return the value with its texts as an error's message has them: redacted, without control characters."""
    if isinstance(value, str):
        return quote_foreign(value, redact, max(len(value), _SHORTEST_EXCERPT))
    if isinstance(value, Mapping):
        return {quote_foreign(name, redact): _clean_value(member, redact) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_value(item, redact) for item in value]
    return value


def _bound_blocks(blocks: Sequence[JsonObject]) -> Sequence[JsonObject]:
    left_chars = ERROR_TEXT_MAX_CHARS
    shown: list[JsonObject] = []
    for block in blocks[:ERROR_BLOCKS_MAX]:
        holder = as_object(block.get("resource")) or block
        if isinstance(text := holder.get("text"), str):
            text = excerpt(text, max(left_chars, _SHORTEST_EXCERPT))
            left_chars -= len(text)
            cut: JsonObject = {**holder, "text": text}
            shown.append(cut if holder is block else {**block, "resource": cut})
        else:
            shown.append(block)
    return shown


def reported_error(text: str, structured: JsonValue) -> str:
    """Return what a tool says of its error; its structured content where it sent no text."""
    if text or structured is None:
        return text
    return (write_json(structured) or b"").decode()
