"""From what a LangChain tool gives to the hub's value: `{"text": …}`, with `content` and `artifact` if there are any.

One shape for all tools. `text` is what a model reads; `content` are the blocks of a result that is more than one text;
`artifact` is the second half of `content_and_artifact`: itself where it is JSON and not too large, else a description.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from langchain_core.messages import ToolMessage
from pydantic import BaseModel


class TooLarge(Exception):
    """The text or the content is larger than what a result may be."""


class NotAResult(Exception):
    """Something that means nothing outside LangChain, such as a command to a graph; the message says what."""


def value_of(given: Any, max_bytes: int) -> tuple[dict[str, Any], str]:
    """The value and its status, `success` or `error`. Raises TooLarge, NotAResult."""
    messages = given if isinstance(given, list) else [given]
    if not messages or not all(isinstance(message, ToolMessage) for message in messages):
        odd = next((message for message in messages if not isinstance(message, ToolMessage)), given)
        raise NotAResult(f"it gave a {type(odd).__name__}, which only a LangChain graph understands")
    contents = [message.content for message in messages]
    value = _value(contents[0] if len(contents) == 1 else _flat(contents), max_bytes)
    artifacts = [message.artifact for message in messages if message.artifact is not None]
    if artifacts:
        value["artifact"] = _artifact(artifacts[0] if len(artifacts) == 1 else artifacts, max_bytes)
    status = "error" if any(message.status == "error" for message in messages) else "success"
    return value, status


def _flat(contents: Sequence[Any]) -> list[Any]:
    return [block for content in contents for block in ([content] if isinstance(content, str) else content)]


def _value(content: str | list[Any], max_bytes: int) -> dict[str, Any]:
    if isinstance(content, str):
        data = content.encode("utf-8", "replace")
        if len(data) > max_bytes:
            raise TooLarge
        return {"text": content if content.isascii() else data.decode()}
    data = orjson.dumps(content, default=_described, option=orjson.OPT_NON_STR_KEYS)
    if len(data) > max_bytes:
        raise TooLarge
    blocks = orjson.loads(data)
    return {"text": "\n".join(filter(None, map(_text, blocks))), "content": blocks}


def _text(block: Any) -> str:
    if isinstance(block, str):
        return block
    text = block.get("text") if isinstance(block, dict) else None
    return text if isinstance(text, str) else ""


def _artifact(artifact: Any, max_bytes: int) -> Any:
    try:
        data = orjson.dumps(artifact, default=_plain)
    except (TypeError, ValueError, RecursionError):
        return _described(artifact)
    if len(data) > max_bytes:
        return _described(artifact) | {"bytes": len(data), "omitted": f"larger than {max_bytes} bytes"}
    return orjson.loads(data)


def _plain(part: Any) -> Any:
    if isinstance(part, BaseModel):
        return part.model_dump(mode="json")
    raise TypeError


def _described(thing: Any) -> dict[str, Any]:
    """What stands for something that is not JSON."""
    of = type(thing)
    described: dict[str, Any] = {"type": f"{of.__module__}.{of.__qualname__}", "omitted": "not JSON"}
    if isinstance(thing, bytes | bytearray | memoryview):
        described["bytes"] = len(thing)
    return described
