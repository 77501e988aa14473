"""How text that somebody else wrote is shown to a person: on a terminal, in a pipe or in a log.

A tool's result, a model's purpose or a server's name must neither control the terminal (ECMA-48 escape sequences, C0
and C1), nor turn the reading direction (Unicode TR36), nor hide text between what is seen (zero-width characters, tags,
variation selectors), nor begin a line that imitates the program's own. Everything that prints foreign text calls
`escape_hidden` or `on_one_line`.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

_NOT_SHOWN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
_DRAWN_AS_NOTHING: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_SUSPECTS: Final = re.compile(r"[^\n -~]")
_SELECTOR: Final = "\ufe0f"
_KEYCAP: Final = "\u20e3"
_OF_EMOJI: Final = _SELECTOR + "\u200d"  # draws the symbol before it in colour; joins two symbols
_SPACES: Final = re.compile(r"\s+")
_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
"""What the contract refuses in a line (`toolhub.line` of rules.proto), except line ends and tabs."""


def is_hidden(character: str) -> bool:
    """Return whether the character is invisible; line ends and white space of plain text do not count."""
    if character in "\n\t":
        return False
    if unicodedata.category(character) in _NOT_SHOWN or character in _DRAWN_AS_NOTHING:
        return True
    return 0xFE00 <= ord(character) <= 0xFE0F or 0xE0100 <= ord(character) <= 0xE01EF


def escape_hidden(text: str) -> str:
    """Return the text with every hidden character written as JSON writes it, `\\u202e`; line ends and tabs stay.

    So do the characters that only choose how an emoji is drawn. Valid JSON stays valid, and means the same.
    """
    return _SUSPECTS.sub(_escape_unless_of_emoji, text)


def on_one_line(text: str) -> str:
    """Return the text as one line without hidden characters, each run of white space as one space."""
    return _SPACES.sub(" ", escape_hidden(text.replace("\r\n", "\n"))).strip()


def without_controls(text: str) -> str:
    """Return what a person typed without characters that control a terminal or turn the reading direction."""
    return _CONTROLS.sub("", text)


def has_controls(line: str) -> bool:
    """Return whether the contract refuses it as one line."""
    return _CONTROLS.search(line) is not None or "\n" in line or "\t" in line


def _escape_unless_of_emoji(found: re.Match[str]) -> str:
    character, at = found.group(), found.start()
    if character in _OF_EMOJI:
        before, after = found.string[at - 1 : at], found.string[at + 1 : at + 2]
        is_part = _is_symbol(before) or (character == _SELECTOR and after == _KEYCAP)
        if is_part if character == _SELECTOR else _is_symbol(after) and (is_part or before == _SELECTOR):
            return character
    return _escape(character)


def _is_symbol(character: str) -> bool:
    return not character.isascii() and unicodedata.category(character)[0] == "S"


@lru_cache(maxsize=4096)
def _escape(character: str) -> str:
    if not is_hidden(character):
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
