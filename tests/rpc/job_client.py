"""A client of a hub's jobs: submits, cancels and watches. Stages of the kinds of remote work add their own words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio

from tests.hub import request
from toolhub.v1 import job_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub.v1.job_state_pb2 import JobState

WITHIN_S: Final = 60.0
"""For what takes a moment on a machine that is not starved."""


def state(status: job_pb2.JobStatus) -> str:
    return JobState.Name(status.state).removeprefix("JOB_STATE_")


def has_message(words: str) -> Callable[[Sequence[job_pb2.JobStatus]], bool]:
    """Whether a history has come to these words."""
    return lambda history: any(words in status.progress.message for status in history)


@dataclass
class JobClient:
    channel: grpc.aio.Channel

    async def submitted(self, tool: str, args: Mapping[str, Any] | None = None, **fields: Any) -> str:
        """The id of the job; `tool` is its full name."""
        call = request(tool, args, **fields)
        asked = pb.SubmitJobRequest(intent=call.intent, context=call.context)
        return str((await self._jobs.SubmitJob(asked, timeout=WITHIN_S)).job.job_id)

    async def cancel(self, job_id: str) -> str:
        """The state it is in then."""
        return state((await self._jobs.CancelJob(pb.CancelJobRequest(job_id=job_id), timeout=WITHIN_S)).status)

    async def seen(self, job_id: str, fits: Callable[[job_pb2.JobStatus], bool]) -> list[job_pb2.JobStatus]:
        """The history until an entry fits."""
        entries = []
        watch = self._jobs.WatchJob(pb.WatchJobRequest(job_id=job_id), timeout=WITHIN_S)
        async for answer in watch:
            entries.append(answer.status)
            if fits(answer.status):
                watch.cancel()
                return entries
        raise AssertionError(f"it ended as {state(entries[-1])}: {entries[-1].error.message}")

    async def ended(self, job_id: str) -> list[job_pb2.JobStatus]:
        """The whole history."""
        return await self.seen(job_id, lambda status: status.HasField("result"))

    @property
    def _jobs(self) -> Any:
        return JobServiceStub(self.channel)
