"""What has changed between two definitions, as a person reads it: a unified diff of indented JSON.

Keys are sorted, hidden characters escaped, and a text breaks where its own lines end, so that one changed sentence of a
long description is one changed line. Both sides are cut before they are compared: difflib's worst case is quadratic,
and what is compared was written by a stranger.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator

from toolhub_service.domain.json import JsonObject
from toolhub_service.guards.hidden_characters import escaped

DIFF_MAX_BYTES = 64 * 1024
_COMPARED_MAX_CHARS = 128 * 1024
_COMPARED_MAX_LINES = 1_500
_ESCAPE = re.compile(r"\\(.)")


def pin_diff(before: JsonObject, after: JsonObject, *, approved: str, seen: str) -> str:
    """Unified diff of at most 64 KiB, empty when both are equal; `approved` and `seen` name the two sides."""
    lines = difflib.unified_diff(_lines(before), _lines(after), approved, seen, lineterm="")
    return "\n".join(_bounded(lines))


def _lines(definition: JsonObject) -> list[str]:
    text = json.dumps(definition, indent=2, sort_keys=True, ensure_ascii=False)
    shown = escaped(text[:_COMPARED_MAX_CHARS])[:_COMPARED_MAX_CHARS]
    lines = _ESCAPE.sub(lambda found: found.group() + ("\n" if found.group(1) == "n" else ""), shown).splitlines()
    if len(text) > _COMPARED_MAX_CHARS or len(lines) > _COMPARED_MAX_LINES:
        return [*lines[:_COMPARED_MAX_LINES], f"… cut; the whole definition has {len(text):,} characters"]
    return lines


def _bounded(lines: Iterator[str]) -> Iterator[str]:
    left = DIFF_MAX_BYTES - 100
    for line in lines:
        left -= len(line.encode()) + 1
        if left < 0:
            yield "… the difference goes on; it was cut at 64 KiB"
            return
        yield line
