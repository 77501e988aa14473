"""What a run of a remote job keeps, tells and leaves behind; what can go wrong stands in test_remote_faults.py."""

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
from tests.fakes.remote_stage import BRISK, JOB_ID, SOON, WITHIN_S, LoopClock, Stage, ToldSink, a_client, remote_call
from tests.fakes.running_jobs import FakeRunningJobs, KeptMarks
from toolhub_service.adapters.remote import RemoteExecutor, RemoteTerms
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.domain.call import GrantedCall, Question, QuestionAsked
from toolhub_service.domain.errors import ErrorKind, ToolError, refuse
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
def stage(server: JobServer, client: httpx.AsyncClient) -> Stage:
    return Stage(server, client)


@pytest.mark.promise("jobs.remote-once")
async def test_a_mark_is_kept_before_anything_is_sent_and_again_before_it_is_followed(stage: Stage) -> None:
    await stage.run()
    before = [name.removeprefix("before ") for name in stage.life.contacts if name.startswith("before ")]
    assert before == ["mark", "keep_mark", "start", "keep_mark", "follow", "collect"]
    minted, accepted = stage.kept.history
    assert (minted.accepted, minted.remote_id) == (False, "")
    assert (accepted.accepted, accepted.remote_id, accepted.endpoint) == (True, "r-1", stage.server.url)
    assert minted.key == accepted.key


async def test_the_key_is_a_uuid_that_is_the_jobs_own_for_ever(stage: Stage) -> None:
    await stage.run()
    key = stage.kept.marks[JOB_ID].key
    assert str(uuid.UUID(key)) == key
    twin = Stage(stage.server, stage.client)
    await twin.run(job_id="job-2")
    again = Stage(stage.server, stage.client)
    await again.run()
    assert again.kept.marks[JOB_ID].key == key != twin.kept.marks["job-2"].key


async def test_progress_reaches_the_sink_and_the_evidence_says_where_it_ran(stage: Stage) -> None:
    outcome = await stage.run(work={"steps": 3, "result": "made"})
    assert [progress.step for progress in stage.sink.progresses] == [1, 2, 3]
    assert isinstance(outcome, Outcome)
    (evidence,) = outcome.evidence
    assert evidence.ref == "r-1"
    assert stage.server.url in evidence.summary
    assert evidence.attributes["attached"] == "1"
    assert evidence.attributes["remote_key"] == stage.kept.marks[JOB_ID].key


async def test_a_run_anew_follows_what_runs_and_starts_nothing(stage: Stage) -> None:
    first = stage.begin(work=HELD)
    await stage.sink.said("step")
    first.cancel()
    await asyncio.wait({first})
    stage.server.let_go.set()
    outcome = await stage.successor().run(work=HELD)
    assert isinstance(outcome, Outcome)
    assert outcome.evidence[-1].attributes["attached"] == "2"
    assert stage.server.asked[Op.START] == 1
    assert stage.server.asked[Op.FIND] == 0


async def test_a_call_without_a_job_is_a_defect_and_sends_nothing(stage: Stage) -> None:
    error = await stage.run(job_id="")
    assert isinstance(error, ToolError)
    assert error.kind is ErrorKind.INTERNAL
    assert "Submit it as a job" in error.message
    assert not stage.server.asked


async def test_a_question_is_handed_on_and_the_next_run_starts_anew(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asks(call: GrantedCall, mark: RemoteMark) -> RemoteMark:
        raise QuestionAsked(Question("May I?", {}, ""))

    with monkeypatch.context() as before_its_answer:
        before_its_answer.setattr(stage.remote, "start", asks)
        with pytest.raises(QuestionAsked):
            await stage.run()
    assert stage.kept.marks[JOB_ID].details["refused"] == "true"
    assert isinstance(await stage.successor().run(), Outcome)
    assert (stage.server.asked[Op.START], stage.server.asked[Op.FIND]) == (1, 0)


async def test_a_job_that_is_cancelled_before_it_began_never_begins(stage: Stage) -> None:
    stage.kept.cancelled.set()
    error = await stage.run()
    assert isinstance(error, ToolError)
    assert (error.kind, stage.server.asked[Op.START]) == (ErrorKind.CANCELLED, 0)
    assert "nothing happened" in error.message


async def test_a_job_that_is_cancelled_while_its_start_is_in_doubt_is_found_and_stopped(stage: Stage) -> None:
    stage.server.script.add(Op.START, How.LOSE_ANSWER)
    stage.server.script.add(Op.FIND, How.ERROR)
    running = stage.begin(work=HELD)
    await stage.server.was_asked(Op.START)
    stage.kept.cancelled.set()
    error = await outcome_of(running)
    assert (error.kind, stage.server.effects.total()) == (ErrorKind.CANCELLED, 1)
    assert [task.state for task in stage.server.memory.tasks.values()] == ["cancelled"]


async def test_who_waits_for_the_remote_side_to_stop_is_told_so(stage: Stage) -> None:
    running = stage.begin(work={**HELD, "stops_after": 3})
    await stage.sink.said("step")
    stage.kept.cancelled.set()
    await stage.sink.said("waiting until it confirms")
    assert (await outcome_of(running)).kind is ErrorKind.CANCELLED
    assert stage.server.asked[Op.CANCEL] == 1


async def test_a_request_to_stop_that_is_under_way_ends_with_the_run(stage: Stage) -> None:
    stage.server.script.add(Op.CANCEL, How.HOLD)
    running = stage.begin(work=HELD)
    await stage.sink.said("step")
    stage.kept.cancelled.set()
    assert (await outcome_of(running)).kind is ErrorKind.CANCELLED
    assert not [task for task in asyncio.all_tasks() if "_stop_when_asked" in repr(task)]


@pytest.mark.parametrize(("how", "words"), [(How.REFUSE, "refuses to stop"), (None, "cannot stop")])
async def test_work_that_cannot_be_stopped_says_so_and_goes_on(
    client: httpx.AsyncClient, how: How | None, words: str
) -> None:
    async with job_server(can_stop=False) as server:
        if how is not None:
            server.script.add(Op.CANCEL, how)
        stage = Stage(server, client)
        running = stage.begin(work=HELD)
        await stage.sink.said("step")
        stage.kept.cancelled.set()
        await stage.sink.said(words)
        server.let_go.set()
        assert isinstance(await outcome_of(running), Outcome)


async def _until_deadline(stage: Stage, ready: Awaitable[None]) -> None:
    """Run under a timeout as the runtime does, and let the deadline pass once the test is ready for it."""
    deadline_s = asyncio.get_running_loop().time() + 3_600
    limit = asyncio.timeout_at(deadline_s)

    async def run() -> None:
        async with limit:
            await stage.executor.execute(remote_call(stage.server.url, HELD, deadline_s=deadline_s), stage.sink)

    running = asyncio.create_task(run())
    await ready
    stage.clock.skipped_s = 3_600
    limit.reschedule(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(running, WITHIN_S)


async def test_at_the_deadline_the_remote_side_is_asked_once_to_stop(stage: Stage) -> None:
    await _until_deadline(stage, stage.sink.said("step"))
    assert stage.server.asked[Op.CANCEL] == 1
    assert "was asked to stop" in stage.sink.progresses[-1].message
    assert [task.state for task in stage.server.memory.tasks.values()] == ["cancelling"]


async def test_at_the_deadline_a_start_without_an_answer_is_looked_up_and_stopped(stage: Stage) -> None:
    stage.server.script.add(Op.START, How.HOLD)
    await _until_deadline(stage, stage.server.was_asked(Op.START))
    assert stage.kept.marks[JOB_ID].accepted is False
    assert [task.state for task in stage.server.memory.tasks.values()] == ["cancelling"]


async def test_at_the_deadline_one_that_was_asked_to_stop_is_not_asked_again(stage: Stage) -> None:
    stage.server.script.add(Op.CANCEL, How.IGNORE, times=-1)

    async def is_stopping() -> None:
        await stage.sink.said("step")
        stage.kept.cancelled.set()
        await stage.sink.said("waiting until it confirms")

    await _until_deadline(stage, is_stopping())
    assert stage.server.asked[Op.CANCEL] == 1


async def test_at_the_deadline_one_that_has_ended_is_not_asked_to_stop(stage: Stage) -> None:
    stage.server.script.add(Op.RESULT, How.HOLD)

    async def is_collecting() -> None:
        await stage.sink.said("step")
        stage.server.memory.tasks["r-1"].work.holds = False
        await stage.server.was_asked(Op.RESULT)

    await _until_deadline(stage, is_collecting())
    assert stage.server.asked[Op.CANCEL] == 0


@pytest.mark.parametrize("how", [How.HOLD, How.DROP])
async def test_a_remote_side_that_does_not_answer_holds_the_deadline_up_for_a_bounded_time(
    stage: Stage, client: httpx.AsyncClient, how: How
) -> None:
    stage.server.script.add(Op.CANCEL, how)
    hasty = Stage(stage.server, client, terms=RemoteTerms(stop_timeout_s=0.02, pause_first_s=0.001))
    await _until_deadline(hasty, hasty.sink.said("step"))
    assert "could not be asked to stop" in hasty.sink.progresses[-1].message


async def test_before_anything_was_sent_a_deadline_asks_nobody(stage: Stage) -> None:
    stage.kept.outage = 1_000_000
    await _until_deadline(stage, asyncio.sleep(0))
    assert not stage.server.asked


async def test_a_process_that_stops_leaves_the_remote_side_alone(stage: Stage) -> None:
    running = stage.begin(work=HELD, deadline_s=asyncio.get_running_loop().time() + 3_600)
    await stage.sink.said("step")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert stage.server.asked[Op.CANCEL] == 0


async def test_a_job_store_that_is_away_for_a_while_costs_nothing(stage: Stage) -> None:
    stage.kept.outage = 3
    stage.server.script.add(Op.START, How.HOLD)
    running = stage.begin()
    await stage.server.was_asked(Op.START)
    stage.kept.outage = 3
    stage.server.let_go.set()
    assert isinstance(await outcome_of(running), Outcome)
    assert stage.server.effects.total() == 1


async def test_who_has_lost_the_job_to_another_process_neither_follows_nor_stops_it(stage: Stage) -> None:
    stage.server.script.add(Op.START, How.HOLD)
    running = stage.begin(work=HELD)
    await stage.server.was_asked(Op.START)
    stage.kept.taken_by_another = True
    stage.server.let_go.set()
    error = await outcome_of(running)
    assert error.kind is ErrorKind.CANCELLED
    assert stage.server.asked[Op.STATUS] == 0


async def test_a_request_to_stop_is_not_passed_on_by_who_has_lost_the_job(stage: Stage) -> None:
    running = stage.begin(work=HELD)
    await stage.sink.said("step")
    stage.kept.taken_by_another = True
    stage.kept.cancelled.set()
    await stage.server.was_asked(Op.STATUS, stage.server.asked[Op.STATUS] + 3)
    stage.server.let_go.set()
    assert isinstance(await outcome_of(running), Outcome)
    assert stage.server.asked[Op.CANCEL] == 0


async def test_a_refused_start_needs_no_lookup_when_it_is_sent_again(client: httpx.AsyncClient) -> None:
    async with job_server(can_find=False) as server:
        server.script.add(Op.START, How.REFUSE)
        stage = Stage(server, client)
        refused = await stage.run()
        assert isinstance(refused, ToolError)
        assert refused.kind is ErrorKind.UPSTREAM_ERROR
        assert isinstance(await stage.successor().run(), Outcome)
        assert (server.asked[Op.FIND], server.effects.total()) == (0, 1)


async def test_nobody_listens_and_nothing_was_sent_is_unavailable(client: httpx.AsyncClient) -> None:
    async with job_server() as server:
        stage = Stage(server, client)
    error = await stage.run()
    assert isinstance(error, ToolError)
    assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True)


@pytest.mark.parametrize("read_only", [True, False])
async def test_an_unknown_outcome_says_what_was_sent_where_and_whether_to_repeat_it(
    stage: Stage, read_only: bool
) -> None:
    stage.server.script.add(Op.STATUS, How.FORGET)
    error = await stage.run(read_only=read_only)
    assert isinstance(error, ToolError)
    assert error.kind is ErrorKind.OUTCOME_UNKNOWN
    assert error.is_retryable is read_only
    key = stage.kept.marks[JOB_ID].key
    assert {"remote_id": "r-1", "remote_key": key, "endpoint": stage.server.url}.items() <= error.details.items()
    assert error.details["cause"] == "END_UNCLEAR"
    assert ("safe to call it again" in error.message) is read_only
    assert ("Look for it there" in error.message) is not read_only


async def test_the_remote_sides_verdict_says_where_it_was_given(stage: Stage) -> None:
    error = await stage.run(work={"fails": True})
    assert isinstance(error, ToolError)
    assert (error.kind, error.details["remote_id"]) == (ErrorKind.UPSTREAM_ERROR, "r-1")


class _Broken(HttpRemoteJob):
    async def find(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark | None:
        raise KeyError("hunter2-canary")


async def test_it_is_looked_up_several_times_however_slow_an_answer_is_to_fail(stage: Stage) -> None:
    stage.server.script.add(Op.START, How.LOSE_ANSWER)
    stage.server.script.add(Op.FIND, How.DROP, times=2)
    slow = Stage(stage.server, stage.client, terms=RemoteTerms(look_up_timeout_s=0.0, pause_first_s=0.001))
    assert isinstance(await slow.run(), Outcome)
    assert stage.server.asked[Op.FIND] == 3


class _Locked(HttpRemoteJob):
    async def find(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark | None:
        raise refuse(ErrorKind.PERMISSION_DENIED, "The hub may not look there.")


async def test_a_lookup_that_is_refused_leaves_the_outcome_unknown(stage: Stage) -> None:
    stage.server.script.add(Op.START, How.LOSE_ANSWER)
    stage.executor.remote = _Locked(stage.client, stage.server.url, Poller(FixedRandomness(), SOON))
    error = await stage.run()
    assert isinstance(error, ToolError)
    assert (error.kind, error.details["cause"]) == (ErrorKind.OUTCOME_UNKNOWN, "START_UNCLEAR")
    assert "The hub may not look there. Look for it there" in error.message


async def test_a_defect_is_internal_and_says_that_it_may_still_run(stage: Stage) -> None:
    stage.server.script.add(Op.START, How.LOSE_ANSWER)
    stage.executor.remote = _Broken(stage.client, stage.server.url, Poller(FixedRandomness(), SOON))
    error = await stage.run()
    assert isinstance(error, ToolError)
    assert error.kind is ErrorKind.INTERNAL
    assert "may still run" in error.message
    assert error.details["remote_key"] == stage.kept.marks[JOB_ID].key
    assert "hunter2" not in repr(error)


async def test_a_remote_side_that_knows_keys_runs_two_hasty_runs_of_one_job_once(client: httpx.AsyncClient) -> None:
    async with job_server(honours_keys=True) as server:
        stages = [Stage(server, client) for _ in range(5)]
        outcomes = await asyncio.gather(*(stage.run() for stage in stages))
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
        runs = [asyncio.create_task(executor.execute(call, ToldSink())) for call in calls]
        await server.was_asked(Op.STATUS, 2 * jobs)
        assert threading.active_count() == threads
        assert server.connections <= 4
        server.let_go.set()
        assert len(await asyncio.gather(*runs)) == jobs == server.effects.total()
