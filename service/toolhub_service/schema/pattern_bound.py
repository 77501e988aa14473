"""A bound on the memory of a schema's patterns: `a{1,100000}` is ten bytes of schema and megabytes of program.

Patterns run on the `regex` crate, which has neither look-around nor back-references and is linear in the text, but
whose programs grow with counted repetitions. Each distinct pattern is compiled alone under rising limits to find its
size, and the total of all is limited.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import jsonschema_rs

from toolhub_service.schema.references import (
    SchemaRefused,
)

_SIZES_BYTES: Final = (4 * 1024, 64 * 1024, 1024 * 1024, 4 * 1024 * 1024)
_MAX_ALL_BYTES: Final = 16 * 1024 * 1024
_LIMITS: Final = tuple((size, jsonschema_rs.RegexOptions(size_limit=size)) for size in _SIZES_BYTES)
LINEAR_PATTERNS: Final = jsonschema_rs.RegexOptions(size_limit=_SIZES_BYTES[-1], dfa_size_limit=512 * 1024)
"""How every schema's patterns are compiled."""


_MAX_UNFIT: Final = 32


def unfit_patterns(nodes: Iterable[dict[str, Any]]) -> frozenset[str]:
    """Return the patterns that `bound_patterns` refuses, and those for which no memory is left.

    Raises SchemaRefused `pattern` for more than 32, as looking for each may take some ten milliseconds.
    """
    unfit: set[str] = set()
    left_bytes = _MAX_ALL_BYTES
    for pattern in sorted(_patterns(nodes)):
        try:
            size_bytes = _size_bytes(pattern)
        except SchemaRefused:
            size_bytes = _MAX_ALL_BYTES + 1
        if size_bytes <= left_bytes:
            left_bytes -= size_bytes
            continue
        unfit.add(pattern)
        if len(unfit) > _MAX_UNFIT:
            raise SchemaRefused("pattern", f"More than {_MAX_UNFIT} patterns are broken, too large or not linear.")
    return frozenset(unfit)


def bound_patterns(nodes: Iterable[dict[str, Any]]) -> None:
    """Raises SchemaRefused `pattern` when one is invalid, not linear or too large, or all together are too large."""
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
    """Return the first limit under which the pattern compiles."""
    for size, limit in _LIMITS:
        try:
            jsonschema_rs.validator_for({"pattern": pattern}, offline=True, pattern_options=limit)
        except jsonschema_rs.ValidationError:
            continue  # too large for this limit, or invalid: then no limit suffices, and it is refused below
        return size
    shown = pattern if len(pattern) <= 80 else pattern[:79] + "…"
    raise SchemaRefused("pattern", f"{shown!r} is broken, too large or not linear (look-around, back-references).")
