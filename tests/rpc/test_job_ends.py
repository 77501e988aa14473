"""How jobs end: done, refused by a person, cancelled in every state, out of time, broken, or left by their hub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import channel_to, request
from tests.overtaken import overtaken
from tests.rpc.principals import (
    IMPATIENT,
    POLICY,
    WAIT,
    WRITE,
    Client,
    CountedWaits,
    CountedWrites,
    Principals,
    hubs_of,
    merged,
    state,
    states,
)
from tests.rpc.principals import is_gapless as gapless
from tests.rpc.sample_tools import Crashes, CrashesMidway, Echo, SlowToCancel
from tests.rpc.statuses import failed, failed_stream
from toolhub.v1 import artifact_service_pb2, call_pb2, error_pb2, job_pb2
from toolhub.v1.approval_pb2 import APPROVAL_STATE_EXPIRED
from toolhub.v1.approval_service_pb2 import WatchApprovalsRequest
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.domain.event import EventType
from toolhub_service.domain.tool import ToolLimits
from toolhub_service.runtime.jobs import reconcile

FILE = "core/fs.writeText"
NOTE = {"path": "note.txt", "text": "hello"}


class LongOutput(Echo):
    """Its results are cut."""

    name = "test/text.long"
    limits = ToolLimits(max_result_bytes=1_000)


class JobHarness:
    """One hub with its people; the test releases its tools."""

    def __init__(self) -> None:
        self.waits, self.writes, self.clears = CountedWaits(), CountedWrites(), SlowToCancel()
        self.tools = [self.waits, self.writes, self.clears, Echo(), Crashes(), CrashesMidway(), LongOutput()]
        self.robot: Client
        self.judge: Client
        self.boss: Client

    def open(self, people: Principals, running: Any) -> JobHarness:
        self.running, self.robot, self.judge = running, people.at(running), people.at(running, "judge")
        self.boss = people.at(running, "boss")
        return self

    async def facts(self, job_id: str, type: EventType) -> list[Any]:
        """What else the audit log records of a job, by events of a type."""
        events = [chained.event for chained in await self.running.events(types=frozenset({type}))]
        return [event.attributes for event in events if event.attributes.get("job_id") == job_id]

    async def overtaken(
        self, tool: str, began: Callable[[], bool] = lambda: True, *, first_s: float = 0.2
    ) -> job_pb2.Job:
        """A job that was kept before its deadline, begun when it has to be, and ended by it."""

        async def late(timeout_s: float) -> job_pb2.Job:
            job = await self.robot.submit(tool, budget={"timeout_s": timeout_s})
            await self.robot.ended(job.job_id)
            return await self.robot.job(job.job_id)

        return await overtaken(late, lambda job: state(job.status) == "TIMED_OUT" and began(), first_s=first_s)

    @property
    def note(self) -> Path:
        return self.running.workspace("work", "robot") / "note.txt"  # type: ignore[no-any-return]


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[JobHarness]:
    harness = JobHarness()
    async with hubs_of(tmp_path, merged(IMPATIENT, {"jobs": {"max_running": 1}}), harness.tools) as (running,):
        yield harness.open(Principals(running), running)


# Cancelled


async def test_queued_job_is_cancelled_at_once_and_never_runs(harness: JobHarness) -> None:
    held = await harness.robot.submit(WAIT)
    await harness.waits.started.wait()
    queued = await harness.robot.submit(WRITE)
    assert await harness.robot.cancel(queued.job_id, "changed my mind") == "CANCELLED"
    history = await harness.robot.ended(queued.job_id, 1)
    assert states(history) == ["CANCELLED"]
    assert history[-1].error.kind == error_pb2.ERROR_KIND_CANCELLED
    assert "nothing happened" in history[-1].error.message
    harness.waits.let_go.set()
    await harness.robot.ended(held.job_id)
    assert harness.writes.runs == 0


@pytest.mark.promise("jobs.cancel-is-a-request")
async def test_running_job_is_cancelling_until_it_has_stopped(harness: JobHarness) -> None:
    job = await harness.robot.submit(harness.clears.name)
    await harness.clears.started.wait()
    assert await harness.robot.cancel(job.job_id) == "CANCELLING"
    assert await harness.robot.cancel(job.job_id) == "CANCELLING", "asking again changes nothing"
    history = await harness.robot.ended(job.job_id, job.status.sequence)
    assert states(history) == ["RUNNING", "CANCELLING", "CANCELLED"]
    assert gapless(history)


async def test_a_cancelled_side_effect_states_that_a_part_may_have_happened(harness: JobHarness) -> None:
    job = await harness.robot.submit(WRITE)
    await harness.writes.started.wait()
    await harness.robot.cancel(job.job_id)
    last = (await harness.robot.ended(job.job_id))[-1]
    assert state(last) == "CANCELLED"
    assert "a part of its effect" in last.error.message


@pytest.mark.promise("approval.withdrawn")
async def test_job_that_waits_for_a_person_is_cancelled_and_the_person_is_asked_no_more(harness: JobHarness) -> None:
    watch = aiter(harness.judge.approvals.WatchApprovals(WatchApprovalsRequest(), metadata=harness.judge.metadata))
    job = await harness.robot.submit(FILE, NOTE, request_id="work")
    assert state(job.status) == "AWAITING_APPROVAL"
    assert (await anext(watch)).approval.approval_id == job.approval_id
    assert await harness.robot.cancel(job.job_id, "not needed") == "CANCELLED"
    over = (await anext(watch)).approval
    assert (over.approval_id, over.state) == (job.approval_id, APPROVAL_STATE_EXPIRED)
    assert over.comment == "robot cancelled the job that requested it: not needed"
    late = await failed(harness.judge.decide(job.approval_id))
    assert (late.code, late.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "APPROVAL_WITHDRAWN")
    assert "not needed" in late.message
    assert states(await harness.robot.ended(job.job_id)) == ["CANCELLED"]
    assert not harness.note.exists()


async def test_the_audit_log_states_why_a_job_ended(harness: JobHarness) -> None:
    held = await harness.robot.submit(WRITE)
    await harness.writes.started.wait()
    asked = await harness.robot.submit(FILE, NOTE, request_id="work")
    await harness.boss.cancel(asked.job_id, "token: ghp_0123456789abcdefghijABCDEFGHIJ012345")
    late = await harness.overtaken(WAIT, first_s=0.01)
    await harness.boss.cancel(held.job_id, "stop it")
    await harness.robot.ended(held.job_id)
    of = harness.facts
    cancelled, lapsed = await of(asked.job_id, EventType.JOB_STATE), await of(asked.job_id, EventType.APPROVAL_EXPIRED)
    assert (cancelled[-1]["state"], cancelled[-1]["from"], cancelled[-1]["cancelled_by"]) == (
        "CANCELLED",
        "AWAITING_APPROVAL",
        "boss",
    )
    assert cancelled[-1]["cancel_reason"] == "token: ***"
    assert "boss cancelled the job" in lapsed[-1]["withdrawn_because"]
    timed_out = (await of(late.job_id, EventType.JOB_STATE))[-1]
    assert (timed_out["from"], timed_out["cause"]) == ("QUEUED", "TIMEOUT")
    assert 0.01 <= float(timed_out["timeout_s"]) < 1
    ended = (await of(held.job_id, EventType.JOB_STATE))[-1]
    assert (ended["state"], ended["cancelled_by"], ended["from"]) == ("CANCELLED", "boss", "CANCELLING")
    assert ended["runner"].startswith("runner_")


async def test_finished_job_stays_as_it_is(harness: JobHarness) -> None:
    job = await harness.robot.submit("test/text.echo")
    last = (await harness.robot.ended(job.job_id))[-1]
    assert await harness.robot.cancel(job.job_id) == "SUCCEEDED"
    assert (await harness.robot.job(job.job_id)).status == last


# Out of time, broken, too large


async def test_job_ends_at_its_deadline(harness: JobHarness) -> None:
    job = await harness.overtaken(WAIT)
    last = job.status
    assert (state(last), last.error.kind) == ("TIMED_OUT", error_pb2.ERROR_KIND_TIMEOUT)
    assert last.at.ToMilliseconds() >= job.deadline.ToMilliseconds()


async def test_side_effect_that_ran_into_its_deadline_is_timed_out_and_not_known(harness: JobHarness) -> None:
    last = (await harness.overtaken(WRITE, harness.writes.started.is_set)).status
    assert (state(last), last.error.kind) == ("TIMED_OUT", error_pb2.ERROR_KIND_OUTCOME_UNKNOWN)


async def test_job_whose_deadline_passed_while_it_waited_never_runs(harness: JobHarness) -> None:
    held = await harness.robot.submit(WAIT)
    await harness.waits.started.wait()
    last = (await harness.overtaken(WRITE, first_s=0.05)).status
    assert (state(last), last.error.kind) == ("TIMED_OUT", error_pb2.ERROR_KIND_TIMEOUT)
    assert state((await harness.robot.job(held.job_id)).status) == "RUNNING"
    harness.waits.let_go.set()
    await harness.robot.ended(held.job_id)
    assert harness.writes.runs == 0


async def test_crash_of_a_tool_fails_its_job_without_a_word_of_it(harness: JobHarness) -> None:
    job = await harness.robot.submit("test/text.crash", {"text": "s3cret"})
    last = (await harness.robot.ended(job.job_id))[-1]
    assert (state(last), last.error.kind) == ("FAILED", error_pb2.ERROR_KIND_INTERNAL)
    data = last.SerializeToString()
    assert b"hunter2" not in data
    assert state((await harness.robot.ended(job.job_id))[-1]) == "FAILED", "it only reads: nothing can have happened"
    assert b"s3cret" not in data


async def test_result_over_its_cap_is_cut_and_whole_as_an_artifact(harness: JobHarness) -> None:
    text = "x" * 5_000
    job = await harness.robot.submit("test/text.long", {"text": text})
    last = (await harness.robot.ended(job.job_id))[-1]
    assert state(last) == "SUCCEEDED"
    assert last.result.truncated
    assert len(last.result.result_json) <= 1_000
    (artifact,) = last.artifacts
    stub: Any = ArtifactServiceStub(harness.running.channel)
    asked = artifact_service_pb2.ReadArtifactRequest(artifact_id=artifact.artifact_id)
    parts = [part.chunk async for part in stub.ReadArtifact(asked, metadata=harness.robot.metadata, timeout=60)]
    assert json.loads(b"".join(parts)) == {"text": text}


# Approvals and plans


@pytest.mark.promise("approval.job-goes-on")
async def test_approved_job_goes_on_by_itself(harness: JobHarness) -> None:
    job = await harness.robot.submit(FILE, NOTE, request_id="work")
    following = asyncio.create_task(harness.robot.ended(job.job_id, job.status.sequence))
    await harness.judge.decide(job.approval_id)
    history = await following
    assert (states(history), gapless(history)) == (["QUEUED", "RUNNING", "SUCCEEDED"], True)
    assert harness.note.read_text() == "hello"


@pytest.mark.promise("jobs.lost-is-honest")
async def test_a_crash_of_a_side_effect_leaves_its_outcome_unknown_in_any_kind_of_call(harness: JobHarness) -> None:
    tool, args = "test/text.crashMidway", {"text": "s3cret"}
    job = await harness.robot.submit(tool, args)
    last = (await harness.robot.ended(job.job_id))[-1]
    assert (state(last), last.error.kind) == ("LOST", error_pb2.ERROR_KIND_OUTCOME_UNKNOWN)
    called = (await harness.robot.call(tool, args, idempotency_key="k")).error
    again = await harness.robot.call(tool, args, idempotency_key="k")
    assert again.replayed
    for error, call_id in ((last.error, job.call_id), (called, again.call_id), (again.error, again.call_id)):
        assert (error.kind, error.retryable) == (error_pb2.ERROR_KIND_OUTCOME_UNKNOWN, False)
        assert (error.details["cause"], error.details["call_id"]) == ("INTERNAL", call_id)
        assert "Check that before you call it again" in error.message
        assert b"hunter2" not in error.SerializeToString()
    facts = (await harness.facts(job.job_id, EventType.JOB_STATE))[-1]
    assert (facts["state"], facts["cause"]) == ("LOST", "INTERNAL")


async def test_a_rejected_job_fails_with_the_persons_comment(harness: JobHarness) -> None:
    job = await harness.robot.submit(FILE, NOTE, request_id="work")
    await harness.judge.decide(job.approval_id, yes=False, comment="not today")
    last = (await harness.robot.ended(job.job_id, 1))[-1]
    assert (state(last), last.error.kind) == ("FAILED", error_pb2.ERROR_KIND_APPROVAL_REJECTED)
    assert "not today" in last.error.message


@pytest.mark.promise("approval.expires")
async def test_a_missed_decision_is_found_among_any_number_of_waiting_jobs(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_BATCH", 2)
    harness.running.hub.long_work.approval_news._listeners.clear()
    jobs = [await harness.robot.submit(FILE, {**NOTE, "path": f"{n}.txt"}, request_id="work") for n in range(7)]
    await harness.judge.decide(jobs[-1].approval_id)
    assert states(await harness.robot.ended(jobs[-1].job_id))[-1] == "SUCCEEDED"
    await harness.judge.decide(jobs[-2].approval_id, yes=False)
    assert states(await harness.robot.ended(jobs[-2].job_id))[-1] == "FAILED"
    assert state((await harness.robot.job(jobs[0].job_id)).status) == "AWAITING_APPROVAL"


async def test_job_that_nobody_decides_about_fails_when_its_approval_expires(tmp_path: Path) -> None:
    policy = POLICY.replace("reason: Files are shared.", "approval: {expires_s: 0.2}")
    async with hubs_of(tmp_path, IMPATIENT, [], policy=policy) as (running,):
        robot = Principals(running).at(running)
        job = await robot.submit(FILE, NOTE, request_id="work")
        last = (await robot.ended(job.job_id))[-1]
        assert (state(last), last.error.kind) == ("FAILED", error_pb2.ERROR_KIND_APPROVAL_REJECTED)
        assert "in time" in last.error.message


async def test_destructive_tool_is_committed_as_a_job_by_its_plan(tmp_path: Path) -> None:
    policy = """
extends: none
grants: [{principals: ["*"], capabilities: [read:fs, write:fs, danger:destructive]}]
rules: [{id: look-first, effect: REQUIRE_PLAN, tools: [core/fs.deletePath]}]
"""
    tool, args = "core/fs.deletePath", {"path": "note.txt", "confirm": True}
    async with hubs_of(tmp_path, {}, [], policy=policy) as (running,):
        robot = Principals(running).at(running)
        assert (await robot.call(FILE, NOTE, request_id="work")).ok
        unplanned = await robot.submit(tool, args, request_id="work")
        assert unplanned.status.error.kind == error_pb2.ERROR_KIND_PLAN_REQUIRED
        asked = request(tool, args, mode=call_pb2.INVOKE_MODE_DRY_RUN, request_id="work")
        shown = (await running.stub.Invoke(asked, metadata=robot.metadata, timeout=60)).plan
        note = running.workspace("work", "robot") / "note.txt"
        assert note.exists()
        job = await robot.submit(tool, args, request_id="work", plan_digest=shown.plan_digest)
        last = (await robot.ended(job.job_id))[-1]
        assert (state(last), last.error.message) == ("SUCCEEDED", "")
        assert not note.exists()


# A hub that leaves


@pytest.mark.promise("jobs.handed-over")
async def test_leaving_hub_sends_watchers_elsewhere_and_hands_its_jobs_over(tmp_path: Path) -> None:
    harness, later = JobHarness(), JobHarness()
    async with AsyncExitStack() as client:
        async with hubs_of(tmp_path, IMPATIENT, harness.tools) as (running,):
            harness.open(Principals(running), running)
            channel = await client.enter_async_context(channel_to(running.address))
            running.channel, own = channel, running.channel
            safe, unsafe = await harness.robot.submit(WAIT), await harness.robot.submit(WRITE)
            await asyncio.gather(harness.waits.started.wait(), harness.writes.started.wait())
            watch = aiter(harness.robot.watch(safe.job_id))
            last = (await anext(watch)).status
            following = asyncio.create_task(failed_stream(watch))
            running.channel = own
        left = await following
    assert (left.code, left.reason, left.retry_after_s) == (grpc.StatusCode.UNAVAILABLE, "DRAINING", 0.5)
    later.waits.let_go.set()
    async with hubs_of(tmp_path, IMPATIENT, later.tools) as (running,):
        later.open(Principals(running), running)
        history = await later.robot.ended(safe.job_id, last.sequence)
        assert history[0].sequence == last.sequence + 1
        assert gapless(history)
        assert states(history)[-3:] == ["QUEUED", "RUNNING", "SUCCEEDED"]
        lost = (await later.robot.ended(unsafe.job_id))[-1]
        assert (state(lost), lost.error.kind) == ("LOST", error_pb2.ERROR_KIND_OUTCOME_UNKNOWN)
        assert (later.waits.runs, later.writes.runs) == (1, 0)
