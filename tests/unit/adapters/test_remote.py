"""What a run of a remote job stores, reports and leaves behind; failures are in test_remote_faults.py."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable

import httpx
import pytest

from tests.fakes.clock import FixedRandomness
from tests.fakes.http_remote_job import HttpRemoteJob
from tests.fakes.job_server import JobServer, job_server
from tests.fakes.job_server_faults import How, Op
from tests.fakes.outcomes import outcome_of
from tests.fakes.remote_harness import (
    BRISK,
    JOB_ID,
    SOON,
    WITHIN_S,
    LoopClock,
    RecordingSink,
    RemoteJobHarness,
    a_client,
    remote_call,
)
from tests.fakes.running_jobs import FakeRunningJobs, KeptMarks
from toolhub_service.adapters.remote import RemoteExecutor, RemoteTerms
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.domain.call import GrantedCall, Question, QuestionAsked
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, refuse
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.result import Outcome

HELD = {"holds": True, "result": "made"}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with a_client() as client:
        yield client


@pytest.fixture
async def server() -> AsyncIterator[JobServer]:
    async with job_server() as server:
        yield server


@pytest.fixture
def harness(server: JobServer, client: httpx.AsyncClient) -> RemoteJobHarness:
    return RemoteJobHarness(server, client)


@pytest.mark.promise("jobs.remote-once")
async def test_a_mark_is_kept_before_anything_is_sent_and_again_before_it_is_followed(
    harness: RemoteJobHarness,
) -> None:
    await harness.run()
    before = [name.removeprefix("before ") for name in harness.life.contacts if name.startswith("before ")]
    assert before == ["mark", "keep_mark", "start", "keep_mark", "follow", "collect"]
    minted, accepted = harness.kept.history
    assert (minted.accepted, minted.remote_id) == (False, "")
    assert (accepted.accepted, accepted.remote_id, accepted.endpoint) == (True, "r-1", harness.server.url)
    assert minted.key == accepted.key


async def test_the_key_is_a_uuid_that_is_the_jobs_own_for_ever(harness: RemoteJobHarness) -> None:
    await harness.run()
    key = harness.kept.marks[JOB_ID].key
    assert str(uuid.UUID(key)) == key
    twin = RemoteJobHarness(harness.server, harness.client)
    await twin.run(job_id="job-2")
    again = RemoteJobHarness(harness.server, harness.client)
    await again.run()
    assert again.kept.marks[JOB_ID].key == key != twin.kept.marks["job-2"].key


async def test_progress_reaches_the_sink_and_the_evidence_states_where_it_ran(harness: RemoteJobHarness) -> None:
    outcome = await harness.run(work={"steps": 3, "result": "made"})
    assert [progress.step for progress in harness.sink.progresses] == [1, 2, 3]
    assert isinstance(outcome, Outcome)
    (evidence,) = outcome.evidence
    assert evidence.ref == "r-1"
    assert harness.server.url in evidence.summary
    assert evidence.attributes["attached"] == "1"
    assert evidence.attributes["remote_key"] == harness.kept.marks[JOB_ID].key


async def test_a_run_anew_follows_what_runs_and_starts_nothing(harness: RemoteJobHarness) -> None:
    first = harness.begin(work=HELD)
    await harness.sink.until_reported("step")
    first.cancel()
    await asyncio.wait({first})
    harness.server.let_go.set()
    outcome = await harness.successor().run(work=HELD)
    assert isinstance(outcome, Outcome)
    assert outcome.evidence[-1].attributes["attached"] == "2"
    assert harness.server.asked[Op.START] == 1
    assert harness.server.asked[Op.FIND] == 0


async def test_a_call_without_a_job_is_a_defect_and_sends_nothing(harness: RemoteJobHarness) -> None:
    error = await harness.run(job_id="")
    assert isinstance(error, ToolError)
    assert error.kind is ErrorKind.INTERNAL
    assert "Submit it as a job" in error.message
    assert not harness.server.asked


async def test_a_question_is_handed_on_and_the_next_run_starts_anew(
    harness: RemoteJobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asks(call: GrantedCall, mark: RemoteMark) -> RemoteMark:
        raise QuestionAsked(Question("May I?", {}, ""))

    with monkeypatch.context() as before_its_answer:
        before_its_answer.setattr(harness.remote, "start", asks)
        with pytest.raises(QuestionAsked):
            await harness.run()
    assert harness.kept.marks[JOB_ID].details["refused"] == "true"
    assert isinstance(await harness.successor().run(), Outcome)
    assert (harness.server.asked[Op.START], harness.server.asked[Op.FIND]) == (1, 0)


async def test_a_job_that_is_cancelled_before_it_began_never_begins(harness: RemoteJobHarness) -> None:
    harness.kept.cancelled.set()
    error = await harness.run()
    assert isinstance(error, ToolError)
    assert (error.kind, harness.server.asked[Op.START]) == (ErrorKind.CANCELLED, 0)
    assert "nothing happened" in error.message


async def test_a_job_that_is_cancelled_while_its_start_is_in_doubt_is_found_and_stopped(
    harness: RemoteJobHarness,
) -> None:
    harness.server.script.add(Op.START, How.LOSE_ANSWER)
    harness.server.script.add(Op.FIND, How.ERROR)
    running = harness.begin(work=HELD)
    await harness.server.was_asked(Op.START)
    harness.kept.cancelled.set()
    error = await outcome_of(running)
    assert (error.kind, harness.server.effects.total()) == (ErrorKind.CANCELLED, 1)
    assert [task.state for task in harness.server.memory.tasks.values()] == ["cancelled"]


async def test_a_caller_is_notified_that_the_remote_side_is_stopping(harness: RemoteJobHarness) -> None:
    running = harness.begin(work={**HELD, "stops_after": 3})
    await harness.sink.until_reported("step")
    harness.kept.cancelled.set()
    await harness.sink.until_reported("waiting for its confirmation")
    assert (await outcome_of(running)).kind is ErrorKind.CANCELLED
    assert harness.server.asked[Op.CANCEL] == 1


async def test_a_request_to_stop_that_is_under_way_ends_with_the_run(harness: RemoteJobHarness) -> None:
    harness.server.script.add(Op.CANCEL, How.HOLD)
    running = harness.begin(work=HELD)
    await harness.sink.until_reported("step")
    harness.kept.cancelled.set()
    assert (await outcome_of(running)).kind is ErrorKind.CANCELLED
    assert not [task for task in asyncio.all_tasks() if "_stop_when_asked" in repr(task)]


@pytest.mark.parametrize(("how", "words"), [(How.REFUSE, "refuses to stop"), (None, "cannot stop")])
async def test_work_that_cannot_be_stopped_is_reported_and_goes_on(
    client: httpx.AsyncClient, how: How | None, words: str
) -> None:
    async with job_server(can_stop=False) as server:
        if how is not None:
            server.script.add(Op.CANCEL, how)
        harness = RemoteJobHarness(server, client)
        running = harness.begin(work=HELD)
        await harness.sink.until_reported("step")
        harness.kept.cancelled.set()
        await harness.sink.until_reported(words)
        server.let_go.set()
        assert isinstance(await outcome_of(running), Outcome)


async def _until_deadline(harness: RemoteJobHarness, ready: Awaitable[None]) -> None:
    """Run under a timeout as the runtime does, and let the deadline pass once the test is ready for it."""
    deadline_s = asyncio.get_running_loop().time() + 3_600
    limit = asyncio.timeout_at(deadline_s)

    async def run() -> None:
        async with limit:
            await harness.executor.execute(remote_call(harness.server.url, HELD, deadline_s=deadline_s), harness.sink)

    running = asyncio.create_task(run())
    await ready
    harness.clock.skipped_s = 3_600
    limit.reschedule(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(running, WITHIN_S)


async def test_at_the_deadline_the_remote_side_is_asked_once_to_stop(harness: RemoteJobHarness) -> None:
    await _until_deadline(harness, harness.sink.until_reported("step"))
    assert harness.server.asked[Op.CANCEL] == 1
    assert "was asked to stop" in harness.sink.progresses[-1].message
    assert [task.state for task in harness.server.memory.tasks.values()] == ["cancelling"]


async def test_at_the_deadline_a_start_without_an_answer_is_looked_up_and_stopped(harness: RemoteJobHarness) -> None:
    harness.server.script.add(Op.START, How.HOLD)
    await _until_deadline(harness, harness.server.was_asked(Op.START))
    assert harness.kept.marks[JOB_ID].accepted is False
    assert [task.state for task in harness.server.memory.tasks.values()] == ["cancelling"]


async def test_at_the_deadline_one_that_was_asked_to_stop_is_not_asked_again(harness: RemoteJobHarness) -> None:
    harness.server.script.add(Op.CANCEL, How.IGNORE, times=-1)

    async def is_stopping() -> None:
        await harness.sink.until_reported("step")
        harness.kept.cancelled.set()
        await harness.sink.until_reported("waiting for its confirmation")

    await _until_deadline(harness, is_stopping())
    assert harness.server.asked[Op.CANCEL] == 1


async def test_at_the_deadline_one_that_has_ended_is_not_asked_to_stop(harness: RemoteJobHarness) -> None:
    harness.server.script.add(Op.RESULT, How.HOLD)

    async def is_collecting() -> None:
        await harness.sink.until_reported("step")
        harness.server.memory.tasks["r-1"].work.holds = False
        await harness.server.was_asked(Op.RESULT)

    await _until_deadline(harness, is_collecting())
    assert harness.server.asked[Op.CANCEL] == 0


@pytest.mark.parametrize("how", [How.HOLD, How.DROP])
async def test_a_remote_side_that_does_not_answer_delays_the_deadline_for_a_bounded_time(
    harness: RemoteJobHarness, client: httpx.AsyncClient, how: How
) -> None:
    harness.server.script.add(Op.CANCEL, how)
    hasty = RemoteJobHarness(harness.server, client, terms=RemoteTerms(stop_timeout_s=0.02, pause_first_s=0.001))
    await _until_deadline(hasty, hasty.sink.until_reported("step"))
    assert "could not be asked to stop" in hasty.sink.progresses[-1].message


async def test_a_deadline_before_anything_was_sent_cancels_nothing(harness: RemoteJobHarness) -> None:
    harness.kept.outage = 1_000_000
    await _until_deadline(harness, asyncio.sleep(0))
    assert not harness.server.asked


async def test_a_process_that_stops_leaves_the_remote_side_alone(harness: RemoteJobHarness) -> None:
    running = harness.begin(work=HELD, deadline_s=asyncio.get_running_loop().time() + 3_600)
    await harness.sink.until_reported("step")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert harness.server.asked[Op.CANCEL] == 0


async def test_a_job_store_that_is_away_for_a_while_loses_nothing(harness: RemoteJobHarness) -> None:
    harness.kept.outage = 3
    harness.server.script.add(Op.START, How.HOLD)
    running = harness.begin()
    await harness.server.was_asked(Op.START)
    harness.kept.outage = 3
    harness.server.let_go.set()
    assert isinstance(await outcome_of(running), Outcome)
    assert harness.server.effects.total() == 1


async def test_a_process_that_lost_the_job_neither_follows_nor_stops_it(harness: RemoteJobHarness) -> None:
    harness.server.script.add(Op.START, How.HOLD)
    running = harness.begin(work=HELD)
    await harness.server.was_asked(Op.START)
    harness.kept.taken_by_another = True
    harness.server.let_go.set()
    error = await outcome_of(running)
    assert error.kind is ErrorKind.CANCELLED
    assert harness.server.asked[Op.STATUS] == 0


async def test_a_request_to_stop_is_not_passed_on_by_who_has_lost_the_job(harness: RemoteJobHarness) -> None:
    running = harness.begin(work=HELD)
    await harness.sink.until_reported("step")
    harness.kept.taken_by_another = True
    harness.kept.cancelled.set()
    await harness.server.was_asked(Op.STATUS, harness.server.asked[Op.STATUS] + 3)
    harness.server.let_go.set()
    assert isinstance(await outcome_of(running), Outcome)
    assert harness.server.asked[Op.CANCEL] == 0


async def test_a_refused_start_needs_no_lookup_when_it_is_sent_again(client: httpx.AsyncClient) -> None:
    async with job_server(can_find=False) as server:
        server.script.add(Op.START, How.REFUSE)
        harness = RemoteJobHarness(server, client)
        refused = await harness.run()
        assert isinstance(refused, ToolError)
        assert refused.kind is ErrorKind.UPSTREAM_ERROR
        assert isinstance(await harness.successor().run(), Outcome)
        assert (server.asked[Op.FIND], server.effects.total()) == (0, 1)


async def test_a_missing_listener_before_anything_was_sent_is_unavailable(client: httpx.AsyncClient) -> None:
    async with job_server() as server:
        harness = RemoteJobHarness(server, client)
    error = await harness.run()
    assert isinstance(error, ToolError)
    assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True)


@pytest.mark.parametrize("read_only", [True, False])
async def test_an_unknown_outcome_states_what_was_sent_where_and_whether_to_repeat_it(
    harness: RemoteJobHarness, read_only: bool
) -> None:
    harness.server.script.add(Op.STATUS, How.FORGET)
    error = await harness.run(read_only=read_only)
    assert isinstance(error, ToolError)
    assert error.kind is ErrorKind.OUTCOME_UNKNOWN
    assert error.is_retryable is read_only
    key = harness.kept.marks[JOB_ID].key
    assert {"remote_id": "r-1", "remote_key": key, "endpoint": harness.server.url}.items() <= error.details.items()
    assert error.details["cause"] == "END_UNCLEAR"
    assert ("safe to call it again" in error.message) is read_only
    assert ("Check it there" in error.message) is not read_only


async def test_the_remote_sides_verdict_names_its_place(harness: RemoteJobHarness) -> None:
    error = await harness.run(work={"fails": True})
    assert isinstance(error, ToolError)
    assert (error.kind, error.details["remote_id"]) == (ErrorKind.UPSTREAM_ERROR, "r-1")


class _Broken(HttpRemoteJob):
    async def find(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark | None:
        raise KeyError("hunter2-canary")


async def test_a_start_is_looked_up_several_times_however_slow_an_answer_is_to_fail(harness: RemoteJobHarness) -> None:
    harness.server.script.add(Op.START, How.LOSE_ANSWER)
    harness.server.script.add(Op.FIND, How.DROP, times=2)
    slow = RemoteJobHarness(
        harness.server, harness.client, terms=RemoteTerms(look_up_timeout_s=0.0, pause_first_s=0.001)
    )
    assert isinstance(await slow.run(), Outcome)
    assert harness.server.asked[Op.FIND] == 3


class _Locked(HttpRemoteJob):
    async def find(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark | None:
        raise refuse(ErrorKind.PERMISSION_DENIED, "The hub may not look there.")


async def test_a_lookup_that_is_refused_leaves_the_outcome_unknown(harness: RemoteJobHarness) -> None:
    harness.server.script.add(Op.START, How.LOSE_ANSWER)
    harness.executor.remote = _Locked(harness.client, harness.server.url, Poller(FixedRandomness(), SOON))
    error = await harness.run()
    assert isinstance(error, ToolError)
    assert (error.kind, error.details["cause"]) == (ErrorKind.OUTCOME_UNKNOWN, "START_UNCLEAR")
    assert "The hub may not look there. Check it there" in error.message


async def test_a_defect_is_internal_and_states_that_the_call_may_still_run(harness: RemoteJobHarness) -> None:
    harness.server.script.add(Op.START, How.LOSE_ANSWER)
    harness.executor.remote = _Broken(harness.client, harness.server.url, Poller(FixedRandomness(), SOON))
    error = await harness.run()
    assert isinstance(error, ToolError)
    assert error.kind is ErrorKind.INTERNAL
    assert "may still run" in error.message
    assert error.details["remote_key"] == harness.kept.marks[JOB_ID].key
    assert "hunter2" not in repr(error)


async def test_a_remote_side_that_knows_keys_runs_two_hasty_runs_of_one_job_once(client: httpx.AsyncClient) -> None:
    async with job_server(honours_keys=True) as server:
        harnesses = [RemoteJobHarness(server, client) for _ in range(5)]
        outcomes = await asyncio.gather(*(harness.run() for harness in harnesses))
        assert all(isinstance(outcome, Outcome) for outcome in outcomes)
        assert list(server.effects.values()) == [1]


async def test_many_jobs_need_neither_threads_nor_connections_of_their_own(server: JobServer) -> None:
    limits = httpx.Limits(max_connections=4)
    jobs = 200
    async with httpx.AsyncClient(limits=limits, trust_env=False, verify=False, timeout=WITHIN_S) as client:
        remote = HttpRemoteJob(client, server.url, Poller(FixedRandomness(), SOON))
        running = FakeRunningJobs(KeptMarks())
        executor = RemoteExecutor(remote, running, LoopClock(), FixedRandomness(), BRISK)
        threads = threading.active_count()
        calls = [remote_call(server.url, HELD, job_id=f"job-{number}") for number in range(jobs)]
        runs = [asyncio.create_task(executor.execute(call, RecordingSink())) for call in calls]
        await server.was_asked(Op.STATUS, 2 * jobs)
        assert threading.active_count() == threads
        assert server.connections <= 4
        server.let_go.set()
        assert len(await asyncio.gather(*runs)) == jobs == server.effects.total()
