"""core/util.text.truncate: the beginning of a text, with a marker where it was cut."""

from __future__ import annotations

import unicodedata
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, Example
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

_JOINER = "\u200d"
_BACK_MOST = 32
"""Characters to give up for the sake of a whole grapheme; longer stacks of marks are an attack, not writing."""


class TextTruncate(Tool["TextTruncate.In", "TextTruncate.Out"]):
    name = "core/util.text.truncate"
    description = (
        "Cut a text to at most maxChars characters, the marker included; a shorter text comes back unchanged. "
        "Accents and emoji are not cut in half. Use it to save tokens before passing text on."
    )
    tags = ("text", "truncate", "shorten", "cut", "util")
    annotations = Annotations(read_only=True, idempotent=True)
    examples = (Example("Cut to 20 characters", {"text": "A sentence that is longer than that.", "maxChars": 20}),)

    class In(ToolInput, frozen=True):
        text: Annotated[str, Meta(description="What to cut.")]
        max_chars: Annotated[int, Meta(description="Longest allowed result in characters (code points).", ge=1)]
        marker: Annotated[str, Meta(description="Put where the text was cut; may be empty.", max_length=100)] = "…"

    class Out(ToolOutput, frozen=True):
        text: str
        truncated: bool
        total_chars: int

    async def run(self, args: TextTruncate.In, context: ToolContext) -> TextTruncate.Out:
        text, cut = truncate(args.text, args.max_chars, args.marker)
        context.truncated = cut
        context.proves(EvidenceType.TEXT, "text", f"Kept {len(text)} of {len(args.text)} characters.")
        return self.Out(text=text, truncated=cut, total_chars=len(args.text))


def truncate(text: str, max_chars: int, marker: str) -> tuple[str, bool]:
    """The text, or its beginning and the marker in `max_chars` characters; a marker that leaves no room is left out."""
    if len(text) <= max_chars:
        return text, False
    if len(marker) >= max_chars:
        marker = ""
    return text[: _boundary(text, max_chars - len(marker))] + marker, True


def _boundary(text: str, at: int) -> int:
    """The last place at or before `at` that does not part a character from its marks, joiners or its flag's other half.

    A simplification of UAX #29: enough for accents, emoji sequences and flags, without tables.
    """
    lowest = max(1, at - _BACK_MOST)
    for place in range(at, lowest - 1, -1):
        if not _belongs_together(text, place):
            return place
    return at


def _belongs_together(text: str, place: int) -> bool:
    before, after = text[place - 1], text[place]
    if _JOINER in (before, after) or _is_extension(after):
        return True
    if before == "\r" and after == "\n":
        return True
    return _is_flag_letter(after) and _flag_letters_before(text, place) % 2 == 1


def _is_extension(char: str) -> bool:
    """Combining marks, variation selectors and skin tones."""
    return unicodedata.category(char) in ("Mn", "Me", "Mc") or "\U0001f3fb" <= char <= "\U0001f3ff"


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _flag_letters_before(text: str, place: int) -> int:
    count = 0
    while count < min(place, _BACK_MOST) and _is_flag_letter(text[place - 1 - count]):
        count += 1
    return count
