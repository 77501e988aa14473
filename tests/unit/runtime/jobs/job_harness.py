"""Long work: processes of real parts around one store that can fail, and a script instead of tools."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from tests.fakes.audit_log import MemoryAuditLog
from tests.fakes.clock import FixedRandomness, ManualClock
from tests.unit.runtime.jobs.faulty_jobs import FaultyJobs
from toolhub_service.aio.turns import Turns
from toolhub_service.domain.call import Call, ExecContext, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.job import Job, JobCounts, JobNews, JobStatus, RemoteMark, may_follow, move_job
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.result import Evidence, EvidenceType, JobState, ToolResult
from toolhub_service.guards.secrets import Redactor
from toolhub_service.job_engines.inprocess import InprocessEngine
from toolhub_service.runtime.approvals.gate import Approvals
from toolhub_service.runtime.jobs.accept import Acceptance
from toolhub_service.runtime.jobs.decisions import Decisions
from toolhub_service.runtime.jobs.heartbeat import Heartbeat
from toolhub_service.runtime.jobs.ledger import JobLedger, JobTerms
from toolhub_service.runtime.jobs.reconcile import Reconciler
from toolhub_service.runtime.jobs.run import JobRuns
from toolhub_service.runtime.jobs.watch import JobWatch, PrincipalJobs
from toolhub_service.stores.memory.records import MemoryApprovals

T0 = 1_700_000_000_000
HOUR_MS = 3_600_000
WITHIN_S = 60.0
AGENT = Principal("agent-a")
TERMS = JobTerms(heartbeat_s=0.001, dead_after_s=5.0, max_open=1_000)
MARK = RemoteMark("key-1", "r-1", accepted=True)


async def turn() -> None:
    """Let ready tasks run."""
    await asyncio.sleep(0)


def a_job(job_id: str = "job-1", *, key: str = "", tool: str = "test/text.write", **changes: Any) -> Job:
    """QUEUED, with an hour to run."""
    job = Job(
        job_id=job_id,
        call=Call(
            f"call-of-{job_id}", tool, {"text": "hi"}, AGENT, ExecContext("r-1"), idempotency_key=key, job_id=job_id
        ),
        tool_version="1.0.0",
        tool_digest="d" * 64,
        args_digest="a" * 64,
        created_at_unix_ms=T0,
        deadline_unix_ms=T0 + HOUR_MS,
        status=JobStatus(job_id, 1, JobState.QUEUED, T0),
    )
    return replace(job, **changes)


def in_state(job: Job, state: JobState, runner: str = "", **fields: Any) -> list[Job]:
    """The records on the way from a QUEUED job to an open state."""
    steps = [job]
    if state is JobState.AWAITING_APPROVAL:
        return [job, move_job(job, state, T0, **fields)]
    if state in (JobState.RUNNING, JobState.CANCELLING):
        steps.append(move_job(job, JobState.RUNNING, T0, runner=runner, runs=1, **fields))
    if state is JobState.CANCELLING:
        steps.append(move_job(steps[-1], state, T0, cancel_reason="enough"))
    return steps


def answered(job: Job, value: Any = "done") -> ToolResult:
    proof = Evidence(EvidenceType.TOOL, job.call.call_id, "done")
    return ToolResult(True, job.call.call_id, job.call.tool, value=value, evidence=(proof,), attempts=1)


def failed(call: Call, kind: ErrorKind, attempts: int = 1, **details: Any) -> ToolResult:
    error = ToolError(kind, kind.value.lower(), details=details)
    return ToolResult(False, call.call_id, call.tool, error=error, attempts=attempts)


class RecordingObserver:
    """Implements `JobObserver`, and keeps what it is called with."""

    def __init__(self) -> None:
        self.transitions: list[tuple[str, str, str]] = []
        self.troubles: list[BaseException] = []
        self.tallies: list[JobCounts] = []
        self.running_now = 0
        self.watchers = 0

    def on_accept(self, job: Job) -> None:
        self.transitions.append((job.job_id, "accepted", job.state.value))

    def on_change(self, before: Job, job: Job) -> None:
        self.transitions.append((job.job_id, before.state.value, job.state.value))

    def on_takeover(self, job: Job) -> None:
        self.transitions.append((job.job_id, "taken over", job.state.value))

    @contextmanager
    def running(self, job: Job) -> Iterator[None]:
        self.running_now += 1
        try:
            yield
        finally:
            self.running_now -= 1

    def on_counts(self, counts: JobCounts) -> None:
        self.tallies.append(counts)

    def watching(self, watchers: int) -> None:
        self.watchers = watchers

    def on_problem(self, job_id: str, problem: BaseException) -> None:
        self.troubles.append(problem)

    @property
    def defects(self) -> list[BaseException]:
        return [trouble for trouble in self.troubles if not isinstance(trouble, ToolFailure)]


Script = Callable[["ScriptedRun"], Awaitable[ToolResult]]


@dataclass
class ScriptedRun:
    """What a script is given: the call, its process, and the world in which effects happen."""

    call: Call
    sink: EventSink
    process: Process
    world: FakeWorld

    @property
    def job(self) -> Job:
        return self.process.runs._live[self.call.job_id].job

    async def begin(self) -> None:
        """As the pipeline does right before an effect that must not happen twice."""
        await self.process.runs.begins(self.call.job_id)

    async def works(self) -> None:
        """Until the test lets go, in the middle of it."""
        self.world.started[self.call.job_id].set()
        await self.world.go[self.call.job_id].wait()

    def act(self) -> None:
        self.world.effects[self.call.job_id] += 1

    def ok(self, value: Any = "done") -> ToolResult:
        return answered(self.job, value)


async def unsafe(run: ScriptedRun) -> ToolResult:
    """A side effect: begun, then done, then worked on."""
    await run.begin()
    run.act()
    await run.works()
    return run.ok()


async def safe(run: ScriptedRun) -> ToolResult:
    """Reads."""
    run.act()
    await run.works()
    return run.ok()


async def remote(run: ScriptedRun) -> ToolResult:
    """Given to a remote side at most once, followed there; ends by itself when it is to stop."""
    runs, job_id = run.process.runs, run.call.job_id
    stopping = runs.stopping(job_id)
    if await runs.mark(job_id) is None:
        await runs.keep_mark(job_id, MARK)
        run.act()
    run.world.started[job_id].set()
    let_go = asyncio.create_task(run.world.go[job_id].wait())
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({let_go, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        let_go.cancel()
        stopped.cancel()
    if stopping.is_set():
        run.world.stops[job_id] += 1
        return failed(run.call, ErrorKind.CANCELLED)
    return run.ok()


class FakeWorld:
    """What scripts do to it, and what holds them up."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.stops: Counter[str] = Counter()
        self.calls: list[Call] = []
        self.started: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.go: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.script: Script = unsafe


@dataclass
class Process:
    """One process of a hub."""

    name: str
    store: FaultyJobs
    clock: ManualClock
    world: FakeWorld
    terms: JobTerms = TERMS
    max_running: int = 1_000
    observer: RecordingObserver = field(default_factory=RecordingObserver)
    audit: MemoryAuditLog = field(default_factory=MemoryAuditLog)
    approvals: MemoryApprovals = field(default_factory=MemoryApprovals)

    def __post_init__(self) -> None:
        self.asking = Approvals(self.approvals, self.audit, self.clock, FixedRandomness(), Redactor())
        self.ledger = JobLedger(self.store, self.audit, self.observer, self.clock, self.terms, self.asking.withdraw)
        self.heartbeat = Heartbeat(self.ledger, self.name)
        self.runs = JobRuns(
            self.ledger, self.heartbeat, Redactor(("s3cret-canary",)), Turns(), lambda kept: Principal(kept.id)
        )
        self.runs.invoker = self
        self.watch = JobWatch(self.store, self.observer)
        self.engine = InprocessEngine(self.max_running)
        self.jobs = PrincipalJobs(self.ledger, self.engine)
        self.decisions = Decisions(self.ledger, self.engine, self.approvals)
        self.acceptance = Acceptance(self.ledger, self.engine, FixedRandomness(), Redactor())
        self.reconciler = Reconciler(
            self.ledger,
            self.engine,
            self.heartbeat,
            awaiting=self.decisions.check,
            give_up=self.runs.give_up,
        )
        self.store.listen(self._on_news)

    def _on_news(self, news: JobNews) -> None:
        self.watch.on_event(news)
        self.runs.on_event(news)

    async def invoke(self, call: Call, sink: EventSink) -> ToolResult:
        """Implements `Invoker`."""
        self.world.calls.append(call)
        return await self.world.script(ScriptedRun(call, sink, self, self.world))

    async def steady(self) -> None:
        """It beats, and has for long enough to judge others."""
        for _ in range(4):
            assert await self.heartbeat.beat()
            self.clock.advance(self.terms.dead_after_s / 4)
        assert await self.heartbeat.beat()
        assert self.heartbeat.may_declare_dead

    def deliver(self, job_id: str = "job-1") -> asyncio.Task[None]:
        return asyncio.create_task(self.runs.run(job_id))

    async def cancel(self, job_id: str = "job-1") -> Job:
        """As its owner asks."""
        job = await self.ledger.store.get(job_id)
        assert job is not None
        return await self.jobs.cancel(job.call.principal, job_id, "enough")

    @property
    def events(self) -> list[Event]:
        return [chained.event for chained in self.audit.events]


class JobHarness:
    def __init__(self) -> None:
        self.store = FaultyJobs()
        self.clock = ManualClock(unix_ms=T0)
        self.world = FakeWorld()
        self.processes: list[Process] = []
        self._placed: dict[str, int] = {}

    def process(self, name: str = "", **fields: Any) -> Process:
        name = name or f"runner-{len(self.processes) + 1}"
        process = Process(name, self.store, self.clock, self.world, **fields)
        self.processes.append(process)
        return process

    async def kept(self, *records: Job) -> Job:
        """Put into the store without anybody's doing."""
        muted, self.store.muted = self.store.muted, True
        assert await self.store.inner.create(records[0]) is None
        for record in records[1:]:
            assert await self.store.inner.put(record)
        self.store.muted = muted
        self._placed[records[0].job_id] = records[-1].status.sequence
        return records[-1]

    async def job(self, job_id: str = "job-1") -> Job:
        job = await self.store.inner.get(job_id)
        assert job is not None
        return job

    async def history(self, job_id: str = "job-1") -> list[JobStatus]:
        return list(await self.store.inner.history(job_id, 0, 1_000_000))

    async def states(self, job_id: str = "job-1") -> list[str]:
        return [entry.state.value for entry in await self.history(job_id)]

    async def started(self, job_id: str = "job-1") -> None:
        async with asyncio.timeout(WITHIN_S):
            await self.world.started[job_id].wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let the others run until it holds."""
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                await turn()

    async def reaches(self, state: JobState, job_id: str = "job-1") -> Job:
        async with asyncio.timeout(WITHIN_S):
            while (job := await self.job(job_id)).state is not state:
                await turn()
        return job

    async def check(self, job_id: str = "job-1", *, effects_max: int = 1) -> Job:
        """What holds of every ended job; returns the job."""
        job = await self.check_history(job_id)
        assert self.world.effects[job_id] <= effects_max
        await self.check_audited(job_id)
        return job

    async def check_history(self, job_id: str = "job-1") -> Job:
        job, history = await self.job(job_id), await self.history(job_id)
        assert [entry.sequence for entry in history] == list(range(1, len(history) + 1))
        assert all(may_follow(one.state, other.state) for one, other in pairwise(history))
        assert job.state.is_final
        assert [entry.state.is_final for entry in history] == [False] * (len(history) - 1) + [True]
        assert [entry.result is not None for entry in history] == [entry.state.is_final for entry in history]
        assert history[-1].result is not None
        assert history[-1].result.evidence or history[-1].result.error is not None
        assert job.runner == ""
        assert job.expires_at_unix_ms > 0
        return job

    async def check_audited(self, job_id: str) -> None:
        """Each change of state is in an audit log once."""
        states = (await self.states(job_id))[self._placed.get(job_id, 1) - 1 :]
        entered = [now for before, now in pairwise(states) if now != before]
        events = [event for process in self.processes for event in process.events]
        recorded = [
            event.attributes["state"]
            for event in events
            if event.type is EventType.JOB_STATE
            and event.attributes["job_id"] == job_id
            and event.attributes["from"] != event.attributes["state"]  # a takeover, which enters nothing
        ]
        assert sorted(recorded) == sorted(entered), (recorded, entered)
