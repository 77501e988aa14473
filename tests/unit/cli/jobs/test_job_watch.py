"""Following a job through every interruption of its watch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import pytest

from tests.unit.cli.scripted import connection_to
from toolhub.v1 import job_pb2, job_service_pb2, job_state_pb2
from toolhub.v1.job_service_pb2_grpc import JobServiceServicer, add_JobServiceServicer_to_server
from toolhub_service.cli.connection.client import Connection
from toolhub_service.cli.jobs.job_watch import JobWatch

RUNNING, SUCCEEDED = job_state_pb2.JOB_STATE_RUNNING, job_state_pb2.JOB_STATE_SUCCEEDED
Watch = Callable[[grpc.ServicerContext], Iterator[int]]
"""The sequences that a watch sends; a negative one is that of the end."""


@dataclass
class ScriptedHub(JobServiceServicer):
    """Each watch follows the next script."""

    watches: list[Watch]
    began_after: list[int] = field(default_factory=list)
    forgets: bool = False

    def GetJob(self, request: Any, context: grpc.ServicerContext) -> job_service_pb2.GetJobResponse:
        if self.forgets:
            context.abort(grpc.StatusCode.NOT_FOUND, "forgotten")
        return job_service_pb2.GetJobResponse(job=job_pb2.Job(job_id=request.job_id))

    def WatchJob(self, request: Any, context: grpc.ServicerContext) -> Iterator[job_service_pb2.WatchJobResponse]:
        self.began_after.append(request.after_sequence)
        for sequence in self.watches.pop(0)(context):
            state = SUCCEEDED if sequence < 0 else RUNNING
            yield job_service_pb2.WatchJobResponse(status=job_pb2.JobStatus(sequence=abs(sequence), state=state))

    WatchJobs = SubmitJob = ListJobs = CancelJob = None  # type: ignore[assignment]


def serving(hub: ScriptedHub) -> AbstractContextManager[Connection]:
    return connection_to(partial(add_JobServiceServicer_to_server, hub))


def statuses(*sequences: int, then: grpc.StatusCode | None = None) -> Watch:
    def watch(context: grpc.ServicerContext) -> Iterator[int]:
        yield from sequences
        if then is not None:
            context.abort(then, "broken")

    return watch


@pytest.mark.parametrize(
    "broken",
    [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, None],
)
def test_broken_watch_goes_on_after_the_last_status(broken: grpc.StatusCode | None) -> None:
    hub = ScriptedHub([statuses(1, 2, then=broken), statuses(then=broken), statuses(3, -4)])
    pauses: list[float] = []
    signals: list[str] = []
    with serving(hub) as connection:
        following = JobWatch(
            connection,
            "j",
            disconnected=lambda _: signals.append("lost"),
            reconnected=lambda: signals.append("found"),
            pause=pauses.append,
        )
        assert [status.sequence for status in following] == [1, 2, 3, 4]
    assert hub.began_after == [0, 2, 2]
    assert signals == ["lost", "found", "lost", "found"]
    assert pauses[1] <= 0.5
    assert pauses[0] <= 0.25


def test_a_repeated_status_is_shown_once() -> None:
    with serving(ScriptedHub([statuses(1, 2, 2, 1, -3)])) as connection:
        assert [status.sequence for status in JobWatch(connection, "j")] == [1, 2, 3]


def test_refusal_is_not_taken_for_an_outage() -> None:
    with serving(ScriptedHub([statuses(1, then=grpc.StatusCode.PERMISSION_DENIED)])) as connection:
        following = iter(JobWatch(connection, "j", pause=lambda _: pytest.fail("a refusal was waited for")))
        assert next(following).sequence == 1
        with pytest.raises(grpc.RpcError):
            next(following)


def test_job_that_the_hub_has_forgotten_meanwhile_is_not_waited_for() -> None:
    hub = ScriptedHub([statuses(1, then=grpc.StatusCode.UNAVAILABLE)])
    with serving(hub) as connection:
        following = iter(JobWatch(connection, "j", pause=lambda _: setattr(hub, "forgets", True)))
        assert next(following).sequence == 1
        with pytest.raises(grpc.RpcError) as refused:
            next(following)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
