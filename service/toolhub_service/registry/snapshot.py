"""The whole catalog at one moment, with the digest that names it.

The digest is a sum of digests, one a tool (AdHash: Bellare and Micciancio, Eurocrypt 1997), so that a change of one
tool costs one addition and one subtraction, whatever the catalog holds.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from toolhub_service.domain.tool import ToolKind, ToolSpec, ToolState


@dataclass(frozen=True, slots=True)
class Totals:
    """How many tools there are; kinds, states and sources with none are absent."""

    tools: int
    by_kind: Mapping[ToolKind, int]
    by_state: Mapping[ToolState, int]
    by_source: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    revision: str
    """Sum (modulo 2^256, hex) of sha256 over name, digest and state of each tool: equal on every replica with equal
    tools."""
    tools: tuple[ToolSpec, ...]
    """Sorted by name."""
    totals: Totals


def snapshot_of(specs: Iterable[ToolSpec], revision: str) -> Snapshot:
    """Freeze the given tools: O(n log n), a few ms for 10,000."""
    tools = tuple(sorted(specs, key=lambda spec: spec.name))
    totals = Totals(
        tools=len(tools),
        by_kind=Counter(spec.kind for spec in tools),
        by_state=Counter(spec.state for spec in tools),
        by_source=Counter(spec.source for spec in tools),
    )
    return Snapshot(revision, tools, totals)


def share_of_revision(spec: ToolSpec) -> int:
    """What a tool adds to the revision of a catalog that has it."""
    return int.from_bytes(hashlib.sha256(f"{spec.name} {spec.digest} {spec.state.value}".encode()).digest())


def revision_of(shares: int) -> str:
    """The revision of a catalog whose tools' shares have that sum."""
    return f"{shares % 2**256:064x}"
