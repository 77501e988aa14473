"""Watchers: each sees every entry once and in order, however slowly it reads and whenever it came."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.runtime.jobs.faulty_jobs import FaultyJobs
from tests.unit.runtime.jobs.job_harness import WITHIN_S, JobHarness, Process, RecordingObserver, a_job, answered, turn
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure
from toolhub_service.domain.errors.spec import Code
from toolhub_service.domain.job import Job, JobFilter, JobNews, move_job
from toolhub_service.domain.result import JobState, Progress
from toolhub_service.runtime.jobs.watch import TAIL_ENTRIES, JobWatch

END = 10_000


class WatchedJob:
    """One job that gets further, and those who watch it."""

    def __init__(self) -> None:
        self.store = FaultyJobs()
        self.store.muted = True
        self.observer = RecordingObserver()
        self.watch = JobWatch(self.store, self.observer)
        self.store.listen(self.watch.on_event)
        self.job = a_job()

    async def begin(self) -> None:
        await self.store.inner.create(self.job)
        await self.put(move_job(self.job, JobState.RUNNING, 0, runner="runner-1"))

    async def put(self, job: Job) -> JobNews:
        assert await self.store.inner.put(job)
        self.job = job
        return JobNews(job.job_id, job.status.sequence, job.status)

    async def report(self) -> JobNews:
        """One more entry, of which nobody has heard."""
        return await self.put(move_job(self.job, JobState.RUNNING, 0, progress=Progress(self.job.status.sequence)))

    async def end(self) -> JobNews:
        return await self.put(
            move_job(self.job, JobState.SUCCEEDED, 0, result=answered(self.job), runner="", expires_at_unix_ms=1)
        )

    async def announce(self, *news: JobNews) -> None:
        for each in news:
            self.store.announce(each)

    async def whole(self, after: int = 0) -> list[int]:
        """Every sequence that a watcher sees, until its watch ends."""
        job = await self.store.inner.get("job-1")
        assert job is not None
        async with asyncio.timeout(WITHIN_S), aclosing(self.watch.watch(job, after)) as entries:
            return [entry.sequence async for entry in entries]


class Watcher:
    """Reads as often as it is let to."""

    def __init__(self, watched: WatchedJob, job: Job, after: int) -> None:
        self.seen: list[int] = []
        self.after = after
        self.first = job.status.sequence if after == 0 else after + 1
        self._may_read = asyncio.Semaphore(0)
        self.task = asyncio.create_task(self._read(watched.watch, job))

    def let(self, reads: int) -> None:
        for _ in range(reads):
            self._may_read.release()

    async def _read(self, watch: JobWatch, job: Job) -> None:
        async with aclosing(watch.watch(job, self.after)) as entries:
            await self._may_read.acquire()
            async for entry in entries:
                self.seen.append(entry.sequence)
                await self._may_read.acquire()


@pytest.fixture
async def watched() -> WatchedJob:
    watched = WatchedJob()
    await watched.begin()
    return watched


async def test_watch_begins_with_the_present_state(watched: WatchedJob) -> None:
    await watched.report()
    await watched.end()
    assert await watched.whole() == [4]


async def test_watch_goes_on_after_what_was_seen(watched: WatchedJob) -> None:
    await watched.report()
    await watched.end()
    assert await watched.whole(1) == [2, 3, 4]
    assert await watched.whole(3) == [4]
    assert await watched.whole(4) == []
    assert await watched.whole(99) == []


async def test_history_longer_than_one_read_is_seen_whole(watched: WatchedJob) -> None:
    for _ in range(1_000):
        await watched.report()
    await watched.end()
    assert await watched.whole(1) == list(range(2, 1_004))


async def test_watcher_that_comes_back_to_a_watched_job_sees_at_once_what_it_has_missed(watched: WatchedJob) -> None:
    """The other one, who has seen more, has already closed the gap at the beginning."""
    for _ in range(5):
        await watched.report()
    ahead = Watcher(watched, watched.job, watched.job.status.sequence)
    ahead.let(END)
    for _ in range(9):
        await turn()
    behind = Watcher(watched, watched.job, 3)
    behind.let(END)
    async with asyncio.timeout(WITHIN_S):
        while behind.seen != [4, 5, 6, 7]:
            await turn()
    await watched.announce(await watched.end())
    await asyncio.gather(ahead.task, behind.task)
    assert (ahead.seen, behind.seen) == ([8], [4, 5, 6, 7, 8])


async def test_watcher_that_is_ahead_of_its_job_waits_and_then_sees_only_what_is_later(watched: WatchedJob) -> None:
    watcher = Watcher(watched, watched.job, 4)
    watcher.let(END)
    for _ in range(4):
        await watched.announce(await watched.report())
        await turn()
    await watched.announce(await watched.end())
    await watcher.task
    assert watcher.seen == [5, 6, 7]


async def test_watcher_that_stays_ahead_ends_with_its_job(watched: WatchedJob) -> None:
    watcher = Watcher(watched, watched.job, 500)
    watcher.let(END)
    await turn()
    await watched.announce(await watched.end())
    async with asyncio.timeout(WITHIN_S):
        await watcher.task
    assert watcher.seen == []


async def test_slow_watcher_falls_behind_the_tail_and_misses_nothing(watched: WatchedJob) -> None:
    slow, fast = Watcher(watched, watched.job, 2), Watcher(watched, watched.job, 2)
    fast.let(END)
    slow.let(1)
    for _ in range(3 * TAIL_ENTRIES):
        await watched.announce(await watched.report())
        for _ in range(4):
            await turn()
    read = watched.store.asked.count("history")
    assert read <= 3, "the fast one read the tail"
    slow.let(END)
    await watched.announce(await watched.end())
    await asyncio.gather(slow.task, fast.task)
    assert slow.seen == fast.seen == list(range(3, 3 * TAIL_ENTRIES + 4))


async def test_many_watchers_of_one_job_read_the_store_once(watched: WatchedJob) -> None:
    watchers = [Watcher(watched, watched.job, 1) for _ in range(200)]
    for watcher in watchers:
        watcher.let(END)
    await watched.announce(await watched.end())
    await asyncio.gather(*(watcher.task for watcher in watchers))
    assert all(watcher.seen == [2, 3] for watcher in watchers)
    assert watched.store.asked.count("history") <= 2


async def test_nothing_is_kept_of_a_job_that_nobody_watches(watched: WatchedJob) -> None:
    watchers = [Watcher(watched, watched.job, 0) for _ in range(3)]
    for watcher in watchers:
        watcher.let(END)
    for _ in range(9):
        await turn()
    assert watched.observer.watchers == 3
    for watcher in watchers:
        watcher.task.cancel()
    await asyncio.wait([watcher.task for watcher in watchers])
    assert all(watcher.task.cancelled() for watcher in watchers)
    assert (watched.watch.watchers, watched.observer.watchers, len(watched.watch._topics)) == (0, 0, 0)


async def test_updates_of_unwatched_jobs_are_ignored(watched: WatchedJob) -> None:
    await watched.announce(JobNews("another", 7), await watched.report(), JobNews(""))
    assert len(watched.watch._topics) == 0


async def test_watch_outlasts_a_store_that_is_away(watched: WatchedJob) -> None:
    watched.store.is_away = True
    watcher = Watcher(watched, watched.job, 1)
    watcher.let(END)
    await watched.end()
    async with asyncio.timeout(WITHIN_S):
        while len(watched.observer.troubles) < 3:
            await turn()
    watched.store.is_away = False
    await watcher.task
    assert watcher.seen == [2, 3]


@pytest.mark.parametrize("is_away", [False, True])
async def test_watchers_are_asked_to_reconnect_when_the_hub_leaves(watched: WatchedJob, is_away: bool) -> None:
    watcher = Watcher(watched, watched.job, 1)
    watcher.let(END)
    watched.store.is_away = is_away
    for _ in range(9):
        await turn()
    watched.watch.drain()
    with pytest.raises(HubFailure) as left:
        await watcher.task
    assert (left.value.reason.code, left.value.reason.name) == (Code.UNAVAILABLE, "DRAINING")
    with pytest.raises(HubFailure):
        await watched.whole(2)


async def test_end_that_was_seen_is_no_reason_to_come_again(watched: WatchedJob) -> None:
    await watched.end()
    watched.watch.drain()
    assert await watched.whole() == [3]


async def test_watch_of_a_job_that_is_forgotten_meanwhile_ends(watched: WatchedJob) -> None:
    """A reader so slow that what it has not read is gone."""
    watcher = Watcher(watched, watched.job, 0)
    watcher.let(1)
    for _ in range(9):
        await turn()
    assert watcher.seen == [2]
    for _ in range(2 * TAIL_ENTRIES):
        await watched.announce(await watched.report())
    await watched.announce(await watched.end())
    assert await watched.store.inner.forget(2, 10) == 1
    watcher.let(END)
    with pytest.raises(ToolFailure) as gone:
        async with asyncio.timeout(WITHIN_S):
            await watcher.task
    assert gone.value.error.kind is ErrorKind.NOT_FOUND


async def test_watch_of_a_job_that_vanished_behind_a_gap_ends(watched: WatchedJob) -> None:
    watcher = Watcher(watched, watched.job, 2)
    watcher.let(END)
    for _ in range(9):
        await turn()
    await watched.end()
    await watched.store.inner.forget(2, 10)
    await watched.announce(JobNews(""))
    with pytest.raises(ToolFailure):
        async with asyncio.timeout(WITHIN_S):
            await watcher.task


async def test_a_watcher_at_the_newest_entry_costs_one_request_where_nothing_was_missed(watched: WatchedJob) -> None:
    watcher = Watcher(watched, watched.job, 2)
    watcher.let(1)
    for _ in range(9):
        await turn()
    assert watched.store.asked == ["history"], "whether the job is there still is asked only behind a gap"
    watcher.let(END)
    await watched.announce(await watched.end())
    await watcher.task
    assert watcher.seen == [3]


async def test_end_is_seen_from_memory_when_the_job_is_forgotten(watched: WatchedJob) -> None:
    watcher = Watcher(watched, watched.job, 2)
    watcher.let(1)
    for _ in range(9):
        await turn()
    await watched.announce(await watched.end())
    await watched.store.inner.forget(2, 10)
    watcher.let(END)
    await watcher.task
    assert watcher.seen == [3]


async def test_job_that_ends_while_a_watch_of_several_reads_it_is_sent_once() -> None:
    watched = WatchedJob()
    async with aclosing(watched.watch.watch_many([], JobFilter(), {})) as statuses:
        reading = asyncio.ensure_future(anext(statuses))
        for _ in range(20):  # until it has read that there is none, and waits
            await turn()
        watched.store.held["get"] = asyncio.Event()
        await watched.begin()
        await watched.announce(JobNews("job-1", 2, watched.job.status))
        while "get" not in watched.store.asked:
            await turn()
        await watched.announce(await watched.end())
        watched.store.held["get"].set()
        assert [(await reading).sequence, (await anext(statuses)).sequence, (await anext(statuses)).sequence] == [
            1,
            2,
            3,
        ]
        later = asyncio.ensure_future(anext(statuses))
        for _ in range(20):
            await turn()
        assert not later.done()
        later.cancel()
        await asyncio.wait([later])


async def test_watch_of_several_finds_a_job_that_began_behind_a_gap() -> None:
    watched = WatchedJob()
    async with asyncio.timeout(WITHIN_S), aclosing(watched.watch.watch_many([], JobFilter(), {})) as statuses:
        reading = asyncio.ensure_future(anext(statuses))
        for _ in range(20):
            await turn()
        await watched.begin()
        await watched.announce(JobNews(""))
        assert (await reading).sequence == 1


async def test_watch_of_more_jobs_than_one_read_brings_sees_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolhub_service.runtime.jobs.watch._READ_ENTRIES", 2)
    watched = WatchedJob()
    for number in range(5):
        await watched.store.inner.create(a_job(f"job-{number}"))
    async with asyncio.timeout(WITHIN_S), aclosing(watched.watch.watch_many([], JobFilter(), {})) as statuses:
        assert {(await anext(statuses)).job_id for _ in range(5)} == {f"job-{number}" for number in range(5)}


async def test_whole_process_follows_a_run(harness: JobHarness, process: Process) -> None:
    await harness.kept(a_job())
    seen = []

    async def follow() -> None:
        async with aclosing(process.watch.watch(await harness.job(), 0)) as entries:
            seen.extend([entry.state.value async for entry in entries])

    following = asyncio.create_task(follow())
    for _ in range(9):
        await turn()
    harness.world.go["job-1"].set()
    await process.deliver()
    await following
    assert seen == ["QUEUED", "RUNNING", "SUCCEEDED"]


HOW = st.sampled_from(["whole", "number only", "twice", "late", "missed"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("report"), HOW),
        st.tuples(st.just("burst"), st.integers(60, 300)),
        st.tuples(st.just("come"), st.integers(0, 12)),
        st.tuples(st.just("read"), st.integers(0, 30)),
        st.tuples(st.just("turn"), st.integers(1, 6)),
        st.tuples(st.just("gap"), st.just(0)),
        st.tuples(st.just("go"), st.integers(0, 30)),
        st.tuples(st.just("away"), st.booleans()),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_every_watcher_sees_each_entry_once_through_any_failures(steps: list[tuple[str, int | str]]) -> None:
    group = asyncio.run(_group_after(steps))
    last = group.watched.job.status.sequence
    assert [watcher.seen for watcher in group.watchers] == [
        list(range(watcher.first, last + 1)) for watcher in group.watchers
    ]
    assert len(group.watched.watch._topics) == group.watched.watch.watchers == 0


async def _group_after(steps: list[tuple[str, int | str]]) -> WatcherGroup:
    group = WatcherGroup()
    await group.watched.begin()
    for name, value in steps:
        await getattr(group, name)(value)
    await group.end()
    return group


class WatcherGroup:
    """Watchers of one job, who come, read and go as they like, while news of it come as they can."""

    def __init__(self) -> None:
        self.watched = WatchedJob()
        self.watchers: list[Watcher] = []
        self.late: list[JobNews] = []

    async def report(self, how: str) -> None:
        news = await self.watched.report()
        if how == "late":
            self.late.append(news)
        elif how == "missed":
            await self.gap(0)
        else:
            shown = JobNews("job-1", news.sequence) if how == "number only" else news
            await self.watched.announce(*self.late, *[shown] * (1 + (how == "twice")))
            self.late = []

    async def burst(self, count: int) -> None:
        await self.watched.announce(*self.late, *[await self.watched.report() for _ in range(count)])
        self.late = []

    async def come(self, back: int) -> None:
        job = await self.watched.store.inner.get("job-1")
        assert job is not None
        after = 0 if back == 0 else max(1, job.status.sequence + 2 - back)
        self.watchers.append(Watcher(self.watched, job, after))

    async def read(self, count: int) -> None:
        if self.watchers:
            self.watchers[count % len(self.watchers)].let(count)

    async def turn(self, count: int) -> None:
        for _ in range(count):
            await turn()

    async def gap(self, _: int) -> None:
        self.late = []
        await self.watched.announce(JobNews(""))

    async def go(self, number: int) -> None:
        if self.watchers:
            leaving = self.watchers.pop(number % len(self.watchers))
            leaving.task.cancel()
            await asyncio.wait({leaving.task})
            every = range(leaving.first, self.watched.job.status.sequence + 1)
            assert leaving.seen == list(every[: len(leaving.seen)])

    async def away(self, is_away: bool) -> None:
        self.watched.store.is_away = is_away

    async def end(self) -> None:
        self.watched.store.is_away = False
        await self.watched.announce(*self.late, await self.watched.end())
        for watcher in self.watchers:
            watcher.let(END)
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(watcher.task for watcher in self.watchers))
