"""Refuses a statement with characters that the parser and the database could read differently.

A byte order mark is a space for SQLite and a letter for most parsers; a vertical tab is a space for PostgreSQL 16 and
an error for others; a carriage return ends a comment in PostgreSQL but not in SQLite. Where two readers differ, one
of them sees another table.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.guards.foreign_text import is_hidden

_SUSPECTS: Final = re.compile(r"\r(?!\n)|[^\n\r\t -~]")
# Marks with which databases begin quoting in ways of their own: strings with backslashes, $tag$, comments, [names].
_OTHER_QUOTES: Final = re.compile(r"\\|\$\w*\$|--|/\*|[\[`]")
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")


def check_characters(sql: str) -> None:
    """Raises ToolFailure INVALID_INPUT that names the first unclear character and its place."""
    unclear = [found for found in _SUSPECTS.finditer(sql) if _is_unclear(found.group())]
    if not unclear:
        return
    for found in unclear:
        if unicodedata.category(found.group()) in ("Cc", "Cs"):
            raise _unclear(sql, found.start())
    # In plain literals every reader sees the same. Where something else may quote, it is not known what a literal is.
    literals = [] if _OTHER_QUOTES.search(sql) else [found.span() for found in _QUOTED.finditer(sql) if _is_text(found)]
    for found in unclear:
        if not any(start < found.start() < end for start, end in literals):
            raise _unclear(sql, found.start())


def _is_text(found: re.Match[str]) -> bool:
    return found.group()[0] == "'"


def _is_unclear(character: str) -> bool:
    return is_hidden(character) or unicodedata.category(character) == "Zs"


def _unclear(sql: str, at: int) -> ToolFailure:
    character = sql[at]
    name = unicodedata.name(character, "a control character" if ord(character) < 0xA0 else "a character without a name")
    return refuse(
        ErrorKind.INVALID_INPUT,
        f"Character {at + 1} of the statement is U+{ord(character):04X} ({name.lower()}), which databases read in "
        "different ways. Leave it out: use plain spaces and line breaks, and pass such text in `params`.",
        argument="query",
    )
