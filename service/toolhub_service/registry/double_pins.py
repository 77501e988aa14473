"""Two approved definitions of one tool: what two processes leave that met a new source at once and saw it differ.

A put is compared record by record, so each of them could trust its own on first use. Whoever judges next settles it:
what a person decided stands before what nobody did, of those the later; else what was seen first. The other one waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from toolhub_service.domain.pin import FIRST_USE, Pin, PinChange, PinState


def demoted(known: Sequence[Pin]) -> list[Pin]:
    """The records to put for those that must not stay approved."""
    approved: dict[str, list[Pin]] = {}
    for pin in known:
        if pin.state is PinState.APPROVED:
            approved.setdefault(pin.tool, []).append(pin)
    return [loser for of_tool in approved.values() if len(of_tool) > 1 for loser in _losers(of_tool)]


def waiting_again(pin: Pin, approved_digest: str) -> Pin:
    """The pin as one that waits for a person, compared with what is approved."""
    return replace(
        pin,
        state=PinState.PENDING,
        change=PinChange.CHANGED,
        previous_digest=approved_digest,
        renamed_from="",
        decided_at_unix_ms=0,
        decided_by="",
        comment="",
        version=pin.version + 1,
    )


def _losers(of_tool: Sequence[Pin]) -> Iterable[Pin]:
    winner = min(of_tool, key=_place)
    return [waiting_again(pin, winner.digest) for pin in of_tool if pin is not winner]


def _place(pin: Pin) -> tuple[bool, int, str]:
    by_nobody = pin.decided_by == FIRST_USE
    return by_nobody, pin.seen_at_unix_ms if by_nobody else -pin.decided_at_unix_ms, pin.digest
