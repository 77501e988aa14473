"""Audit events both ways."""

from __future__ import annotations

from toolhub.v1 import audit_service_pb2, error_pb2, event_pb2
from toolhub_service.domain.errors import ErrorKind
from toolhub_service.domain.event import ChainedEvent, ChainFault, EventFilter, Verification
from toolhub_service.transport.convert.enums import ERRORS, EVENTS
from toolhub_service.transport.convert.payload import duration, timestamp, unix_ms

_KIND_NAMES = {kind.value: kind for kind in ErrorKind}


def from_event(chained: ChainedEvent) -> event_pb2.Event:
    event = chained.event
    kind = _KIND_NAMES.get(event.outcome)
    return event_pb2.Event(
        type=EVENTS.to_wire[event.type],
        writer=chained.writer,
        sequence=chained.sequence,
        previous_mac=chained.previous_mac,
        mac=chained.mac,
        key_id=chained.key_id,
        at=timestamp(event.at_unix_ms),
        principal=event.principal,
        tool=event.tool,
        tool_digest=event.tool_digest,
        call_id=event.call_id,
        request_id=event.request_id,
        args_digest=event.args_digest,
        args_summary=event.args_summary,
        purpose=event.purpose,
        policy_revision=event.policy_revision,
        rule_id=event.rule_id,
        outcome=event.outcome,
        error_kind=ERRORS.to_wire[kind] if kind else error_pb2.ERROR_KIND_UNSPECIFIED,
        duration=duration(event.duration_us / 1e6),
        attributes=event.attributes,
        user_id=event.user_id,
        agent_id=event.agent_id,
        task_id=event.task_id,
        session_id=event.session_id,
        labels=event.labels,
        result_digest=event.result_digest,
        result_summary=event.result_summary,
    )


def to_filter(message: event_pb2.EventFilter) -> EventFilter:
    return EventFilter(
        principal=message.principal,
        tool=message.tool,
        types=frozenset(EVENTS.to_domain[number] for number in message.types),
        call_id=message.call_id,
        request_id=message.request_id,
        user_id=message.user_id,
        agent_id=message.agent_id,
        task_id=message.task_id,
        session_id=message.session_id,
        writer=message.writer,
        from_unix_ms=unix_ms(message.since) if message.HasField("since") else 0,
        to_unix_ms=unix_ms(message.until) if message.HasField("until") else 0,
    )


def from_verification(verification: Verification) -> audit_service_pb2.VerifyAuditResponse:
    faults = [_from_fault(fault) for fault in verification.faults]
    return audit_service_pb2.VerifyAuditResponse(
        ok=verification.ok,
        events_checked=verification.events_checked,
        writers_checked=verification.writers,
        first_bad=faults[0] if faults else None,
        faults=faults,
    )


def _from_fault(fault: ChainFault) -> audit_service_pb2.ChainFault:
    return audit_service_pb2.ChainFault(writer=fault.writer, sequence=fault.sequence, reason=fault.reason)
