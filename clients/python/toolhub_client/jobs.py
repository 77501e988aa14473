"""Following a job across broken connections and restarted replicas.

Statuses carry a gapless sequence, so a watcher that reconnects with the last one it saw misses nothing and sees
nothing twice. Waits between attempts grow exponentially with full jitter (Brooker, "Exponential Backoff And Jitter"); a
hub that says when to come back (RetryInfo), as one that leaves does, is not asked before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import grpc
from google.rpc import error_details_pb2, status_pb2

from toolhub.v1 import job_pb2, job_service_pb2, job_state_pb2

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
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0


async def watch(
    stub: JobServiceAsyncStub,
    job_id: str,
    *,
    after_sequence: int,
    metadata: Sequence[tuple[str, str]],
    attempts: int,
) -> AsyncIterator[job_pb2.JobStatus]:
    """Every status after `after_sequence`, to a final one; none when that was the final one already.

    Raises AioRpcError, or ConnectionError when the hub ended the stream too early, once `attempts` in a row brought
    nothing.
    """
    seen, failed = after_sequence, 0
    while True:
        request = job_service_pb2.WatchJobRequest(job_id=job_id, after_sequence=seen)
        call = stub.WatchJob(request, metadata=tuple(metadata))
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
            broken = error
        finally:
            call.cancel()
        failed += 1
        if failed >= attempts:
            raise broken
        await asyncio.sleep(wait_s(failed, broken))


def wait_s(failed: int, broken: Exception) -> float:
    """Seconds before the next attempt, after so many in a row that brought nothing."""
    own_s = random.uniform(0, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0**failed))  # noqa: S311 - jitter, not a secret
    told_s = retry_after_s(broken) if isinstance(broken, grpc.aio.AioRpcError) else 0.0
    return max(own_s, min(told_s, LONGEST_WAIT_S) * random.uniform(1.0, 1.5))  # noqa: S311 - jitter, not a secret


def retry_after_s(error: grpc.aio.AioRpcError) -> float:
    """RetryInfo of a failed RPC; 0 where it has none."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                told = error_details_pb2.RetryInfo()
                if detail.Unpack(told):
                    return float(told.retry_delay.ToMilliseconds() / 1_000)
    return 0.0
