"""Texts as PostgreSQL's columns hold them, each text uniquely: its type `text` cannot hold NUL, so NUL is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_ESCAPED: Final = re.compile(r"\\(.)")


def escape_text(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\0", "\\0") if "\\" in value or "\0" in value else value


def escape_texts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with all its texts escaped."""
    return {column: escape_text(value) if isinstance(value, str) else value for column, value in row.items()}


def unescape_text(value: str) -> str:
    return _ESCAPED.sub(lambda found: found[1].replace("0", "\0"), value)
