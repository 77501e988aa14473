"""What a person's decision on one pin changes: pure, so that it can be made anew when somebody else was faster.

Approving a definition ends what it takes the place of: the approved pin of the same tool, and definitions of it that
were seen earlier and still waited. A definition seen later goes on waiting. Rejecting changes that one pin, an approved
one too. Deciding the same twice changes nothing, but that a person's word takes the place of trust on first use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.pin import FIRST_USE, Pin, PinState


def find_pin(known: Sequence[Pin], source: str, tool: str, digest: str) -> Pin:
    """Raises HubFailure NOT_FOUND."""
    pin = next((pin for pin in known if pin.tool == tool and pin.digest == digest), None)
    if pin is None:
        raise HubFailure(
            HubStatus.NOT_FOUND,
            "PIN_NOT_FOUND",
            f"no definition {digest[:12]}… of `{tool[:128]}` was seen from `{source[:64]}`: `toolhub pins list` shows "
            "those that were",
            source=source[:64],
            tool=tool[:128],
        )
    return pin


def decided(
    known: Sequence[Pin], pin: Pin, *, approve: bool, by: str, comment: str, now_unix_ms: int
) -> tuple[Pin, ...]:
    """The records to put, the decided one first; none when that is what stands already."""
    wanted = PinState.APPROVED if approve else PinState.REJECTED
    if pin.state is wanted and pin.decided_by != FIRST_USE:
        return ()
    now = replace(
        pin,
        state=wanted,
        decided_at_unix_ms=now_unix_ms,
        decided_by=by,
        comment=comment,
        version=pin.version + 1,
    )
    return (now, *(_superseded(known, pin) if approve else ()))


def compared_with(known: Sequence[Pin], pin: Pin) -> Pin | None:
    """The pin that a difference is shown to: what was approved before, under the former name of a renamed tool."""
    tool = pin.renamed_from or pin.tool
    of_tool = [other for other in known if other.tool == tool and other.key != pin.key]
    before = next((other for other in of_tool if other.digest == pin.previous_digest), None)
    return before or next((other for other in of_tool if other.state is PinState.APPROVED), None)


def _superseded(known: Sequence[Pin], pin: Pin) -> Iterator[Pin]:
    for other in known:
        if other.tool != pin.tool or other.digest == pin.digest:
            continue
        waited = other.state is PinState.PENDING and other.seen_at_unix_ms <= pin.seen_at_unix_ms
        if waited or other.state is PinState.APPROVED:
            yield replace(other, state=PinState.SUPERSEDED, version=other.version + 1)
