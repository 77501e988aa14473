"""Following a job across restarts of the hub: every status once, in order, to the final one.

Statuses carry a gapless sequence, so a watch that is begun again after the last one seen misses nothing and repeats
nothing. Before it begins again the job is asked for by itself: a watch of a quiet job says nothing, and people want to
know that the hub is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator

import grpc

from toolhub.v1 import job_pb2, job_state_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub_service.cli.coming_back import Pauses
from toolhub_service.cli.connection import Connection, status_of

_PAUSE_MAX_S = 2.0
_PASSING = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)
"""How a watch ends that may be begun again; CANCELLED comes from a server that was stopped."""
_BROKEN = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN})
"""How a connection that breaks under a stream is told, if not by a hub with its reason."""
FINAL_STATES = frozenset(
    {
        job_state_pb2.JOB_STATE_SUCCEEDED,
        job_state_pb2.JOB_STATE_FAILED,
        job_state_pb2.JOB_STATE_CANCELLED,
        job_state_pb2.JOB_STATE_TIMED_OUT,
        job_state_pb2.JOB_STATE_LOST,
    }
)


def passes(error: grpc.RpcError) -> bool:
    """Whether it is worth asking again."""
    code, _, reason = status_of(error)
    return code in _PASSING or (code in _BROKEN and not reason)


def get_job(connection: Connection, job_id: str) -> job_pb2.Job:
    """Raises grpc.RpcError."""
    request = pb.GetJobRequest(job_id=job_id)
    stub = JobServiceStub(connection.channel)
    return stub.GetJob(request, timeout=connection.timeout_s, metadata=connection.metadata).job


class Following:
    """Iterate over it once. Raises grpc.RpcError when the hub refuses: the job is forgotten, or not the caller's."""

    def __init__(
        self,
        connection: Connection,
        job_id: str,
        *,
        lost: Callable[[float], object] = lambda _: None,
        found: Callable[[], object] = lambda: None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`lost` is told that the hub is gone and in how many seconds it is asked again, `found` that it is back."""
        self._connection = connection
        self._job_id = job_id
        self._lost = lost
        self._found = found
        self._pause = pause
        self._seen = 0
        self._is_lost = False

    def __iter__(self) -> Generator[job_pb2.JobStatus, None, None]:
        pauses = Pauses(_PAUSE_MAX_S)
        while True:
            broken: grpc.RpcError | None = None
            try:
                for status in self._watch():
                    pauses.went_well()
                    yield status
                    if status.state in FINAL_STATES:
                        return
            except grpc.RpcError as error:
                if not passes(error):
                    raise
                broken = error
            pause_s = pauses.after(broken)
            self._is_lost = True
            self._lost(pause_s)
            self._pause(pause_s)

    def _watch(self) -> Iterator[job_pb2.JobStatus]:
        """One stream of the hub, from where the last one ended."""
        if self._is_lost:
            get_job(self._connection, self._job_id)
            self._is_lost = False
            self._found()
        request = pb.WatchJobRequest(job_id=self._job_id, after_sequence=self._seen)
        answers = JobServiceStub(self._connection.channel).WatchJob(request, metadata=self._connection.metadata)
        try:
            for answer in answers:
                if answer.status.sequence > self._seen:
                    self._seen = answer.status.sequence
                    yield answer.status
        finally:
            answers.cancel()
