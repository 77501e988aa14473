"""The beginning of a text that is too long to be shown: whole sentences, and a mark that says how much is left out.

Half a sentence can say the opposite of the whole one, and a reader cannot tell that it was cut.
"""

from __future__ import annotations

import re
from typing import Final

_SENTENCE_END: Final = re.compile(r"[.!?…](?=\s)|[。！？]|\n")
_WORD_END: Final = re.compile(r"\s+")


def excerpt(text: str, max_chars: int) -> str:
    """Return the text, or its whole sentences and a mark, at most `max_chars` characters together.

    A first sentence that does not fit ends after a word, and a first word that does not fit is cut. `max_chars` is 64
    or more, so that the mark leaves room for words.
    """
    if len(text) <= max_chars:
        return text
    room = text[: max(0, max_chars - len(_mark(len(text))))]
    ends = [found.end() for found in _SENTENCE_END.finditer(text, 0, len(room) + 1) if found.end() <= len(room)]
    words = [found.start() for found in _WORD_END.finditer(room)]
    kept = room[: ends[-1] if ends else words[-1] if words else len(room)].rstrip()
    return kept + _mark(len(text) - len(kept))


def _mark(left_out: int) -> str:
    return f"… [{left_out:,} more characters]"
