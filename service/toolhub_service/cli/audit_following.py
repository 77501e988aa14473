"""Following the audit log across restarts of the hub: from the last event seen, what was missed first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import grpc

from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import event_pb2
from toolhub_service.cli.coming_back import Pauses
from toolhub_service.cli.connection import Connection
from toolhub_service.cli.job_following import passes

_PAUSE_MAX_S = 5.0


def follow(
    connection: Connection,
    where: event_pb2.EventFilter,
    *,
    lost: Callable[[float], object] = lambda _: None,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[event_pb2.Event]:
    """New events for ever. `lost` is told that the hub is gone, and in how many seconds it is asked again.

    Raises grpc.RpcError when the hub refuses, and when it was not there in the beginning.
    """
    asked = pb.ListEventsRequest(filter=where, page_size=1)
    connection.audit.ListEvents(asked, timeout=connection.timeout_s, metadata=connection.metadata)
    token, pauses = "", Pauses(_PAUSE_MAX_S)
    while True:
        broken: grpc.RpcError | None = None
        request = pb.TailEventsRequest(filter=where, resume_token=token)
        answers = connection.audit.TailEvents(request, metadata=connection.metadata)
        try:
            for answer in answers:
                pauses.went_well()
                token = answer.resume_token
                yield answer.event
        except grpc.RpcError as error:
            if not passes(error):
                raise
            broken = error
        finally:
            answers.cancel()
        pause_s = pauses.after(broken)
        lost(pause_s)
        pause(pause_s)
