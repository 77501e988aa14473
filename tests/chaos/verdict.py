"""What must hold after any number of kills. `broken_promises` names every job or watcher for which it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tests.chaos.fleet import Submitted, WatchedJob
from toolhub.v1 import error_pb2, job_pb2, job_state_pb2
from toolhub_client import FINAL_STATES

SUCCEEDED, LOST = job_state_pb2.JOB_STATE_SUCCEEDED, job_state_pb2.JOB_STATE_LOST
CANCELLED = job_state_pb2.JOB_STATE_CANCELLED


def broken_promises(
    submitted: Mapping[str, Submitted],
    jobs: Mapping[str, job_pb2.Job],
    watched: Sequence[WatchedJob],
    effects: Counter[str],
    *,
    is_store_away: bool = False,
) -> list[str]:
    """Empty when all were kept. While the store is away a job that has not begun may be refused, and say so."""
    found = [*_of_the_store(submitted, jobs)]
    for mine in submitted.values():
        for job_id in mine.job_ids & jobs.keys():
            job = jobs[job_id]
            if is_store_away and _was_refused(job) and not effects[mine.marker]:
                continue
            found += (f"{mine.marker} ({mine.tool}): {wrong}" for wrong in _of_a_job(mine, job, effects))
    for one in watched:
        found += (f"watch of {one.job_id}: {wrong}" for wrong in _of_a_watcher(one, jobs))
    return found


def _of_the_store(submitted: Mapping[str, Submitted], jobs: Mapping[str, job_pb2.Job]) -> Iterator[str]:
    known = {job_id for mine in submitted.values() for job_id in mine.job_ids}
    yield from (f"job {job_id} was lost" for job_id in known - jobs.keys())
    yield from (f"job {job_id} belongs to no submission" for job_id in jobs.keys() - known)
    for mine in submitted.values():
        if len(mine.job_ids) != 1:
            yield f"{mine.marker} has {len(mine.job_ids)} jobs"


def _was_refused(job: job_pb2.Job) -> bool:
    error = job.status.error
    return error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE and error.retryable and bool(error.message)


def _of_a_job(mine: Submitted, job: job_pb2.Job, effects: Counter[str]) -> Iterator[str]:
    status = job.status
    state = job_state_pb2.JobState.Name(status.state)
    if status.state not in FINAL_STATES:
        yield f"ended in {state}"
    allowed = {SUCCEEDED}
    if mine.tool == "chaos/effect.once":
        allowed.add(LOST)
    if mine.is_cancelled:
        allowed.add(CANCELLED)
    if status.state not in allowed:
        yield f"is {state}: {status.error.message}"
    if status.state == SUCCEEDED and mine.marker.encode() not in status.result.result_json:
        yield "succeeded without its result"
    if status.state != SUCCEEDED and not status.error.message:
        yield f"is {state} without an explanation"
    if effects[mine.marker] > 1:
        yield f"had its effect {effects[mine.marker]} times"
    if mine.tool == "chaos/effect.once" and status.state == SUCCEEDED and effects[mine.marker] != 1:
        yield "succeeded without its effect"


def _of_a_watcher(watched: WatchedJob, jobs: Mapping[str, job_pb2.Job]) -> Iterator[str]:
    for before, after in pairwise(watched.sequences):
        if after <= before:
            yield f"{after} came again after {before}"
        if after > before + 1:
            yield f"{after} came after {before}, with a gap"
    job = jobs.get(watched.job_id)
    if job is None or watched.last is None:
        yield "saw nothing"
    elif watched.last.sequence != job.status.sequence or watched.last.state != job.status.state:
        yield f"ended at {watched.last.sequence}, the job at {job.status.sequence}"
