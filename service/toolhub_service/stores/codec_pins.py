"""Pins as a store holds them: all of a source come back whole and under their own names, or the source is blocked.

One pin that cannot be read may be the one that was rejected, so nothing is guessed from those that can.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.pin import Pin
from toolhub_service.stores.codec import UnreadableRecord, decode_pin


class KeptPin(NamedTuple):
    """A record, and what its store knows of it by itself."""

    source: str
    tool: str
    digest: str
    version: int
    record: bytes


def pins_of(kept: Iterable[KeptPin]) -> list[Pin]:
    """All of them. Raises HubFailure FAILED_PRECONDITION when one cannot be read."""
    found: list[Pin] = []
    for each in kept:
        try:
            found.append(pin_of(each))
        except UnreadableRecord:
            raise _unreadable(each) from None
    return found


def pin_of(kept: KeptPin) -> Pin:
    """Raises UnreadableRecord, also for a record of another pin or another version than the store says."""
    pin = decode_pin(kept.record)
    if (*pin.key, pin.version) != kept[:4]:
        raise UnreadableRecord("a pin that lies in the place of another")
    return pin


def are_distinct(pins: Iterable[Pin]) -> bool:
    """No pin twice: of two changes to one, the first comes before the second, which is then refused with its batch."""
    keys = [pin.key for pin in pins]
    return len(set(keys)) == len(keys)


def _unreadable(kept: KeptPin) -> HubFailure:
    return HubFailure(
        HubStatus.FAILED_PRECONDITION,
        "PIN_UNREADABLE",
        f"What was decided about `{kept.tool}` of source `{kept.source}` cannot be read: its record is damaged, or was "
        "written by a newer hub. No tool of this source is called until the store is restored, the newer hub is "
        "started again, or the pins of this source are forgotten and its tools decided about anew.",
        source=kept.source,
        tool=kept.tool,
        digest=kept.digest,
    )
