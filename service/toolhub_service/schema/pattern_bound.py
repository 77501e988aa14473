"""How much memory the patterns of a schema may take: `a{1,100000}` is ten bytes of schema and megabytes of program.

Patterns run on the `regex` crate, which has neither look-around nor back-references and is linear in the text, but
whose programs grow with counted repetitions. Each distinct pattern is compiled alone under rising limits to learn its
size, and the sizes of all are bounded together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import jsonschema_rs

from toolhub_service.schema.refusal import SchemaRefused

_SIZES_BYTES: Final = (4 * 1024, 64 * 1024, 1024 * 1024, 4 * 1024 * 1024)
_MAX_ALL_BYTES: Final = 16 * 1024 * 1024
_LIMITS: Final = tuple((size, jsonschema_rs.RegexOptions(size_limit=size)) for size in _SIZES_BYTES)
LINEAR_PATTERNS: Final = jsonschema_rs.RegexOptions(size_limit=_SIZES_BYTES[-1], dfa_size_limit=512 * 1024)
"""How every schema's patterns are compiled."""


def bound_patterns(nodes: Iterable[dict[str, Any]]) -> None:
    """Raises SchemaRefused: `pattern`, when one is broken, not linear or too large, or all together are."""
    left_bytes = _MAX_ALL_BYTES
    for pattern in _patterns(nodes):
        left_bytes -= _size_bytes(pattern)
        if left_bytes < 0:
            raise SchemaRefused("pattern", "All patterns together are too large; shorten counted repetitions.")


def _patterns(nodes: Iterable[dict[str, Any]]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(pattern := node.get("pattern"), str):
            found.add(pattern)
        if isinstance(named := node.get("patternProperties"), dict):
            found.update(named)
    return found


def _size_bytes(pattern: str) -> int:
    """The first limit under which the pattern compiles."""
    for size, limit in _LIMITS:
        try:
            jsonschema_rs.validator_for({"pattern": pattern}, offline=True, pattern_options=limit)
        except jsonschema_rs.ValidationError:
            continue
        return size
    shown = pattern if len(pattern) <= 80 else pattern[:79] + "…"
    raise SchemaRefused("pattern", f"{shown!r} is broken, too large or not linear (look-around, back-references).")
