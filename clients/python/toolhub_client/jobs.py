"""Following a job across broken connections and restarted replicas.

Statuses carry a gapless sequence, so a watcher that reconnects with the last one it saw misses nothing and sees
nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
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


async def watch(
    stub: JobServiceAsyncStub, job_id: str, *, after_sequence: int, attempts: int
) -> AsyncGenerator[job_pb2.JobStatus, None]:
    """Every status after `after_sequence`, to a final one; none when that was the final one already.

    Raises AioRpcError, or ConnectionError when the hub ended the stream too early, once `attempts` in a row brought
    nothing.
    """
    seen, failed = after_sequence, 0
    while True:
        call = stub.WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id, after_sequence=seen))
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
