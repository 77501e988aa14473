"""Following the audit log across restarts of the hub: from the last event seen, what was missed first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import event_pb2
from toolhub_service.cli.connection.client import Connection
from toolhub_service.cli.connection.watching import resume_watch

_PAUSE_MAX_S = 5.0


def follow_events(
    connection: Connection,
    where: event_pb2.EventFilter,
    *,
    disconnected: Callable[[float], object] = lambda _: None,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[event_pb2.Event]:
    """Yield new events without end, across restarts of the hub.

    `disconnected` is called with the seconds until the next try.

    Raises grpc.RpcError when the hub refuses, and when it cannot be reached at the beginning.
    """
    asked = pb.ListEventsRequest(filter=where, page_size=1)
    connection.call(connection.audit.ListEvents, asked)
    token = ""

    def tail() -> Iterator[event_pb2.Event]:
        nonlocal token
        request = pb.TailEventsRequest(filter=where, resume_token=token)
        answers = connection.audit.TailEvents(request, metadata=connection.metadata)
        try:
            for answer in answers:
                token = answer.resume_token
                yield answer.event
        finally:
            answers.cancel()

    yield from resume_watch(tail, _PAUSE_MAX_S, disconnected, pause)
