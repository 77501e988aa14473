"""Following the audit log through restarts of the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import grpc
import pytest

from tests.unit.cli.scripted import connection_to
from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import event_pb2
from toolhub.v1.audit_service_pb2_grpc import AuditServiceServicer, add_AuditServiceServicer_to_server
from toolhub_service.cli.audit.following import follow_events
from toolhub_service.cli.connection.client import Connection
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.status import RpcFailure, details_trailer

LEAVING = RpcFailure(Reason.DRAINING, "Leaving.", retry_after_s=0.5)


@dataclass
class ScriptedHub(AuditServiceServicer):
    """Each tail sends the next events, then leaves; the last one stays."""

    tails: list[list[int]]
    asked_after: list[str] = field(default_factory=list)
    refuses: bool = False

    def ListEvents(self, request: Any, context: grpc.ServicerContext) -> pb.ListEventsResponse:
        if self.refuses:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "no auditor")
        return pb.ListEventsResponse()

    def TailEvents(self, request: Any, context: grpc.ServicerContext) -> Iterator[pb.TailEventsResponse]:
        self.asked_after.append(request.resume_token)
        for sequence in self.tails.pop(0):
            yield pb.TailEventsResponse(event=event_pb2.Event(sequence=sequence), resume_token=f"after-{sequence}")
        context.set_trailing_metadata((details_trailer(LEAVING),))
        context.abort(grpc.StatusCode.UNAVAILABLE, "Leaving.")

    VerifyAudit = None  # type: ignore[assignment]


def serving(hub: ScriptedHub) -> AbstractContextManager[Connection]:
    return connection_to(partial(add_AuditServiceServicer_to_server, hub))


def test_a_tail_resumes_after_the_last_event_at_the_hubs_delay() -> None:
    hub, pauses, lost = ScriptedHub([[1, 2], [], [3]]), list[float](), list[float]()
    with serving(hub) as connection:
        events = follow_events(connection, event_pb2.EventFilter(), disconnected=lost.append, pause=pauses.append)
        assert [event.sequence for event in islice(events, 3)] == [1, 2, 3]
    assert hub.asked_after == ["", "after-2", "after-2"]
    assert pauses == lost
    assert all(pause_s >= 0.5 for pause_s in pauses)


def test_a_refusal_is_reported_at_once() -> None:
    with serving(ScriptedHub([], refuses=True)) as connection, pytest.raises(grpc.RpcError) as refused:
        next(
            follow_events(connection, event_pb2.EventFilter(), pause=lambda _: pytest.fail("a refusal was waited for"))
        )
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
