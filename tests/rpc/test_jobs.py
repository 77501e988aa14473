"""JobService over the wire: any call as a job, accepted or refused at once, read, listed and followed to its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import grpc
import pytest

from tests.fakes.clock import next_millisecond
from tests.hub import CALL_TIMEOUT_S, RunningHub, request
from tests.rpc.principals import (
    WAIT,
    WRITE,
    Client,
    CountedWrites,
    Principals,
    Status,
    hubs_of,
    is_gapless,
    state,
    states,
)
from tests.rpc.sample_tools import Crashes, Echo, TextIn, TextOut, Waits
from tests.rpc.statuses import failed, failed_stream
from toolhub.v1 import error_pb2, job_service_pb2, job_state_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.result import Progress
from toolhub_service.domain.tool import CostHints
from toolhub_service.runtime.jobs import reports
from toolhub_service.tools.context import ToolContext

ECHO = "test/text.echo"


class AlwaysJob(Waits):
    """Always long work."""

    name = "test/video.render"
    cost = CostHints(is_async=True)


class ReportsAlways(Waits):
    """Reports progress all the time until it is let go."""

    name = "test/text.talk"

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        for step in count():
            if self.let_go.is_set():
                break
            context.sink.progress(Progress(step, None, "steps", "x" * 500))
            await asyncio.sleep(0.001)
        return TextOut(text=args.text)


class JobsHarness:
    def __init__(self) -> None:
        self.waits, self.writes, self.renders, self.talks = Waits(), CountedWrites(), AlwaysJob(), ReportsAlways()

    def open(self, running: RunningHub) -> None:
        self.running, self.people = running, Principals(running)

    def by(self, name: str) -> Client:
        return self.people.at(self.running, name)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[JobsHarness]:
    harness = JobsHarness()
    tools = [harness.waits, harness.writes, harness.renders, harness.talks, Echo(), Crashes()]
    async with hubs_of(tmp_path, {}, tools) as (running,):
        harness.open(running)
        yield harness


@pytest.fixture
def robot(harness: JobsHarness) -> Client:
    return harness.by("robot")


@pytest.mark.promise("jobs.any-tool")
async def test_any_tool_runs_as_a_job_and_is_followed_from_its_beginning(robot: Client) -> None:
    job = await robot.submit(ECHO, {"text": "hello"}, request_id="r-1", task_id="t-1", purpose="to see")
    assert (job.tool, job.principal, job.request_id, job.task_id) == (ECHO, "robot", "r-1", "t-1")
    assert (job.purpose, len(job.args_digest), len(job.tool_digest)) == ("to see", 64, 64)
    assert job.deadline.ToMilliseconds() - job.created_at.ToMilliseconds() == 3_600_000
    asked = job_service_pb2.WatchJobRequest(job_id=job.job_id, from_first=True)
    watched = robot.running.jobs.WatchJob(asked, metadata=robot.metadata, timeout=CALL_TIMEOUT_S)
    history = [answer.status async for answer in watched]
    assert is_gapless(history)
    first, last = history[0], history[-1]
    assert (state(first), first.sequence, state(last)) == ("QUEUED", 1, "SUCCEEDED")
    assert json.loads(last.result.result_json) == {"text": "hello"}
    assert last.result.call_id == job.call_id
    kept = await robot.job(job.job_id)
    assert kept.status == last
    assert kept.expires_at.ToMilliseconds() > kept.created_at.ToMilliseconds()


@pytest.mark.parametrize(
    ("tool", "args", "kind"),
    [
        ("test/text.unknown", {}, error_pb2.ERROR_KIND_TOOL_NOT_FOUND),
        (ECHO, {"text": 7}, error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID),
        ("core/http.head", {"url": "http://localhost/"}, error_pb2.ERROR_KIND_HTTP_DISALLOWED_HOST),
    ],
)
async def test_refused_submission_is_a_job_that_failed_at_once(
    robot: Client, tool: str, args: dict[str, object], kind: error_pb2.ErrorKind.ValueType
) -> None:
    job = await robot.submit(tool, args)
    assert (state(job.status), job.status.sequence, job.status.error.kind) == ("FAILED", 1, kind)
    assert job.status.result.evidence
    assert [state(entry) for entry in await robot.ended(job.job_id)] == ["FAILED"]


@pytest.mark.promise("jobs.any-tool")
async def test_an_asynchronous_tool_becomes_a_job_in_any_kind_of_call(harness: JobsHarness, robot: Client) -> None:
    tool, stub = harness.renders.name, harness.running.stub
    invoked = await robot.call(tool)
    assert invoked.ok
    stream = stub.InvokeStream(request(tool, message=pb.InvokeStreamRequest), metadata=robot.metadata, timeout=60)
    streamed = [event async for event in stream][-1].result
    session = stub.InvokeSession(metadata=robot.metadata, timeout=60)
    call: pb.SessionCall = request(tool, message=pb.SessionCall)
    call.call_id = "mine"
    await session.write(pb.InvokeSessionRequest(calls=[call]))
    (event,) = (await session.read()).events
    await session.done_writing()
    harness.renders.let_go.set()
    answers = (invoked, streamed, event.result)
    assert [answer.WhichOneof("result") for answer in answers] == [None] * 3, "there is no result yet"
    ids = [result.job.job_id for result in answers]
    assert len(set(ids)) == 3
    for job_id in ids:
        assert states(await robot.ended(job_id))[-1] == "SUCCEEDED"


@pytest.mark.promise("watch.gapless")
async def test_watch_gives_the_current_state_first_and_then_every_change(harness: JobsHarness, robot: Client) -> None:
    job = await robot.submit(WAIT)
    before = await robot.seen(job.job_id, lambda entry: entry.progress.message == "half way")
    assert is_gapless(before)
    assert states(before) in (["QUEUED", "RUNNING"], ["RUNNING"])
    watch = aiter(robot.watch(job.job_id))
    first = (await anext(watch)).status
    assert first == before[-1]
    harness.waits.let_go.set()
    rest = [answer.status async for answer in watch]
    assert is_gapless([first, *rest])
    assert state(rest[-1]) == "SUCCEEDED"
    assert rest[-1].progress.step == 1, "the latest report stays"


@pytest.mark.promise("watch.gapless")
async def test_resumed_watch_misses_nothing_and_repeats_nothing(harness: JobsHarness, robot: Client) -> None:
    job = await robot.submit(WAIT)
    harness.waits.let_go.set()
    whole = await robot.ended(job.job_id, 0)
    last = (await robot.job(job.job_id)).status.sequence
    assert whole[-1].sequence == last
    for after in range(1, last):
        assert [entry.sequence for entry in await robot.ended(job.job_id, after)] == list(range(after + 1, last + 1))
    assert await robot.ended(job.job_id, last) == []
    assert await robot.ended(job.job_id, last + 1_000) == []
    assert [entry.sequence for entry in await robot.ended(job.job_id)] == [last]


async def test_watch_from_beyond_the_end_waits_for_it(harness: JobsHarness, robot: Client) -> None:
    job = await robot.submit(WAIT)
    now = (await robot.seen(job.job_id, lambda entry: entry.progress.message == "half way"))[-1].sequence
    watching = asyncio.create_task(robot.ended(job.job_id, now + 1))
    harness.waits.let_go.set()
    assert [entry.sequence for entry in await watching] == []
    assert state((await robot.job(job.job_id)).status) == "SUCCEEDED"


async def test_hundred_watchers_of_one_job_see_the_same(harness: JobsHarness, robot: Client) -> None:
    job = await robot.submit(WAIT)
    await robot.reached(job.job_id, "RUNNING")
    watchers = [asyncio.create_task(robot.ended(job.job_id)) for _ in range(100)]
    harness.waits.let_go.set()
    for history in await asyncio.gather(*watchers):
        assert is_gapless(history)
        assert state(history[-1]) == "SUCCEEDED"
    assert harness.running.hub.long_work.watch.watchers == 0


@pytest.mark.promise("watch.slow-delays-nobody")
async def test_slow_watcher_delays_neither_the_job_nor_the_others(
    harness: JobsHarness, robot: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is sent than a connection takes that nobody reads."""
    monkeypatch.setattr(reports, "INTERVAL_S", 0.0)
    monkeypatch.setattr(reports, "_JOB_S", 0.0)
    job = await robot.submit(harness.talks.name)
    slow = aiter(robot.watch(job.job_id))
    first = (await anext(slow)).status
    await robot.seen(job.job_id, lambda entry: entry.sequence >= 400)
    harness.talks.let_go.set()
    last = (await robot.ended(job.job_id))[-1]
    assert state(last) == "SUCCEEDED"
    rest = [answer.status async for answer in slow]
    assert is_gapless([first, *rest])
    assert rest[-1] == last


async def test_progress_is_published_ten_times_a_second_and_the_last_report_in_any_case(
    harness: JobsHarness, robot: Client
) -> None:
    job = await robot.submit(harness.talks.name)
    history = await robot.seen(job.job_id, lambda entry: entry.sequence >= 6)
    harness.talks.let_go.set()
    took_s = (history[-1].at.ToMilliseconds() - job.created_at.ToMilliseconds()) / 1_000
    reports = [entry.progress.step for entry in history if entry.HasField("progress")]
    assert len(reports) <= took_s * 10 + 2
    assert reports[-1] > len(reports), "most were left out"
    assert (await robot.ended(job.job_id))[-1].progress.step >= reports[-1]


@pytest.mark.promise("jobs.owners-only")
async def test_unknown_and_foreign_jobs_are_not_found_and_reported_alike(harness: JobsHarness, robot: Client) -> None:
    job_id, other = (await robot.submit(ECHO)).job_id, harness.by("other")
    failures = [
        await failed(other.job(job_id)),
        await failed_stream(other.watch(job_id)),
        await failed(other.cancel(job_id)),
        await failed(other.job("job_unknown")),
        await failed_stream(other.watch("job_unknown")),
        await failed(other.cancel("job_unknown")),
    ]
    assert {(each.code, each.reason) for each in failures} == {(grpc.StatusCode.NOT_FOUND, "NOT_FOUND")}
    assert {each.message.replace(job_id, "job_unknown") for each in failures} == {failures[-1].message}
    assert (await other.page()).total_size == 0
    assert (await other.page(principal="robot")).total_size == 0
    boss = harness.by("boss")
    assert (await boss.job(job_id)).job_id == job_id
    assert (await boss.page(principal="robot")).total_size == 1


async def test_lists_are_filtered_paged_and_counted_without_results(harness: JobsHarness, robot: Client) -> None:
    echoes = []
    for number in range(5):
        echoes.append(await robot.submit(ECHO, {"text": str(number)}, request_id=f"r-{number % 2}"))
        await next_millisecond()
    held = await robot.submit(WAIT, task_id="t-1")
    for job in echoes:
        await robot.ended(job.job_id)
    await robot.reached(held.job_id, "RUNNING")
    everything = await robot.page()
    assert [job.job_id for job in everything.jobs] == [held.job_id, *(job.job_id for job in reversed(echoes))]
    assert not any(job.status.HasField("result") for job in everything.jobs)
    read, token = [], ""
    while True:
        page = await robot.page(page_size=2, page_token=token, tool="test/text.e*")
        assert page.total_size == 5
        read += [job.job_id for job in page.jobs]
        if not (token := page.next_page_token):
            break
    assert read == [job.job_id for job in reversed(echoes)]
    for where, matching in (
        ({"states": [job_state_pb2.JOB_STATE_RUNNING]}, 1),
        ({"states": [job_state_pb2.JOB_STATE_UNSPECIFIED]}, 6),
        ({"request_id": "r-0"}, 3),
        ({"request_id": "r-0", "states": [job_state_pb2.JOB_STATE_SUCCEEDED]}, 3),
        ({"task_id": "t-1"}, 1),
        ({"tool": WRITE}, 0),
    ):
        assert (await robot.page(**where)).total_size == matching, where
    harness.waits.let_go.set()


@pytest.mark.promise("jobs.same-key-same-job")
async def test_same_key_gives_the_same_job_and_other_arguments_conflict(harness: JobsHarness, robot: Client) -> None:
    first = await robot.submit(WRITE, {"text": "a"}, idempotency_key="k-1")
    again = await robot.submit(WRITE, {"text": "a"}, idempotency_key="k-1")
    assert again.job_id == first.job_id
    conflict = await failed(robot.submit(WRITE, {"text": "b"}, idempotency_key="k-1"))
    assert (conflict.code, conflict.reason) == (grpc.StatusCode.ABORTED, "IDEMPOTENCY_CONFLICT")
    foreign = await harness.by("other").submit(WRITE, {"text": "b"}, idempotency_key="k-1")
    assert foreign.job_id != first.job_id
    harness.writes.let_go.set()
    assert states(await robot.ended(first.job_id))[-1] == "SUCCEEDED"
    done = await robot.submit(WRITE, {"text": "a"}, idempotency_key="k-1")
    assert (done.job_id, state(done.status)) == (first.job_id, "SUCCEEDED")
    assert (await robot.page()).total_size == 1


@pytest.mark.promise("jobs.same-key-same-job")
async def test_twenty_submissions_at_once_with_one_key_are_one_job_and_one_effect(
    harness: JobsHarness, robot: Client
) -> None:
    harness.writes.let_go.set()
    jobs = await asyncio.gather(*(robot.submit(WRITE, idempotency_key="k-1") for _ in range(20)))
    assert len({job.job_id for job in jobs}) == 1
    assert states(await robot.ended(jobs[0].job_id))[-1] == "SUCCEEDED"
    assert harness.writes.runs == 1
    assert (await robot.page()).total_size == 1


async def test_key_of_a_job_is_the_key_of_a_call(harness: JobsHarness, robot: Client) -> None:
    harness.writes.let_go.set()
    job = await robot.submit(WRITE, {"text": "a"}, idempotency_key="k-1")
    await robot.ended(job.job_id)
    called = await robot.call(WRITE, {"text": "a"}, idempotency_key="k-1")
    assert (called.ok, called.replayed, json.loads(called.result_json)) == (True, True, {"text": "a"})
    other = await robot.call(WRITE, {"text": "b"}, idempotency_key="k-1")
    assert other.error.kind == error_pb2.ERROR_KIND_IDEMPOTENCY_CONFLICT
    invoked = await robot.call(WRITE, {"text": "c"}, idempotency_key="k-2")
    assert not invoked.replayed
    late = await robot.submit(WRITE, {"text": "c"}, idempotency_key="k-2")
    last = (await robot.ended(late.job_id))[-1]
    assert (state(last), last.result.replayed, last.result.call_id) == ("SUCCEEDED", True, invoked.call_id)


async def test_key_used_by_a_call_with_other_arguments_fails_the_job(harness: JobsHarness, robot: Client) -> None:
    harness.writes.let_go.set()
    await robot.call(WRITE, {"text": "a"}, idempotency_key="k-1")
    last = (await robot.ended((await robot.submit(WRITE, {"text": "b"}, idempotency_key="k-1")).job_id))[-1]
    assert (state(last), last.error.kind) == ("FAILED", error_pb2.ERROR_KIND_IDEMPOTENCY_CONFLICT)


async def test_arguments_are_forgotten_when_the_job_ends_and_its_digest_stays(
    harness: JobsHarness, robot: Client
) -> None:
    job = await robot.submit(WRITE, {"text": "only for the run"})
    await harness.writes.started.wait()
    jobs = harness.running.hub.long_work.stores.jobs
    under_way = await jobs.get(job.job_id)
    assert under_way is not None
    assert under_way.call.args == {"text": "only for the run"}
    harness.writes.let_go.set()
    assert state((await robot.ended(job.job_id))[-1]) == "SUCCEEDED"
    over = await jobs.get(job.job_id)
    assert over is not None
    assert over.call.args == {}
    assert (await robot.job(job.job_id)).args_digest == job.args_digest != ""


async def test_malformed_questions_are_refused_by_field(robot: Client) -> None:
    for call, field in (
        (robot.job("two words"), "job_id"),
        (robot.page(page_size=-1), "page_size"),
        (robot.submit(ECHO, plan_digest="a b"), "plan_digest"),
        (robot.cancel("x", "y" * 5_000), "reason"),
    ):
        refused = await failed(call)
        assert (refused.code, list(refused.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, [field])
    assert (await failed(robot.page(page_token="nonsense"))).code is grpc.StatusCode.INVALID_ARGUMENT
    assert (await failed_stream(robot.watch("x", -1))).code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.promise("watch.gapless", "jobs.whole-history")
async def test_the_whole_history_is_sent_from_its_first_entry_on_request(robot: Client) -> None:
    job = await robot.submit(ECHO, {"text": "hello"})
    end = (await robot.ended(job.job_id))[-1]
    asked = job_service_pb2.WatchJobRequest(job_id=job.job_id, from_first=True)
    watch = robot.running.jobs.WatchJob(asked, metadata=robot.metadata, timeout=60)
    history = [answer.status async for answer in watch]
    assert (history[0].sequence, state(history[0]), history[-1]) == (1, "QUEUED", end)
    assert is_gapless(history)


@pytest.mark.promise("watch.many-jobs")
async def test_several_named_jobs_are_followed_in_one_stream_to_the_last_end(
    harness: JobsHarness, robot: Client
) -> None:
    done = await robot.submit(ECHO)
    await robot.ended(done.job_id)
    held = [await robot.submit(WAIT, {"text": text}) for text in ("a", "b")]
    names = [done.job_id, *(job.job_id for job in held)]
    watch = robot.watch_many(*names, after_sequences={held[0].job_id: held[0].status.sequence})
    await watch.initial_metadata()
    harness.waits.let_go.set()
    by_job: dict[str, list[Status]] = {}
    async for answer in watch:
        by_job.setdefault(answer.status.job_id, []).append(answer.status)
    assert by_job.keys() == set(names)
    assert all(state(entries[-1]) == "SUCCEEDED" and is_gapless(entries) for entries in by_job.values())
    assert len(by_job[done.job_id]) == 1
    assert by_job[held[0].job_id][0].sequence == held[0].status.sequence + 1
    last = {name: entries[-1].sequence for name, entries in by_job.items()}
    assert [answer async for answer in robot.watch_many(*names, after_sequences=last)] == []


@pytest.mark.promise("watch.many-jobs")
async def test_matching_jobs_are_followed_with_later_ones_and_none_of_others(
    harness: JobsHarness, robot: Client
) -> None:
    early = await robot.submit(WAIT, request_id="r-1")
    watch = robot.watch_many(request_id="r-1")
    entries = aiter(watch)
    assert (await anext(entries)).status.job_id == early.job_id
    await harness.by("other").submit(ECHO, request_id="r-1")
    await robot.submit(ECHO, request_id="r-2")
    late = await robot.submit(ECHO, request_id="r-1")
    seen: dict[str, list[Status]] = {early.job_id: [], late.job_id: []}
    async for answer in entries:
        seen[answer.status.job_id].append(answer.status)
        if answer.status.job_id == late.job_id and answer.status.HasField("result"):
            harness.waits.let_go.set()
        if answer.status.job_id == early.job_id and answer.status.HasField("result"):
            break
    watch.cancel()
    assert (seen[late.job_id][0].sequence, states(seen[late.job_id])[-1]) == (1, "SUCCEEDED")
    assert is_gapless(seen[late.job_id])
    assert is_gapless(seen[early.job_id])
    foreign = await failed_stream(harness.by("other").watch_many(early.job_id))
    assert foreign.code is grpc.StatusCode.NOT_FOUND
    boss = harness.by("boss").watch_many(early.job_id)
    assert [state(answer.status) async for answer in boss] == ["SUCCEEDED"], "who oversees the hub sees all"
