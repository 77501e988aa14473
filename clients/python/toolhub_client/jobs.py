"""Following a job across broken connections and restarted replicas.

Statuses carry a gapless sequence, so a watcher that reconnects with the last one it saw misses nothing and sees
nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import TYPE_CHECKING

import grpc

from toolhub.v1 import job_pb2, job_service_pb2, job_state_pb2
from toolhub_client.channel import pause_after
from toolhub_client.failures import hub_error

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
BROKEN = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
    }
)
"""How a watch ends that may be begun again: a hub that leaves, is killed or is overloaded, a connection that breaks."""


# As many as a request may name.
_RESUMED_MAX = 1_024


async def watch(
    stub: JobServiceAsyncStub, job_id: str, *, after_sequence: int, from_first: bool = False, attempts: int
) -> AsyncGenerator[job_pb2.JobStatus, None]:
    """Every status after `after_sequence`, to a final one; none when that was the final one already.

    Raises AioRpcError, or ConnectionError when the hub ended the stream too early, once `attempts` in a row brought
    nothing.
    """
    seen, failed = after_sequence, 0
    while True:
        asked = job_service_pb2.WatchJobRequest(job_id=job_id, after_sequence=seen, from_first=from_first)
        call = stub.WatchJob(asked)
        broken: Exception = ConnectionError(f"the hub ends the watch of job {job_id} before the job is over")
        before = seen
        try:
            async for response in call:
                seen, failed = response.status.sequence, 0
                yield response.status
                if response.status.state in FINAL_STATES:
                    return
            if seen == before > 0:
                return  # a stream ends by itself only after the final status, which was seen before
        except grpc.aio.AioRpcError as error:
            if error.code() not in BROKEN:
                raise
            broken = hub_error(error)
        finally:
            call.cancel()
        failed += 1
        if failed >= attempts:
            raise broken
        await asyncio.sleep(pause_after(failed, broken))


async def watch_many(
    stub: JobServiceAsyncStub, request: job_service_pb2.WatchJobsRequest, *, attempts: int
) -> AsyncGenerator[job_pb2.JobStatus, None]:
    """As `watch`, of several jobs: it ends once every named one is final, and never where none is named."""
    seen, failed, waits_for = dict(request.after_sequences), 0, set(request.job_ids)
    while waits_for or not request.job_ids:
        call = stub.WatchJobs(_resumed(request, seen, waits_for))
        broken: Exception = ConnectionError("the hub ends the watch before the jobs are over")
        try:
            async for response in call:
                status, failed = response.status, 0
                if status.sequence <= seen.get(status.job_id, 0):
                    continue
                if status.state in FINAL_STATES:
                    waits_for.discard(status.job_id)
                    seen.pop(status.job_id, None)
                else:
                    seen[status.job_id] = status.sequence
                yield status
            if request.job_ids:
                return
        except grpc.aio.AioRpcError as error:
            if error.code() not in BROKEN:
                raise
            broken = hub_error(error)
        finally:
            call.cancel()
        failed += 1
        if failed >= attempts:
            raise broken
        await asyncio.sleep(pause_after(failed, broken))


def _resumed(
    request: job_service_pb2.WatchJobsRequest, seen: Mapping[str, int], job_ids: Collection[str]
) -> job_service_pb2.WatchJobsRequest:
    resumed = job_service_pb2.WatchJobsRequest()
    resumed.CopyFrom(request)
    resumed.job_ids[:] = sorted(job_ids)
    resumed.after_sequences.clear()
    resumed.after_sequences.update(list(seen.items())[-_RESUMED_MAX:])  # the others begin with their state of now
    return resumed
