"""Jobs as the suite of their stores uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.job import Job, JobStatus, move_job
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.domain.result import Evidence, EvidenceType, JobState, ToolResult

T0 = 1_700_000_000_000
HOUR_MS = 3_600_000
RESULT = ToolResult(
    ok=True,
    call_id="call-1",
    tool="core/math.sum",
    value={"sum": 2**70, "parts": [1.5, None]},
    evidence=(Evidence(EvidenceType.TOOL, "call-1", "summed", T0),),
)

FINAL = [state for state in JobState if state.is_final]


def a_job(job_id: str = "job-1", *, key: str = "", principal: str = "agent-a", **changes: Any) -> Job:
    """QUEUED. `changes` are of the call where it has such a field, else of the job."""
    call = Call("call-1", "core/math.sum", {"values": [1, 2]}, Principal(principal), idempotency_key=key)
    call = call._replace(**{name: value for name, value in changes.items() if name in Call._fields})
    at_unix_ms = changes.get("created_at_unix_ms", T0)
    job = Job(
        job_id=job_id,
        call=call,
        tool_version="1.0.0",
        tool_digest="d" * 64,
        args_digest="a" * 64,
        created_at_unix_ms=at_unix_ms,
        deadline_unix_ms=at_unix_ms + HOUR_MS,
        status=JobStatus(job_id, 1, JobState.QUEUED, at_unix_ms),
    )
    return replace(job, **{name: value for name, value in changes.items() if name not in Call._fields})


def running(job: Job, runner: str = "runner-1", at_unix_ms: int = T0 + 1) -> Job:
    return move_job(job, JobState.RUNNING, at_unix_ms, runner=runner, runs=job.runs + 1)


def ended(job: Job, state: JobState = JobState.SUCCEEDED, expires_at_unix_ms: int = T0 + HOUR_MS) -> Job:
    return move_job(job, state, T0 + 2, result=RESULT, runner="", expires_at_unix_ms=expires_at_unix_ms)


def in_state(job: Job, state: JobState) -> Sequence[Job]:
    """The records on the way from a QUEUED job to `state`, at its runner `runner-1` where it has one."""
    if state is JobState.QUEUED:
        return [job]
    if state is JobState.AWAITING_APPROVAL:
        return [job, move_job(job, state, T0 + 1)]
    runs = running(job)
    if state is JobState.RUNNING:
        return [job, runs]
    if state is JobState.CANCELLING:
        return [job, runs, move_job(runs, state, T0 + 2, cancel_reason="enough")]
    return [job, runs, ended(runs, state)]


async def kept(store: JobStore, *jobs: Job) -> Job:
    """Create the first and put the others over it; the last."""
    assert await store.create(jobs[0]) is None
    for job in jobs[1:]:
        assert await store.put(job)
    return jobs[-1]
