"""The statuses of a job as they come, across restarts of the hub.

Statuses carry a gapless sequence, so a watch that resumes after the last one seen misses nothing and repeats nothing.
Before it resumes it reads the job once: the watch of a quiet job is silent, and users want to know that the hub
answers again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator

from toolhub.v1 import job_pb2, job_state_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub_service.cli.connection.client import Connection
from toolhub_service.cli.connection.watching import resume_watch

_PAUSE_MAX_S = 2.0
FINAL_STATES = frozenset(
    {
        job_state_pb2.JOB_STATE_SUCCEEDED,
        job_state_pb2.JOB_STATE_FAILED,
        job_state_pb2.JOB_STATE_CANCELLED,
        job_state_pb2.JOB_STATE_TIMED_OUT,
        job_state_pb2.JOB_STATE_LOST,
    }
)


def get_job(connection: Connection, job_id: str) -> job_pb2.Job:
    """Return the job. Raises grpc.RpcError."""
    return connection.call(connection.jobs.GetJob, pb.GetJobRequest(job_id=job_id)).job


def full_job_id(connection: Connection, given: str) -> str:
    """Return the ID with the given prefix. Raises click.UsageError, grpc.RpcError."""
    return connection.full_id(given, connection.jobs.ListJobs, pb.ListJobsRequest(), "jobs", "job_id")


class JobWatch:
    """The statuses of a job up to the final one; iterate once. Raises grpc.RpcError when the hub refuses the watch: the
    job has expired, or belongs to another principal."""

    def __init__(
        self,
        connection: Connection,
        job_id: str,
        *,
        disconnected: Callable[[float], object] = lambda _: None,
        reconnected: Callable[[], object] = lambda: None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`disconnected` is called with the seconds until the next try, `reconnected` when the hub answers again."""
        self._connection = connection
        self._job_id = job_id
        self._disconnected = disconnected
        self._reconnected = reconnected
        self._pause = pause
        self._seen = 0
        self._is_disconnected = False

    def __iter__(self) -> Generator[job_pb2.JobStatus, None, None]:
        for status in resume_watch(self._watch, _PAUSE_MAX_S, self._on_outage, self._pause):
            yield status
            if status.state in FINAL_STATES:
                return

    def _on_outage(self, pause_s: float) -> None:
        self._is_disconnected = True
        self._disconnected(pause_s)

    def _watch(self) -> Iterator[job_pb2.JobStatus]:
        """Run one stream, from where the last one ended."""
        if self._is_disconnected:
            get_job(self._connection, self._job_id)
            self._is_disconnected = False
            self._reconnected()
        request = pb.WatchJobRequest(job_id=self._job_id, after_sequence=self._seen)
        answers = self._connection.jobs.WatchJob(request, metadata=self._connection.metadata)
        try:
            for answer in answers:
                # A hub that was asked for what follows may still repeat an entry.
                if answer.status.sequence > self._seen:
                    self._seen = answer.status.sequence
                    yield answer.status
        finally:
            answers.cancel()
