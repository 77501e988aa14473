"""Characters that a person does not see: they are named wherever a definition is put before somebody who decides.

Format characters turn the reading direction or hide text between others, variation selectors and tags carry whole
messages that only a model reads (Unicode TR36; "ASCII smuggling"), and some letters are drawn as blanks.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_NOT_SHOWN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
_DRAWN_AS_NOTHING = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_SUSPECTS = re.compile(r"[^\n -~]")


def is_hidden(character: str) -> bool:
    """Whether it shows nothing of itself; line ends and white space of plain text are no such characters."""
    if character in "\n\t":
        return False
    if unicodedata.category(character) in _NOT_SHOWN or character in _DRAWN_AS_NOTHING:
        return True
    return 0xFE00 <= ord(character) <= 0xFE0F or 0xE0100 <= ord(character) <= 0xE01EF


def escaped(text: str) -> str:
    """The text with every hidden character written as JSON writes it, `\\u202e`."""
    return _SUSPECTS.sub(lambda found: _escape(found.group()), text)


@lru_cache(maxsize=4096)
def _escape(character: str) -> str:
    if not is_hidden(character):
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
