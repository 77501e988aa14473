"""The changes that a person's decision on one pin makes.

Pure functions, so that they can be repeated when another process was faster. Approving a definition supersedes the
approved pin of the same tool, and definitions of it that were seen earlier and were still waiting. A definition seen
later keeps waiting. Rejecting changes that one pin, also an approved one. Repeating a decision changes nothing, except
that a person's approval replaces trust on first use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.pin import FIRST_USE, WORDS_ONLY, Pin, PinChange, PinState, pin_digest
from toolhub_service.domain.source import Definition


def find_pin(known: Sequence[Pin], source: str, tool: str, digest: str) -> Pin:
    """Return the pin. Raises HubFailure NOT_FOUND."""
    pin = next((pin for pin in known if pin.tool == tool and pin.digest == digest), None)
    if pin is None:
        raise HubFailure(
            Reason.PIN_NOT_FOUND,
            f"no definition {digest[:12]}… of `{tool[:128]}` was seen from `{source[:64]}`: `toolhub pins list` shows "
            "those that were",
            source=source[:64],
            tool=tool[:128],
        )
    return pin


def decide_pin(
    known: Sequence[Pin], pin: Pin, *, approve: bool, by: str, comment: str, now_unix_ms: int, endpoint: str = ""
) -> tuple[Pin, ...]:
    """Return the records to put, the decided one first; none when nothing changes.

    `endpoint` is the source's current one, empty if unknown: a registered tool is approved for that endpoint.
    """
    wanted = PinState.APPROVED if approve else PinState.REJECTED
    approved_at = endpoint if approve and pin.registered and endpoint else pin.endpoint
    if pin.state is wanted and pin.decided_by != FIRST_USE and approved_at == pin.endpoint:
        return ()
    now = replace(
        pin,
        state=wanted,
        decided_at_unix_ms=now_unix_ms,
        decided_by=by,
        comment=comment,
        version=pin.version + 1,
        endpoint=approved_at,
    )
    return (now, *(supersede_others(known, pin) if approve else ()))


def registered_pins(
    known: Sequence[Pin], definitions: Sequence[Definition], endpoint: str, *, by: str, now_unix_ms: int
) -> Iterator[Pin]:
    """Yield the records to put so that exactly these are registered; none for one that is registered already."""
    for definition in definitions:
        source, tool = definition.spec.source, definition.spec.name
        digest = pin_digest(source, definition.remote)
        seen = next((pin for pin in known if (pin.tool, pin.digest) == (tool, digest)), None)
        if seen is not None and (seen.registered, seen.state, seen.endpoint) == (True, PinState.APPROVED, endpoint):
            continue
        approved = next((pin for pin in known if pin.tool == tool and pin.state is PinState.APPROVED), None)
        first = Pin(source, tool, digest, definition.remote, PinState.APPROVED, seen_at_unix_ms=now_unix_ms, version=0)
        pin = replace(
            seen or first,
            state=PinState.APPROVED,
            change=PinChange.NONE,
            previous_digest=approved.digest if approved is not None else "",
            decided_at_unix_ms=now_unix_ms,
            decided_by=by,
            comment="registered",
            registered=True,
            endpoint=endpoint,
        )
        yield replace(pin, version=pin.version + 1)
        superseded = {other.key: other for other in supersede_others(known, replace(pin, seen_at_unix_ms=now_unix_ms))}
        for other in known:
            # A rejected one is offered as long as it is registered, and two with one name cannot be.
            if other.key in superseded or (other.tool == tool and other.digest != digest and other.registered):
                before = superseded.get(other.key, other)
                yield replace(before, registered=False, version=other.version + 1)


def find_outdated_pins(known: Sequence[Pin]) -> Iterator[Pin]:
    """Yield the formerly registered pins, and those that only words replaced, to remove: all but the last `FORMER_MAX`
    of each tool, and all but the last `FORMER_OF_SOURCE_MAX` of the source."""
    gone = (pin for pin in known if pin.state is PinState.SUPERSEDED and not pin.registered)
    former = [pin for pin in gone if pin.endpoint or pin.decided_by == WORDS_ONLY]
    former.sort(key=lambda pin: (pin.decided_at_unix_ms, pin.version), reverse=True)
    of_tool: Counter[str] = Counter()
    for place, pin in enumerate(former):
        of_tool[pin.tool] += 1
        if of_tool[pin.tool] > FORMER_MAX or place >= FORMER_OF_SOURCE_MAX:
            yield pin


def find_approved_pin(known: Sequence[Pin], pin: Pin) -> Pin | None:
    """Return the pin to compare with: the one approved before, under the former name of a renamed tool."""
    tool = pin.renamed_from or pin.tool
    of_tool = [other for other in known if other.tool == tool and other.key != pin.key]
    before = next((other for other in of_tool if other.digest == pin.previous_digest), None)
    return before or next((other for other in of_tool if other.state is PinState.APPROVED), None)


def supersede_others(known: Sequence[Pin], pin: Pin) -> Iterator[Pin]:
    for other in known:
        if other.tool != pin.tool or other.digest == pin.digest:
            continue
        waited = other.state is PinState.PENDING and other.seen_at_unix_ms <= pin.seen_at_unix_ms
        if waited or other.state is PinState.APPROVED:
            yield replace(other, state=PinState.SUPERSEDED, version=other.version + 1)


FORMER_MAX: Final = 5
FORMER_OF_SOURCE_MAX: Final = 1_000
# Attempts of a put that others precede; each of them wrote something, so that one gets through.
