"""AuditService: what auditors read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from google.protobuf.json_format import MessageToJson
from msgspec.structs import replace

from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import audit_service_pb2_grpc, event_pb2
from toolhub_service.domain.call import Role, TenantDirectory
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.event import ChainedEvent, EventFilter
from toolhub_service.domain.ports import AccessObserver, AuditLog, EventTail
from toolhub_service.runtime.page_seal import PageSeal
from toolhub_service.transport.convert.records import from_event, from_verification, to_filter
from toolhub_service.transport.page_tokens import (
    PAGE_MAX,
    Cursor,
    open_token,
    page_limit,
    page_of,
    question_of,
    read_cursor,
    write_cursor,
)
from toolhub_service.transport.rpc import ServicerContext, caller_id, current_principal
from toolhub_service.transport.status import RpcFailure


@dataclass(slots=True)
class AuditServicer(audit_service_pb2_grpc.AuditServiceServicer):
    audit: AuditLog
    access: AccessObserver
    tenants: TenantDirectory
    pages: PageSeal
    """Seals the tokens of tails; those of lists are sealed where all lists are."""
    _tails: set[EventTail] = field(default_factory=set)
    _is_leaving: bool = False

    async def ListEvents(self, request: pb.ListEventsRequest, context: ServicerContext) -> pb.ListEventsResponse:
        limit = page_limit(request.page_size)
        after = read_cursor(request.page_token)
        events = await self.audit.read(self._filter_for_caller(request.filter), after=after, limit=limit + 1)
        page, token = page_of(events, limit, _cursor)
        await self._audit_read("ListEvents", request.filter, len(page))
        return pb.ListEventsResponse(events=list(map(self._event_to_message, page)), next_page_token=token)

    async def TailEvents(
        self, request: pb.TailEventsRequest, context: ServicerContext
    ) -> AsyncIterator[pb.TailEventsResponse]:
        where = self._filter_for_caller(request.filter)
        principal_id = current_principal().id
        questions = _questions(request.filter)
        place = open_token(self.pages, request.resume_token, principal_id, *questions)
        await self._audit_read("TailEvents", request.filter, 0)

        def event_for_caller(event: ChainedEvent) -> pb.TailEventsResponse:
            token = self.pages.seal(write_cursor(_cursor(event)), principal_id, questions[0])
            return pb.TailEventsResponse(event=self._event_to_message(event), resume_token=token)

        async with self._follow_tail(where) as tail:
            await context.send_initial_metadata(())  # from here on no event is missed
            shown: set[tuple[str, int]] = set()
            after = read_cursor(place)
            while after is not None:  # first the missed events, then new ones
                missed = await self.audit.read(where, after=after, limit=PAGE_MAX)
                for event in missed:
                    shown.add((event.writer, event.sequence))
                    yield event_for_caller(event)
                after = _cursor(missed[-1]) if len(missed) == PAGE_MAX else None
            async for event in tail:
                if (event.writer, event.sequence) not in shown:
                    yield event_for_caller(event)
        if self._is_leaving:
            raise RpcFailure(Reason.DRAINING, "This hub is shutting down. Tail again with the last resume_token.")

    def drain(self) -> None:
        """End every tail after it has sent what waits, with a status that asks the client to reconnect: the hub is
        shutting down."""
        self._is_leaving = True
        for tail in self._tails:
            tail.end()

    @asynccontextmanager
    async def _follow_tail(self, where: EventFilter) -> AsyncIterator[EventTail]:
        async with aclosing(self.audit.tail(where)) as tail:
            self._tails.add(tail)
            try:
                yield tail
            finally:
                self._tails.discard(tail)

    async def VerifyAudit(self, request: pb.VerifyAuditRequest, context: ServicerContext) -> pb.VerifyAuditResponse:
        if (principal := current_principal()).tenancy is not None:
            raise HubFailure(
                Reason.ROLE_MISSING,
                f"The chains of the audit log hold the events of all tenants, and {principal.id} is not an auditor of "
                "the whole hub: ask one of those to verify it.",
                role=Role.AUDITOR.value,
                service="toolhub.v1.AuditService",
            )
        verification = await self.audit.verify()
        await self._audit_read("VerifyAudit", event_pb2.EventFilter(writer=request.writer), verification.events_checked)
        if request.writer:
            faults = tuple(fault for fault in verification.faults if fault.writer == request.writer)
            verification = replace(verification, faults=faults)
        return from_verification(verification)

    def _filter_for_caller(self, asked: event_pb2.EventFilter) -> EventFilter:
        """Return the filter restricted to events that the caller may see."""
        own = current_principal().owners
        tenant = asked.tenant
        tenant_of = self.tenants.tenant_of
        if not tenant:
            return replace(to_filter(asked), owners=own)
        return replace(to_filter(asked), owners=lambda who: tenant_of(who) == tenant and (own is None or own(who)))

    def _event_to_message(self, event: ChainedEvent) -> event_pb2.Event:
        return from_event(event, self.tenants.tenant_of(event.event.principal))

    async def _audit_read(self, method: str, where: event_pb2.EventFilter, events: int) -> None:
        """Audit the read before anything is shown."""
        timeless = event_pb2.EventFilter()
        timeless.CopyFrom(where)
        timeless.ClearField("since")
        timeless.ClearField("until")
        text = MessageToJson(timeless, preserving_proto_field_name=True, indent=None, sort_keys=True)
        span = to_filter(where)
        await self.access.audit_read(caller_id(), method, text, events, span.from_unix_ms, span.to_unix_ms)


def _cursor(event: ChainedEvent) -> Cursor:
    return event.event.at_unix_ms, event.writer, event.sequence


def _questions(filter: event_pb2.EventFilter) -> tuple[str, str]:
    """Return what a token that resumes a tail may be bound to: a tail, or a list, of these events."""
    tail = pb.TailEventsRequest(filter=filter)
    listing = pb.ListEventsRequest(filter=filter)
    path = f"/{pb.DESCRIPTOR.services_by_name['AuditService'].full_name}/"
    return question_of(f"{path}TailEvents", tail), question_of(f"{path}ListEvents", listing)
