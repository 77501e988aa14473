"""The whole catalog at one moment, with the digest that names it.

The digest is the sum of the tools' digests (AdHash: Bellare and Micciancio, Eurocrypt 1997), so that a change of one
tool costs one addition and one subtraction, whatever the catalog holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from toolhub_service.domain.tool import ToolKind, ToolSpec, ToolState


class Totals(msgspec.Struct, frozen=True):
    """How many tools there are; kinds, states and sources with none are absent."""

    tools: int
    by_kind: Mapping[ToolKind, int]
    by_state: Mapping[ToolState, int]
    by_source: Mapping[str, int]


def totals_of(tools: Sequence[ToolSpec]) -> Totals:
    return Totals(
        tools=len(tools),
        by_kind=Counter(spec.kind for spec in tools),
        by_state=Counter(spec.state for spec in tools),
        by_source=Counter(spec.source for spec in tools),
    )


class Snapshot(msgspec.Struct, frozen=True):
    revision: str
    """Sum (modulo 2^256, hex) of sha256 over name, digest and state of each tool: equal on every replica with equal
    tools."""
    tools: tuple[ToolSpec, ...]
    """Sorted by name."""
    totals: Totals
