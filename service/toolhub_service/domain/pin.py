"""A remote definition as it was seen, and the decision about it.

A pin is identified by source, tool and digest. The digest is computed over the definition in the source's own words,
so that nothing the operator configures looks like drift, and nothing the source says can change unseen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from enum import Enum
from typing import Final

from msgspec import Struct

from toolhub_service.domain.json import JsonObject

FIRST_USE: Final = "first-use"
"""Decided-by value when nobody decided: the source is trusted on first use."""


WORDS_ONLY: Final = "pins: schema"
"""Decided-by value when nobody decided, because only words changed and the operator accepts that."""


class PinState(Enum):
    PENDING = "PENDING"
    """Seen and quarantined; waits for a decision."""
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    SUPERSEDED = "SUPERSEDED"
    """A newer definition has replaced it; kept for the record."""


class PinChange(Enum):
    """How a definition differs from the pinned one."""

    NONE = "NONE"
    ADDED = "ADDED"
    CHANGED = "CHANGED"
    REMOVED = "REMOVED"
    RENAMED = "RENAMED"
    SHADOWED = "SHADOWED"


class Pin(Struct, frozen=True, gc=False):
    """A pin as stored. Every change is a new record with the next version."""

    source: str
    tool: str
    """Full name."""
    digest: str
    """sha256 (hex) of `definition`, as computed by `pin_digest`."""
    definition: JsonObject
    """`Definition.remote`; untrusted."""
    state: PinState
    change: PinChange = PinChange.NONE
    previous_digest: str = ""
    """Digest that was approved before; empty when none was."""
    renamed_from: str = ""
    """Full name under which the same definition was approved; set when RENAMED."""
    findings: tuple[str, ...] = ()
    """What looks wrong with it, one sentence each."""
    seen_at_unix_ms: int = 0
    """When it was first seen."""
    decided_at_unix_ms: int = 0
    """0 while PENDING."""
    decided_by: str = ""
    """`first-use` or `pins: schema` when nobody was asked."""
    comment: str = ""
    version: int = 1
    """Incremented by every change; compare-and-set compares it."""
    registered: bool = False
    """Whether an operator registered the tool over the wire: it is offered while its source offers no tool of that
    name."""
    endpoint: str = ""
    """Of the source when the tool was registered, kept after it is unregistered; empty for what a source offers itself,
    and for records of hubs that did not store it."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.source, self.tool, self.digest


class PinFilter(Struct, frozen=True, gc=False):
    """Empty fields match everything, and others are combined by AND."""

    source: str = ""
    tool: str = ""
    """A name or a glob."""
    states: frozenset[PinState] = frozenset()
    sources: Callable[[str], bool] | None = None
    """Whether pins of that source are meant."""


def pin_digest(source: str, definition: JsonObject) -> str:
    """Return sha256 (hex) over the source's name and the definition in canonical JSON."""
    # ASCII: a lone surrogate, which JSON may escape, has no UTF-8, and no definition may break the digest.
    canonical = json.dumps([source, definition], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
