"""Parts of a text that is too long to be shown: whole sentences, and a mark that says how much is left out.

Half a sentence can say the opposite of the whole one, and a reader cannot tell that it was cut.
"""

from __future__ import annotations

import re
from typing import Final

_SENTENCE_END: Final = re.compile(r"[.!?…](?=\s)|[。！？]|\n")
_WORD_END: Final = re.compile(r"\s+")
_BOTH_MIN_CHARS: Final = 192


def excerpt(text: str, max_chars: int, *, left_out: int = 0) -> str:
    """Return the text, or its whole sentences and a mark, at most `max_chars` characters together.

    A first sentence that does not fit ends after a word, and a first word that does not fit is cut. `max_chars` is 64
    or more, so that the mark leaves room for words. `left_out`: how many characters are already missing at the end.
    """
    if len(text) + left_out <= max_chars:
        return text
    kept = _beginning(text, max_chars - len(_mark(len(text) + left_out)))
    return kept + _mark(len(text) + left_out - len(kept))


def both_ends(text: str, max_chars: int, *, left_out: int = 0) -> str:
    """Return the text, or its beginning, a mark and its end, at most `max_chars` characters together.

    For errors: the last lines of a traceback say what is wrong. Below 192 characters there is no room for an end.
    `left_out`: how many characters are already missing, far from both ends.
    """
    if len(text) + left_out <= max_chars or max_chars < _BOTH_MIN_CHARS:
        return excerpt(text, max_chars)
    end = text[-(max_chars // 3) :]
    # An end that begins within a line begins after a word.
    start = end.find("\n") + 1 or end.find(" ") + 1
    end = end[start:] if start < len(end) // 2 else end
    kept = _beginning(text, max_chars - len(end) - len(_mark(len(text) + left_out)) - 1)
    return f"{kept}{_mark(len(text) + left_out - len(kept) - len(end))}\n{end}"


def _beginning(text: str, max_chars: int) -> str:
    room = text[: max(0, max_chars)]
    ends = [found.end() for found in _SENTENCE_END.finditer(text, 0, len(room) + 1) if found.end() <= len(room)]
    words = [found.start() for found in _WORD_END.finditer(room)]
    return room[: ends[-1] if ends else words[-1] if words else len(room)].rstrip()


def _mark(left_out: int) -> str:
    return f"… [{left_out:,} more characters]"
