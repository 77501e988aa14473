"""The value of a result, in one shape for all tools: `{"text": …}`, with `content` and `artifact` if there are any.

`text` is for the model; `content` has the blocks of a result that is more than one text; `artifact` is the second
half of `content_and_artifact`: itself where it is JSON and small enough, else a description.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from langchain_core.messages import ToolMessage
from pydantic import BaseModel

from toolhub_service.adapters.upstream import as_string
from toolhub_service.schema.repaired_json import repair_value


class TooLarge(Exception):
    """The text or the content exceeds the limit of a result."""


class NotAResult(Exception):
    """The value has no meaning outside LangChain, such as a command to a graph; the message says what it is."""


def value_of(given: Any, max_bytes: int) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """Return the value, its status, `success` or `error`, and what was repaired in it. Raises TooLarge, NotAResult."""
    messages = given if isinstance(given, list) else [given]
    if not messages or not all(isinstance(message, ToolMessage) for message in messages):
        odd = next((message for message in messages if not isinstance(message, ToolMessage)), given)
        raise NotAResult(f"it returned a {type(odd).__name__}, which only a LangChain graph can use")
    contents = [message.content for message in messages]
    content: Any
    content, repairs = repair_value(contents[0] if len(contents) == 1 else _flat(contents))
    value = _value(content, max_bytes)
    artifacts = [message.artifact for message in messages if message.artifact is not None]
    if artifacts:
        value["artifact"] = _artifact(artifacts[0] if len(artifacts) == 1 else artifacts, max_bytes)
    status = "error" if any(message.status == "error" for message in messages) else "success"
    return value, status, repairs


def _flat(contents: Sequence[Any]) -> list[Any]:
    return [block for content in contents for block in ([content] if isinstance(content, str) else content)]


def _value(content: str | list[Any], max_bytes: int) -> dict[str, Any]:
    if isinstance(content, str):
        data = content.encode("utf-8", "replace")
        if len(data) > max_bytes:
            raise TooLarge
        return {"text": content if content.isascii() else data.decode()}
    # Through JSON and back: whatever classes a tool returned, only plain values leave the worker.
    data = orjson.dumps(content, default=_describe_value, option=orjson.OPT_NON_STR_KEYS)
    if len(data) > max_bytes:
        raise TooLarge
    blocks = orjson.loads(data)
    return {"text": "\n".join(filter(None, map(_text, blocks))), "content": blocks}


def _text(block: Any) -> str:
    if isinstance(block, str):
        return block
    return as_string(block.get("text")) if isinstance(block, dict) else ""


def _artifact(artifact: Any, max_bytes: int) -> Any:
    try:
        data = orjson.dumps(repair_value(artifact).value, default=_plain)
    except (TypeError, ValueError, RecursionError):
        return _describe_value(artifact)
    if len(data) > max_bytes:
        return _describe_value(artifact) | {"bytes": len(data), "omitted": f"larger than {max_bytes} bytes"}
    return orjson.loads(data)


def _plain(part: Any) -> Any:
    if isinstance(part, BaseModel):
        return repair_value(part.model_dump(mode="json")).value
    raise TypeError


def _describe_value(thing: Any) -> dict[str, Any]:
    """Return a description of a value that is not JSON."""
    of = type(thing)
    described: dict[str, Any] = {"type": f"{of.__module__}.{of.__qualname__}", "omitted": "not JSON"}
    if isinstance(thing, bytes | bytearray | memoryview):
        described["bytes"] = len(thing)
    return described
