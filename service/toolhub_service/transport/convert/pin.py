"""Pins on the wire."""

from __future__ import annotations

import json

from toolhub.v1 import approval_pb2, pin_pb2
from toolhub.v1 import registry_service_pb2 as pb
from toolhub_service.domain.pin import Pin, PinChange, PinFilter, PinState
from toolhub_service.transport.convert.enums import WireEnum
from toolhub_service.transport.convert.payload import timestamp
from toolhub_service.transport.convert.pin_diff import pin_diff

PIN_STATES = WireEnum(PinState, pin_pb2.PinState, "PIN_STATE")
PIN_CHANGES = {
    change: pin_pb2.PIN_CHANGE_UNSPECIFIED
    if change is PinChange.NONE
    else pin_pb2.PinChange.Value(f"PIN_CHANGE_{change.name}")
    for change in PinChange
}
_DEFINITION_MAX_BYTES = 256 * 1024


def from_pin(pin: Pin) -> pin_pb2.Pin:
    """As in a list: without diff, definition and tool."""
    return pin_pb2.Pin(
        source=pin.source,
        tool=pin.tool,
        digest=pin.digest,
        previous_digest=pin.previous_digest,
        state=PIN_STATES.to_wire[pin.state],
        change=PIN_CHANGES[pin.change],
        findings=pin.findings,
        seen_at=timestamp(pin.seen_at_unix_ms),
        decided_at=timestamp(pin.decided_at_unix_ms),
        decided_by=pin.decided_by,
        comment=pin.comment,
        renamed_from=pin.renamed_from,
    )


def from_whole_pin(pin: Pin, approved: Pin | None) -> pin_pb2.Pin:
    """With the definition, and its difference to the approved one."""
    message = from_pin(pin)
    definition = json.dumps(pin.definition, sort_keys=True, separators=(",", ":")).encode()  # as `pin_digest` reads it
    message.definition_json = definition if len(definition) <= _DEFINITION_MAX_BYTES else b""
    if approved is not None and approved.key != pin.key:
        message.diff = pin_diff(
            approved.definition,
            pin.definition,
            approved=f"approved {approved.tool} {approved.digest[:12]}",
            seen=f"seen {pin.tool} {pin.digest[:12]}",
        )
    return message


def to_pin_filter(request: pb.ListPinsRequest) -> PinFilter:
    """The unspecified state in a filter means every state."""
    states = () if pin_pb2.PIN_STATE_UNSPECIFIED in request.states else request.states
    return PinFilter(
        source=request.source, tool=request.tool, states=frozenset(PIN_STATES.to_domain[state] for state in states)
    )


def is_approval(decision: int) -> bool:
    """The envelope has been validated: it is a yes or a no."""
    return decision == approval_pb2.DECISION_APPROVE
