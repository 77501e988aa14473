"""A remote definition as it was seen, and what was decided about it.

A pin is named by source, tool and digest. The digest is taken over the definition in the source's own words, so that
nothing the operator configures looks like drift, and nothing the source says can change unseen.
"""

from __future__ import annotations

import hashlib
import json
from enum import Enum
from typing import Final

from msgspec import Struct

from toolhub_service.domain.json import JsonObject

FIRST_USE: Final = "first-use"
"""Who decided when nobody did: the source is trusted on first use."""


class PinState(Enum):
    PENDING = "PENDING"
    """Seen and quarantined; waits for a decision."""
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    SUPERSEDED = "SUPERSEDED"
    """A newer definition took its place; kept for the record."""


class PinChange(Enum):
    """How a definition differs from what was pinned."""

    NONE = "NONE"
    ADDED = "ADDED"
    CHANGED = "CHANGED"
    REMOVED = "REMOVED"
    RENAMED = "RENAMED"
    SHADOWED = "SHADOWED"


class Pin(Struct, frozen=True, gc=False):
    """As the store keeps it. Every change is a new record with the next version."""

    source: str
    tool: str
    """Full name."""
    digest: str
    """sha256 (hex) of `definition`, as `pin_digest` takes it."""
    definition: JsonObject
    """`Definition.remote`; untrusted."""
    state: PinState
    change: PinChange = PinChange.NONE
    previous_digest: str = ""
    """What was approved before; empty when nothing was."""
    renamed_from: str = ""
    """Full name under which the same definition was approved; set when RENAMED."""
    findings: tuple[str, ...] = ()
    """What looks wrong with it, one sentence each."""
    seen_at_unix_ms: int = 0
    """First."""
    decided_at_unix_ms: int = 0
    """0 while PENDING."""
    decided_by: str = ""
    """`first-use` when nobody was asked."""
    comment: str = ""
    version: int = 1
    """Rises by 1 with every change. What compare-and-set compares."""
    registered: bool = False
    """An operator registered the tool over the wire: it is offered while its source offers no tool of that name."""
    endpoint: str = ""
    """Of the source when the tool was registered, and kept when it is no more; empty for what a source offers itself,
    and where a hub registered it that did not keep it."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.source, self.tool, self.digest


class PinFilter(Struct, frozen=True, gc=False):
    """Empty fields match everything, and filled ones are joined by AND."""

    source: str = ""
    tool: str = ""
    """A name or a glob."""
    states: frozenset[PinState] = frozenset()


def pin_digest(source: str, definition: JsonObject) -> str:
    """sha256 (hex) over the source's name and the definition in canonical JSON."""
    canonical = json.dumps([source, definition], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
