"""What the hub does not accept as a schema, and how much of one it accepts."""

from __future__ import annotations

from typing import Final


class SchemaRefused(ValueError):
    """A schema is invalid, hostile or beyond the bounds; the tool that brings it is not callable.

    `reason` is one of `invalid`, `too_large`, `too_deep`, `too_complex`, `reference`, `endless`, `pattern`,
    `dialect`; `advice` is one sentence for the tool's author.
    """

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}: {advice}")
        self.reason = reason
        self.advice = advice


MAX_SCHEMA_BYTES: Final = 256 * 1024
"""Canonical JSON bytes."""
MAX_SCHEMA_DEPTH: Final = 64
"""Arrays and objects inside one another, in the schema's own text."""
MAX_SUBSCHEMAS: Final = 20_000
MAX_REFERENCE_CHAIN: Final = 64
"""Applicators and references that may follow one another on the same value."""
MAX_INSTANCE_DEPTH: Final = 64
MAX_CHAIN_WORK: Final = 20_000
"""Subschema evaluations on the way from the root of an instance to any one of its leaves."""
MAX_TOTAL_WORK: Final = 5_000_000
"""Values in an instance times the chain work of the schema: about half a second of one core at the very worst."""
MIN_USEFUL_DEPTH: Final = 3
"""A schema that cannot look three levels down within MAX_CHAIN_WORK is refused instead of narrowed."""
