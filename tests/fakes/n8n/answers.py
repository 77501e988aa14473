"""HTTP answers, and how n8n words errors: with a stack trace that contains paths of its machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

JSON = "application/json; charset=utf-8"
HTML = "text/html; charset=utf-8"
_SOURCES = "/opt/n8n/node_modules/"


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    content_type: str | None = JSON
    """None: no such header at all, as n8n does in its 403."""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class GoneError(Exception):
    """There will be no answer: the connection closes."""


def json_answer(value: Any, status: int = 200) -> Answer:
    """JSON."""
    return Answer(status, json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def message(status: int, text: str) -> Answer:
    """How the public API says no."""
    return json_answer({"message": text}, status)


def problem(
    status: int, text: str, *frames: str, hint: str = "", kind: str = "ResponseError", code: int = -1
) -> Answer:
    """How webhooks and the internal API say no.

    Args:
        status: of HTTP.
        text: the message.
        frames: `function (file:line:column)`, innermost first.
        hint: what n8n would show a person at the editor.
        kind: the class of the error.
        code: -1: the status.
    """
    body: dict[str, Any] = {"code": status if code < 0 else code, "message": text}
    if hint:
        body["hint"] = hint
    return json_answer(body | {"stacktrace": trace(kind, text, *frames)}, status)


def trace(kind: str, text: str, *frames: str) -> str:
    """A stack trace as node prints it."""
    return "\n".join([f"{kind}: {text}", *(f"    at {frame.replace('~/', _SOURCES)}" for frame in frames)])
