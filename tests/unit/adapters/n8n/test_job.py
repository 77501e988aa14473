"""Workflows that go on after they have answered: begun once despite failures, and not reported as done too early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from tests.fakes.n8n import FOREVER, Execution, How
from tests.fakes.remote_harness import RecordingSink
from tests.fakes.running_jobs import FakeRunningJobs
from tests.unit.adapters.n8n.flows import ECHO, FLOWS, NAMES_ITSELF, dedupes, flow, sets
from tests.unit.adapters.n8n.n8n_harness import (
    ASYNC,
    JOB_ID,
    KEY_HEADER,
    SYNC,
    WITHIN_S,
    N8nHarness,
    before,
    n8n_harness,
)
from toolhub_service.adapters.n8n.job import MissingTerms
from toolhub_service.adapters.n8n.kind import BusinessError
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.result import Outcome

ALL = {"long": ASYNC, "patient": ASYNC, "breaks-late": ASYNC, "fires": ASYNC, "once": replace(ASYNC, deduplicates=True)}


class RunningJob:
    """One that runs."""

    def __init__(self, harness: N8nHarness, task: asyncio.Task[Outcome | ToolError], sink: RecordingSink) -> None:
        self.harness = harness
        self.task = task
        self.sink = sink

    async def began(self, workflow: str = "long") -> Execution:
        return await self.harness.n8n.began(workflow)

    async def outcome(self) -> Outcome:
        ended = await self.task
        assert isinstance(ended, Outcome), ended.message
        return ended

    async def error(self) -> ToolError:
        ended = await self.task
        assert isinstance(ended, ToolError), ended.value
        return ended


async def begun(
    harness: N8nHarness, own_name: str = "long", args: dict[str, Any] | None = None, **more: Any
) -> RunningJob:
    sink = RecordingSink()
    call = await harness.call(own_name, args, job_id=JOB_ID, **more)
    return RunningJob(harness, asyncio.create_task(harness.ended(harness.adapter.execute(call, sink))), sink)


def _attributes(outcome: Outcome) -> dict[str, str]:
    return {name: value for proof in outcome.evidence for name, value in proof.attributes.items()}


@asynccontextmanager
async def holding(**more: Any) -> AsyncIterator[N8nHarness]:
    """n8n holds every wait until it is released."""
    async with n8n_harness(ALL, flows=[*FLOWS, dedupes("once")], time_scale=None, **more) as harness:
        yield harness


@pytest.fixture
async def harness() -> AsyncIterator[N8nHarness]:
    async with n8n_harness(ALL, flows=[*FLOWS, dedupes("once")]) as harness:
        yield harness


@pytest.fixture
async def held() -> AsyncIterator[N8nHarness]:
    async with holding() as harness:
        yield harness


async def test_a_workflow_is_begun_followed_and_returns_the_output_of_its_last_node(held: N8nHarness) -> None:
    job = await begun(held, args={"a": 1})
    execution = await job.began()
    await job.sink.until_reported("running")
    held.n8n.release(execution.id)
    outcome = await job.outcome()
    assert outcome.value == {"echo": {"a": 1}}
    facts = _attributes(outcome)
    assert (facts["execution_id"], facts["execution_status"], facts["workflow_id"]) == ("1", "success", "long")
    assert facts["workflow_version"] == held.n8n.workflows["long"].version_id
    assert facts["duration_ms"].isdecimal()
    assert job.sink.progresses[-1].step == 1.0


async def test_the_key_of_a_remote_job_is_that_of_its_mark(harness: N8nHarness) -> None:
    job = await begun(harness)
    await job.outcome()
    (asked,) = harness.n8n.asked("POST", "/webhook/long")
    assert asked.headers[KEY_HEADER] == harness.running.kept.marks[JOB_ID].key


async def test_several_items_are_an_array_and_none_are_nothing() -> None:
    several = flow("several", "responseNode", NAMES_ITSELF, {**ECHO, "type": "n8n-nodes-base.code", "name": "Many"})
    async with n8n_harness({"several": ASYNC}, flows=[several]) as harness:
        harness.n8n.code("Many", lambda items, _: [{"json": {"n": n}} for n in range(3)])
        assert (await (await begun(harness, "several")).outcome()).value == [{"n": 0}, {"n": 1}, {"n": 2}]


class TestWaiting:
    async def test_progress_states_until_when(self, held: N8nHarness) -> None:
        job = await begun(held, "patient")
        execution = await job.began("patient")
        await job.sink.until_reported("waiting until 20")
        held.n8n.release(execution.id)
        assert (await job.outcome()).value == {"echo": {}}

    async def test_a_job_goes_on_after_a_restart(self, held: N8nHarness) -> None:
        job = await begun(held, "patient")
        execution = await job.began("patient")
        await job.sink.until_reported("waiting until")
        await held.n8n.restart()
        held.n8n.release(execution.id)
        assert (await job.outcome()).value == {"echo": {}}
        assert held.n8n.starts("patient") == 1


class TestErrors:
    async def test_an_error_in_it_is_reported_without_traces_and_paths(self, harness: N8nHarness) -> None:
        error = await (await begun(harness, "breaks-late")).error()
        assert error.kind is ErrorKind.EXECUTION_ERROR
        assert "boom at [path] for good" in error.message
        assert "/opt/" not in repr(error)
        assert error.details["remote_id"] == "1"

    async def test_an_execution_that_crashed_in_a_restart_has_failed(self, held: N8nHarness) -> None:
        job = await begun(held)
        await job.began()
        await job.sink.until_reported("running")
        await held.n8n.restart()
        error = await job.error()
        assert (error.kind, error.details["execution_status"]) == (ErrorKind.EXECUTION_ERROR, "crashed")

    async def test_an_error_before_it_could_answer_is_found(self) -> None:
        async with n8n_harness({"breaks": ASYNC}) as harness:
            error = await (await begun(harness, "breaks")).error()
            assert "boom from workflow" in error.message
            assert harness.n8n.starts("breaks") == 1

    async def test_a_result_that_means_failure_is_a_failure(self) -> None:
        terms = replace(ASYNC, fails_when=(BusinessError(at="/echo/ok", equals=False, message="/echo/why"),))
        async with n8n_harness({"long": terms}) as harness:
            error = await (await begun(harness, args={"ok": False, "why": "sold out"})).error()
        assert (error.kind, "sold out" in error.message) == (ErrorKind.EXECUTION_ERROR, True)

    async def test_a_refused_start_has_begun_nothing_and_may_be_tried_again(self, harness: N8nHarness) -> None:
        harness.n8n.fails("/webhook/*", How.BUSY)
        error = await (await begun(harness)).error()
        assert (error.kind, error.is_retryable, harness.n8n.starts("long")) == (ErrorKind.TOOL_UNAVAILABLE, True, 0)

    async def test_a_result_that_is_too_large_is_reported_as_done(self) -> None:
        big = flow("big", "responseNode", NAMES_ITSELF, sets(f'{{ text: "{"x" * 20_000}" }}'))
        async with n8n_harness({"big": ASYNC}, flows=[big], max_response_bytes=15_000) as harness:
            error = await (await begun(harness, "big")).error()
        assert error.kind is ErrorKind.HTTP_TOO_LARGE
        assert "Its effect is done" in error.message


@pytest.mark.promise("workflow.never-twice")
class TestDoubtfulStarts:
    @pytest.mark.parametrize("how", [How.LOSE_ANSWER, How.CUT, How.ERROR_AFTER, How.EMPTY, How.GARBAGE, How.TRUNCATED])
    async def test_an_answer_that_is_lost_or_inconclusive_is_looked_up(self, held: N8nHarness, how: How) -> None:
        held.n8n.fails("/webhook/*", how)
        job = await begun(held, args={"a": 1})
        execution = await job.began()
        if how is How.ERROR_AFTER:
            assert (await job.error()).kind is ErrorKind.EXECUTION_ERROR
        else:
            held.n8n.release(execution.id)
            assert (await job.outcome()).value == {"echo": {"a": 1}}
        assert held.n8n.starts("long") == 1

    async def test_a_start_that_is_not_found_is_never_sent_again(self, harness: N8nHarness) -> None:
        harness.n8n.fails("/webhook/*", How.DROP)
        error = await (await begun(harness)).error()
        assert (error.kind, error.details["cause"]) == (ErrorKind.OUTCOME_UNKNOWN, "START_UNCLEAR")
        assert "may have run all the same" in error.message
        assert len(harness.n8n.asked("POST", "/webhook/*")) == 1

    async def test_a_later_execution_is_found_and_not_begun_twice(self, held: N8nHarness) -> None:
        fault = held.n8n.fails("/webhook/*", How.LATER)
        job = await begun(held, "once", {"a": 1})
        await held.n8n.was_asked("GET", "/api/v1/executions")
        fault.let_go()
        first = await held.n8n.began("once")
        held.n8n.release(first.id)
        assert (await job.outcome()).value == {"echo": {"a": 1}}

    async def test_a_workflow_that_knows_its_keys_is_begun_again_under_the_same_key(self, harness: N8nHarness) -> None:
        harness.n8n.fails("/webhook/*", How.DROP)
        assert (await (await begun(harness, "once", {"a": 1})).outcome()).value == {"echo": {"a": 1}}
        first, second = harness.n8n.asked("POST", "/webhook/*")
        assert first.headers[KEY_HEADER] == second.headers[KEY_HEADER]
        assert harness.n8n.starts("once") == 1

    async def test_the_older_of_two_executions_with_one_key_counts(self, held: N8nHarness) -> None:
        held.n8n.fails("/webhook/*", How.TWICE)
        job = await begun(held, "once", {"a": 1})
        await held.n8n.began("once", 2)
        for execution in held.n8n.executions:
            held.n8n.release(execution.id)
        assert (await job.outcome()).value == {"echo": {"a": 1}}
        assert len(held.n8n.asked("POST", "/webhook/*")) == 1

    async def test_a_workflow_that_does_not_name_its_execution_is_followed_anyway(self, held: N8nHarness) -> None:
        job = await begun(held, "fires", {"a": 1})
        execution = await job.began("fires")
        held.n8n.release(execution.id)
        outcome = await job.outcome()
        assert outcome.value == {"echo": {"a": 1}}
        assert _attributes(outcome)["looked_up"] == "true"

    async def test_an_answer_of_a_gateway_is_looked_up(self, harness: N8nHarness) -> None:
        harness.n8n.fails("/webhook/*", How.BAD_GATEWAY)
        error = await (await begun(harness)).error()
        assert (error.kind, error.details["cause"]) == (ErrorKind.OUTCOME_UNKNOWN, "START_UNCLEAR")


class TestFollowing:
    @pytest.mark.parametrize(
        "how", [How.DROP, How.CUT, How.BUSY, How.UNAUTHORIZED, How.GARBAGE, How.NO_ROUTE, How.EMPTY]
    )
    async def test_an_api_that_does_not_answer_well_is_asked_again(self, held: N8nHarness, how: How) -> None:
        job = await begun(held)
        execution = await job.began()
        await job.sink.until_reported("running")
        held.n8n.fails("/api/v1/executions/*", how, times=3, retry_after="0")
        held.n8n.release(execution.id)
        if how is How.UNAUTHORIZED:
            await job.sink.until_reported("api_key")
            job.task.cancel()
            await asyncio.wait({job.task})
        else:
            assert (await job.outcome()).value == {"echo": {}}

    async def test_a_watcher_is_notified_when_n8n_does_not_answer(self, held: N8nHarness) -> None:
        job = await begun(held, args={"a": 1})
        execution = await job.began()
        await job.sink.until_reported("running")
        fault = held.n8n.fails("/api/v1/*", How.DROP, times=FOREVER)
        await job.sink.until_reported("The hub will ask n8n again")
        fault.over()
        held.n8n.release(execution.id)
        assert (await job.outcome()).value == {"echo": {"a": 1}}

    async def test_an_execution_that_is_missing_for_a_moment_is_waited_for(self) -> None:
        async with holding(missing=MissingTerms(polls=3, timeout_s=WITHIN_S)) as harness:
            job = await begun(harness, args={"a": 1})
            execution = await job.began()
            await job.sink.until_reported("running")
            known = harness.n8n.executions.known.pop(execution.id)
            asked = len(harness.n8n.asked("GET", f"/api/v1/executions/{execution.id}"))
            await harness.n8n.was_asked("GET", f"/api/v1/executions/{execution.id}", asked + 5)
            harness.n8n.executions.known[execution.id] = known
            harness.n8n.release(execution.id)
            assert (await job.outcome()).value == {"echo": {"a": 1}}

    @pytest.mark.promise("workflow.never-false-done")
    async def test_a_forgotten_execution_is_never_done(self, held: N8nHarness) -> None:
        job = await begun(held)
        await job.began()
        await job.sink.until_reported("running")
        held.n8n.executions.forget()
        error = await job.error()
        assert (error.kind, error.details["cause"]) == (ErrorKind.OUTCOME_UNKNOWN, "END_UNCLEAR")
        assert "pruned" in error.message

    @pytest.mark.promise("workflow.found-again")
    async def test_another_run_attaches_to_the_same_execution(self, held: N8nHarness) -> None:
        first = await begun(held, args={"a": 1})
        execution = await first.began()
        await first.sink.until_reported("running")
        first.task.cancel()
        await asyncio.wait({first.task})
        running = FakeRunningJobs(held.running.kept)
        async with before(held.n8n, ALL, running=running) as later:
            second = await begun(later, args={"a": 1})
            await second.sink.until_reported("running")
            held.n8n.release(execution.id)
            outcome = await second.outcome()
        assert outcome.value == {"echo": {"a": 1}}
        assert _attributes(outcome)["attached"] == "2"
        assert held.n8n.starts("long") == 1

    async def test_a_job_is_followed_though_the_workflow_is_set_otherwise_by_now(self, held: N8nHarness) -> None:
        first = await begun(held)
        execution = await first.began()
        await first.sink.until_reported("running")
        first.task.cancel()
        await asyncio.wait({first.task})
        async with before(held.n8n, {"long": SYNC}, running=FakeRunningJobs(held.running.kept)) as later:
            second = await begun(later)
            await second.sink.until_reported("running")
            held.n8n.release(execution.id)
            assert (await second.outcome()).value == {"echo": {}}
        assert held.n8n.starts("long") == 1

    async def test_a_stored_value_that_is_no_id_never_gets_into_a_url(self, harness: N8nHarness) -> None:
        mark = RemoteMark(key="k", remote_id="../workflows/1", accepted=True)
        harness.running.kept.marks[JOB_ID] = mark
        error = await (await begun(harness)).error()
        assert error.kind is ErrorKind.OUTCOME_UNKNOWN
        assert not harness.n8n.asked("GET", "/api/v1/executions*")


class TestStopping:
    async def test_an_execution_is_stopped_where_possible(self, held: N8nHarness) -> None:
        job = await begun(held)
        execution = await job.began()
        await job.sink.until_reported("running")
        held.running.kept.cancelled.set()
        assert (await job.error()).kind is ErrorKind.CANCELLED
        assert execution.status == "canceled"

    @pytest.mark.promise("workflow.cancel-is-confirmed")
    async def test_an_older_version_cannot_and_it_goes_on_to_its_end(self) -> None:
        async with holding(version="2.8.4") as harness:
            job = await begun(harness)
            execution = await job.began()
            harness.running.kept.cancelled.set()
            await job.sink.until_reported("cannot stop")
            harness.n8n.release(execution.id)
            assert (await job.outcome()).value == {"echo": {}}

    async def test_a_key_that_may_not_stop_is_reported(self) -> None:
        async with holding() as first:
            first.n8n.api_key = first.n8n.make_key("execution:read", "execution:list", "workflow:list", "workflow:read")
            async with before(first.n8n, ALL) as harness:
                job = await begun(harness)
                execution = await job.began()
                harness.running.kept.cancelled.set()
                await job.sink.until_reported("refuses to stop")
                harness.n8n.release(execution.id)
                assert isinstance(await job.task, Outcome)

    @pytest.mark.promise("workflow.cancel-is-confirmed")
    async def test_a_stop_that_is_slow_is_waited_for(self, held: N8nHarness) -> None:
        job = await begun(held)
        await job.began()
        await job.sink.until_reported("running")
        fault = held.n8n.fails("/api/v1/executions/*/stop", How.STALL)
        held.running.kept.cancelled.set()
        await held.n8n.was_asked("POST", "/api/v1/executions/*/stop")
        assert not job.task.done()
        fault.let_go()
        assert (await job.error()).kind is ErrorKind.CANCELLED

    async def test_an_execution_that_ended_meanwhile_returns_its_result(self, held: N8nHarness) -> None:
        job = await begun(held)
        execution = await job.began()
        await job.sink.until_reported("running")
        place = f"/api/v1/executions/{execution.id}"
        following = held.n8n.fails(place, How.STALL, method="GET")
        await held.n8n.was_asked("GET", place, len(held.n8n.asked("GET", place)) + 1)
        held.n8n.release(execution.id)
        await held.n8n.ended(execution.id)
        held.running.kept.cancelled.set()
        await held.n8n.was_asked("POST", "/api/v1/executions/*/stop")
        following.let_go()
        assert (await job.outcome()).value == {"echo": {}}


async def test_a_job_under_way_ends_where_it_began_when_its_source_is_closed(held: N8nHarness) -> None:
    job = await begun(held, args={"a": 1})
    execution = await job.began()
    await held.n8n.was_asked("GET", f"/api/v1/executions/{execution.id}")
    call = await held.call("fires", job_id="job-2")
    await held.source.close()
    refused = await held.ended(held.adapter.execute(call, RecordingSink()))
    assert isinstance(refused, ToolError)
    assert refused.kind is ErrorKind.TOOL_UNAVAILABLE
    assert not held.server.client.is_closed
    held.n8n.release(execution.id)
    assert (await job.outcome()).value == {"echo": {"a": 1}}
    assert held.server.client.is_closed
