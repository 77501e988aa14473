"""Following a job across broken connections and restarted replicas.

Statuses carry a gapless sequence, so a watcher that reconnects with the last one it saw misses nothing and sees
nothing twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

from toolhub.v1 import job_pb2, job_service_pb2, job_state_pb2
from toolhub_client.watches import OnOutage, watch

if TYPE_CHECKING:  # asyncio stubs exist as types only
    from toolhub.v1.job_service_pb2_grpc import JobServiceAsyncStub

FINAL_STATES = frozenset(
    {
        job_state_pb2.JOB_STATE_SUCCEEDED,
        job_state_pb2.JOB_STATE_FAILED,
        job_state_pb2.JOB_STATE_CANCELLED,
        job_state_pb2.JOB_STATE_TIMED_OUT,
        job_state_pb2.JOB_STATE_LOST,
    }
)
# As many as a request may name.
_RESUMED_MAX = 1_024


async def watch_one(
    stub: JobServiceAsyncStub,
    job_id: str,
    *,
    after_sequence: int,
    from_first: bool = False,
    attempts: int | None,
    on_outage: OnOutage | None = None,
) -> AsyncGenerator[job_pb2.JobStatus, None]:
    """Every status after `after_sequence`, to a final one; none when that was the final one already.

    Raises as `watches.watch`.
    """
    request = job_service_pb2.WatchJobRequest(job_id=job_id, after_sequence=after_sequence, from_first=from_first)

    def was_over(messages: int) -> bool:
        """A stream ends by itself only after the final status, which was seen before."""
        return messages == 0 < request.after_sequence

    responses = watch(
        lambda: stub.WatchJob(request), f"job {job_id}", attempts=attempts, on_outage=on_outage, ended=was_over
    )
    async with aclosing(responses):
        async for response in responses:
            request.after_sequence = response.status.sequence
            yield response.status
            if response.status.state in FINAL_STATES:
                return


async def watch_many(
    stub: JobServiceAsyncStub,
    request: job_service_pb2.WatchJobsRequest,
    *,
    attempts: int | None,
    on_outage: OnOutage | None = None,
) -> AsyncGenerator[job_pb2.JobStatus, None]:
    """As `watch_one`, of several jobs: it ends once every named one is final, and never where none is named."""
    seen, waits_for, is_named = dict(request.after_sequences), set(request.job_ids), bool(request.job_ids)
    responses = watch(
        lambda: stub.WatchJobs(_resumed(request, seen, waits_for)),
        "several jobs",
        attempts=attempts,
        on_outage=on_outage,
        ended=lambda _: is_named,
    )
    async with aclosing(responses):
        async for response in responses:
            status = response.status
            if status.sequence <= seen.get(status.job_id, 0):
                continue
            if status.state in FINAL_STATES:
                waits_for.discard(status.job_id)
                seen.pop(status.job_id, None)
            else:
                seen[status.job_id] = status.sequence
            yield status
            if is_named and not waits_for:
                return


def _resumed(
    request: job_service_pb2.WatchJobsRequest, seen: Mapping[str, int], job_ids: Collection[str]
) -> job_service_pb2.WatchJobsRequest:
    resumed = job_service_pb2.WatchJobsRequest()
    resumed.CopyFrom(request)
    resumed.job_ids[:] = sorted(job_ids)
    resumed.after_sequences.clear()
    resumed.after_sequences.update(list(seen.items())[-_RESUMED_MAX:])  # the others begin with their state of now
    return resumed
