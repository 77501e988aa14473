"""Two approved definitions of one tool, of which one must wait.

Two processes leave them when they first read a new source at once and it answered them differently. A put compares
record by record, so each process could trust its own on first use. The next evaluation resolves it: a person's decision
wins, the later one of two; otherwise the definition that was seen first. The other one waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from toolhub_service.domain.pin import FIRST_USE, Pin, PinChange, PinState


def demote_double_approvals(known: Sequence[Pin]) -> list[Pin]:
    """Return the records to put for those that must not stay approved."""
    approved: dict[str, list[Pin]] = {}
    for pin in known:
        if pin.state is PinState.APPROVED:
            approved.setdefault(pin.tool, []).append(pin)
    return [loser for of_tool in approved.values() if len(of_tool) > 1 for loser in _losers(of_tool)]


def waiting_again(pin: Pin, approved_digest: str) -> Pin:
    """Return the pin as waiting for a person, compared with the approved one."""
    return structs.replace(
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
    winner = min(of_tool, key=_precedence)
    return [waiting_again(pin, winner.digest) for pin in of_tool if pin is not winner]


def _precedence(pin: Pin) -> tuple[bool, int, str]:
    by_nobody = pin.decided_by == FIRST_USE
    return by_nobody, pin.seen_at_unix_ms if by_nobody else -pin.decided_at_unix_ms, pin.digest
