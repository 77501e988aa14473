"""The idempotency key of a job when its run ends, also while remote work may go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.unit.runtime.jobs.job_harness import MARK
from tests.unit.runtime.keyed_harness import a_keyed_harness, ask, call
from tests.unit.runtime.pipeline_harness import HANG, POLICY, NoJobs, PipelineHarness
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.key import EffectKey
from toolhub_service.domain.result import Outcome, ToolResult
from toolhub_service.stores.memory.keys import MemoryKeys

BUSY = POLICY + "limits: [{id: slow, rate_per_s: 1, burst: 1}]\n"


class MarkedJobs(NoJobs):
    def __init__(self, mark: RemoteMark | None) -> None:
        self._mark = mark

    async def mark(self, job_id: str) -> RemoteMark | None:
        return self._mark


def a_remote_harness(mark: RemoteMark | None, answer: object, policy: str = POLICY) -> PipelineHarness:
    harness = a_keyed_harness(answer, policy=policy)
    harness.pipeline = replace(harness.pipeline, running=MarkedJobs(mark))
    harness.adapter.keeps_marks = True
    return harness


async def _run_as_job(harness: PipelineHarness, number: int) -> ToolResult:
    answer = await harness.pipeline.invoke(call(number)._replace(job_id="job-1"))
    assert isinstance(answer, ToolResult)
    return answer


async def _cut_off(harness: PipelineHarness) -> None:
    run = asyncio.create_task(_run_as_job(harness, 1))
    await harness.adapter.started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


async def _is_held(harness: PipelineHarness) -> bool:
    """Whether another call with the key waits for the one that holds it, until its time is up."""
    refused = await ask(harness, 9, deadline_s=harness.clock.monotonic_s() + 0.01)
    return refused.error is not None and refused.error.kind is ErrorKind.TIMEOUT


async def test_run_that_was_cut_off_leaves_its_key_to_the_next_run() -> None:
    harness = a_remote_harness(MARK, HANG)
    await _cut_off(harness)
    assert await _is_held(harness)
    harness.adapter.answers = [Outcome(value={"text": "collected"})]
    again = await _run_as_job(harness, 2)
    assert (again.ok, again.replayed) == (True, False)
    assert (await ask(harness, 3)).replayed


async def test_mark_is_proof_where_the_adapter_does_not_know_the_tool_yet() -> None:
    """As after a restart, until a source has been read."""
    harness = a_remote_harness(MARK, HANG)
    harness.adapter.keeps_marks = False
    await _cut_off(harness)
    assert await _is_held(harness)


async def test_run_that_was_refused_on_its_way_to_its_work_keeps_the_key() -> None:
    """Else another call with the key would start a second work beside the one that goes on."""
    harness = a_remote_harness(MARK, HANG, BUSY)
    await _cut_off(harness)
    refused = await _run_as_job(harness, 2)
    assert refused.error is not None
    assert (refused.error.kind, refused.attempts) == (ErrorKind.RATE_LIMITED, 0)
    harness.clock.advance(1)
    assert await _is_held(harness)


async def test_run_that_was_refused_before_anything_was_sent_frees_the_key() -> None:
    harness = a_remote_harness(None, Outcome(value={"text": "done"}), BUSY)
    await ask(harness, 1, idempotency_key="other")
    assert not (await _run_as_job(harness, 2)).ok
    harness.clock.advance(1)
    assert (await ask(harness, 3)).ok


async def test_answer_is_stored_although_the_caller_goes_meanwhile() -> None:
    """The effect has happened: a key left behind would say for an hour that it still runs, then that nobody knows."""
    storing, store_it = asyncio.Event(), asyncio.Event()

    class SlowKeys(MemoryKeys):
        async def settle(self, key: EffectKey, owner: str, result: ToolResult, expires_at_unix_ms: int) -> bool:
            storing.set()
            await store_it.wait()
            return await super().settle(key, owner, result, expires_at_unix_ms)

    harness = a_keyed_harness()
    harness.pipeline.keys._store = SlowKeys(harness.clock)
    first = asyncio.create_task(ask(harness, 1))
    await storing.wait()
    first.cancel()
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    store_it.set()
    assert (await first).ok
    assert (await ask(harness, 2)).replayed
    assert len(harness.adapter.calls) == 1
