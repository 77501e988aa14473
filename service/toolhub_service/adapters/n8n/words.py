"""What n8n says, fit to be handed on: without stack traces, hints and paths of its machine, redacted, cut.

n8n's own errors carry `stacktrace` and `hint`; errors of nodes carry `stack` and the parameters of the node.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Final

from toolhub_service.domain.json import JsonValue
from toolhub_service.guards.redaction import Redact

EXCERPT_MAX_CHARS: Final = 2_000
MESSAGE_MAX_CHARS: Final = 500
_JUDGED_CHARS: Final = 8_000
"""What the redactor sees: more than is shown, so that no secret straddles the cut."""
_TRACES: Final = frozenset({"stacktrace", "stack", "hint"})
_MEMBERS_MAX: Final = 50
_DEPTH_MAX: Final = 4
_STACK: Final = re.compile(r"\n[ \t]+at .*", re.DOTALL)
_PLACE: Final = re.compile(
    r"(?<![\w/.:])(?:file://)?(?:/(?:app|data|etc|home|mnt|opt|root|srv|tmp|usr|var)|[A-Za-z]:\\)[^\s'\"()<>,;]*"
)
_TAGS: Final = re.compile(r"<(script|style)\b.*?(?:</\1>|\Z)|<[^<>]*>", re.DOTALL | re.IGNORECASE)


def quoted(text: str, redact: Redact, max_chars: int = EXCERPT_MAX_CHARS) -> str:
    """Somebody else's words: redacted, printable, without traces and paths, at most so many characters."""
    plain = _PLACE.sub("[path]", _STACK.sub("", text[:_JUDGED_CHARS]))
    clean = redact(plain)
    shown = "".join(char if char.isprintable() or char in "\n\t" else " " for char in clean).strip()
    return shown if len(shown) <= max_chars else f"{shown[: max_chars - 1]}…"


def said(body: bytes) -> tuple[str, JsonValue]:
    """What an error answer says, before it is redacted: its message or its text, and its JSON where it is some."""
    text = body[:_JUDGED_CHARS].decode("utf-8", "replace")
    value: JsonValue = None
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(body[: 8 * _JUDGED_CHARS])
        except (ValueError, RecursionError):
            value = None
    if isinstance(value, Mapping) and isinstance(value.get("message"), str):
        return str(value["message"]), value
    if value is not None:
        return json.dumps(_bare(value, _DEPTH_MAX), ensure_ascii=False), value
    if "<" in text and text.lstrip()[:1] == "<":
        return " ".join(html.unescape(_TAGS.sub(" ", text)).split()), None
    return text, None


def _bare(value: JsonValue, levels: int) -> JsonValue:
    if isinstance(value, Mapping):
        if not levels:
            return "…"
        members = [(name, member) for name, member in value.items() if name.lower() not in _TRACES]
        return {name: _bare(member, levels - 1) for name, member in members[:_MEMBERS_MAX]}
    if isinstance(value, list):
        return [_bare(item, levels - 1) for item in value[:_MEMBERS_MAX]] if levels else "…"
    return value
