"""A pipeline of real parts around one scripted adapter, and a record of what was asked in which order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tests.fakes.audit_log import MemoryAuditLog
from tests.fakes.clock import FixedRandomness, ManualClock
from tests.fakes.storage import FixedStorage
from toolhub_service.budget.ledger import Budgets
from toolhub_service.budget.terms import BudgetTerms
from toolhub_service.domain.approval import Approval
from toolhub_service.domain.artifact import BlobWriter
from toolhub_service.domain.call import (
    NO_PRECONDITIONS,
    BudgetRequest,
    Call,
    ExecContext,
    GrantedCall,
    Mode,
    PlannedCall,
    Preconditions,
    Principal,
    Question,
)
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.job import Job, RemoteMark
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import NOTHING_FIXED, EventSink, FixedTerms, Sleep
from toolhub_service.domain.result import Outcome, Plan, SettledCall, ToolResult
from toolhub_service.domain.tool import Annotations, ToolKind, ToolLimits, ToolSpec, ToolState
from toolhub_service.domain.verdict import Verdict
from toolhub_service.guards.secrets import Redactor
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.live import LivePolicy
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.runtime.artifacts.service import Artifacts
from toolhub_service.runtime.call_ids import CallIds
from toolhub_service.runtime.call_state import NOT_BEGUN, CallState
from toolhub_service.runtime.idempotency import Idempotency
from toolhub_service.runtime.pipeline import Pipeline
from toolhub_service.runtime.plans import Plans
from toolhub_service.runtime.record import Recorder
from toolhub_service.runtime.steps import Executor, enforce
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.stores.memory.keys import MemoryKeys
from toolhub_service.stores.memory.records import MemoryArtifacts

POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs]}
"""
PLAN_KEY = b"\x05" * 32
PLAN_TTL_S = 600.0

INPUT: JsonObject = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "times": {"type": "integer", "default": 1}},
    "additionalProperties": False,
}
OUTPUT: JsonObject = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def a_tool(
    name: str = "test/text.say",
    *,
    capability: str = "read:fs",
    limits: ToolLimits | None = None,
    state: ToolState = ToolState.ACTIVE,
    state_reason: str = "",
    description: str = "Say a text.",
    **annotations: bool,
) -> ToolSpec:
    return ToolSpec(
        name=name,
        kind=ToolKind.CORE,
        description=description,
        input_schema=INPUT,
        output_schema=OUTPUT,
        capabilities=frozenset({capability}),
        annotations=Annotations(**annotations),
        limits=limits or ToolLimits(),
        state=state,
        state_reason=state_reason,
        source="custom",
    )


READ = a_tool("test/text.read", read_only=True)
WRITE = a_tool("test/text.write", capability="write:fs")

HANG = "hang"
"""An answer that never comes."""


class ScriptedAdapter:
    """Gives its answers in turn, the last answer for ever: an Outcome, an error, a defect or HANG."""

    kind = ToolKind.CORE

    def __init__(self, visited: list[str], *answers: Any) -> None:
        self._visited = visited
        self.answers = list(answers) or [Outcome(value={"text": "done"})]
        self.calls: list[GrantedCall] = []
        self.started = asyncio.Event()
        self.stopped = 0
        self.reads_only = False
        self.keeps_marks = False
        self.stands = NO_PRECONDITIONS

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        self._visited.append("adapter.execute")
        self.calls.append(call)
        self.started.set()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is HANG:
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped += 1
        if isinstance(answer, ToolError):
            raise ToolFailure(answer)
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, Outcome)
        return answer

    def effects(self, call: Any) -> Sequence[str]:
        self._visited.append("adapter.effects")
        return ("Say it.",)

    async def preconditions(self, planned: PlannedCall) -> Preconditions:
        self._visited.append("adapter.preconditions")
        return self.stands

    def has_side_effects(self, planned: PlannedCall) -> bool:
        return planned.spec.has_side_effects and not self.reads_only

    def fixed_terms(self, spec: ToolSpec) -> FixedTerms:
        return NOTHING_FIXED

    def resumes(self, spec: ToolSpec) -> bool:
        return self.keeps_marks

    def upstream(self, planned: PlannedCall) -> str:
        self._visited.append("adapter.upstream")
        return planned.spec.upstream_key


class RecordingCatalog(ToolCatalog):
    visited: list[str]

    def get(self, name: str) -> ToolSpec | None:
        self.visited.append("catalog.get")
        return super().get(name)


class RecordingPolicy(LivePolicy):
    visited: list[str]

    def decide_beforehand(self, principal: Principal, spec: ToolSpec) -> Verdict | None:
        self.visited.append("policy.settled")
        return super().decide_beforehand(principal, spec)

    def decide(self, planned: PlannedCall) -> Verdict:
        self.visited.append("policy.decide")
        return super().decide(planned)


class RecordingAuditLog(MemoryAuditLog):
    """The log in memory; `gate` set: a durable append waits for it, as for a slow disk."""

    def __init__(self, visited: list[str]) -> None:
        super().__init__()
        self._visited = visited
        self.gate: asyncio.Event | None = None
        self.waiting = asyncio.Event()
        self.has_caught_up = asyncio.Event()
        self.has_caught_up.set()

    async def ready(self) -> None:
        await super().ready()
        if not self.has_caught_up.is_set():
            self.waiting.set()
            await self.has_caught_up.wait()

    def append(self, event: Event) -> None:
        super().append(event)
        self._visited.append(f"audit.{event.type.value}")

    async def append_durably(self, event: Event) -> None:
        self._visited.append("audit.durably")
        self.append(event)
        if self.gate is not None:
            self.waiting.set()
            await self.gate.wait()


@dataclass
class RecordingObserver:
    """A CallObserver that keeps what it is called with."""

    visited: list[str]
    settled_calls: list[SettledCall] = field(default_factory=list)
    crashes: list[BaseException] = field(default_factory=list)
    retries: list[tuple[ToolError, int]] = field(default_factory=list)

    @contextmanager
    def executing(self, call: GrantedCall) -> Iterator[None]:
        self.visited.append("observer.executing")
        yield

    def on_retry(self, call: GrantedCall, error: ToolError, attempt: int) -> None:
        self.retries.append((error, attempt))

    def on_unkept_result(self, call: Call, problem: ToolError) -> None:
        self.visited.append(f"unkept {problem.kind.value}")

    def on_crash(self, call: Call, error: BaseException) -> None:
        self.crashes.append(error)

    def on_settled_call(self, settled: SettledCall) -> None:
        self.visited.append("observer.settled")
        self.settled_calls.append(settled)


@dataclass
class PipelineHarness:
    """Everything of one pipeline, to look at."""

    visited: list[str]
    pipeline: Pipeline
    adapter: ScriptedAdapter
    catalog: RecordingCatalog
    policy: RecordingPolicy
    audit: RecordingAuditLog
    observer: RecordingObserver
    budgets: Budgets
    clock: ManualClock
    randomness: FixedRandomness

    async def ask(self, spec: ToolSpec | str = READ, args: Mapping[str, JsonValue] | None = None, **fields: Any) -> Any:
        return await self.pipeline.invoke(a_call(spec, args, **fields))

    async def result(
        self, spec: ToolSpec | str = READ, args: Mapping[str, JsonValue] | None = None, **fields: Any
    ) -> ToolResult:
        answer = await self.ask(spec, args, **fields)
        assert isinstance(answer, ToolResult)
        return answer

    async def error(
        self, spec: ToolSpec | str = READ, args: Mapping[str, JsonValue] | None = None, **fields: Any
    ) -> ToolError:
        answer = await self.result(spec, args, **fields)
        assert answer.error is not None
        assert not answer.ok
        return answer.error

    async def plan(
        self, spec: ToolSpec | str = READ, args: Mapping[str, JsonValue] | None = None, **fields: Any
    ) -> Plan:
        answer = await self.ask(spec, args, mode=Mode.DRY_RUN, **fields)
        assert isinstance(answer, Plan)
        return answer

    @property
    def events(self) -> list[Event]:
        return [chained.event for chained in self.audit.events]

    @property
    def event_types(self) -> list[EventType]:
        return [event.type for event in self.events]


class NobodyApproves:
    """An approval is asked for and never given."""

    async def settle(self, planned: PlannedCall, verdict: Verdict) -> Approval:
        enforce(planned, verdict)
        raise AssertionError("asked without need")

    async def ask_question(
        self, planned: PlannedCall, verdict: Verdict, question: Question, earlier: Approval | None
    ) -> NoReturn:
        raise AssertionError("no tool asks here")

    async def use(self, approval: Approval, call: Call) -> None:
        raise AssertionError("none was given")


def no_artifacts(clock: ManualClock, randomness: FixedRandomness) -> Artifacts:
    """Of a hub that has none, and keeps none."""
    return Artifacts(
        MemoryArtifacts(),
        NoBlobs(),
        clock,
        randomness,
        ttl_s=1.0,
        max_bytes=1,
        argument_max_bytes=1,
        directory=FixedStorage(),
    )


class NoBlobs:
    """Nothing is ever stored."""

    async def writer(self) -> BlobWriter:
        raise refuse(ErrorKind.IO_ERROR, "nothing is kept here")

    def read(self, sha256: str, offset_bytes: int, limit_bytes: int) -> AsyncIterator[bytes]:
        raise refuse(ErrorKind.NOT_FOUND, "nothing is kept here")

    async def remove(self, sha256: str) -> None:
        """There is none."""

    async def close(self) -> None:
        """Nothing is open."""


class NoJobs:
    """Of a pipeline that is given plain calls only."""

    async def accept(self, call: Call, granted: GrantedCall) -> tuple[Job, bool]:
        raise AssertionError("no call here becomes a job")

    async def begins(self, job_id: str) -> None:
        raise AssertionError("no job runs here")

    async def asks(self, job_id: str) -> None:
        raise AssertionError("no job runs here")

    async def mark(self, job_id: str) -> RemoteMark | None:
        raise AssertionError("no job runs here")

    async def keep_mark(self, job_id: str, mark: RemoteMark) -> None:
        raise AssertionError("no job runs here")

    def suspends(self, job_id: str, approval_id: str) -> None: ...

    def continues_elsewhere(self, job_id: str) -> bool:
        return False

    def stopping(self, job_id: str) -> asyncio.Event:
        raise AssertionError("no job runs here")


def a_pipeline_harness(
    *answers: Any,
    tools: Sequence[ToolSpec] = (READ, WRITE),
    policy: str = POLICY,
    terms: BudgetTerms | None = None,
    show_raw: bool = False,
    sleep: Sleep = asyncio.sleep,
) -> PipelineHarness:
    """`answers` are those of the adapter. The clock starts at the loop's own time, so that deadlines mean something."""
    visited: list[str] = []
    clock, randomness = ManualClock(now_s=time.monotonic()), FixedRandomness(0.0)
    catalog, live = RecordingCatalog(check_schema=compile_schema), RecordingPolicy(PolicySnapshot.load(policy))
    catalog.visited = live.visited = visited
    for spec in tools:
        catalog.register(spec)
    adapter, audit, observer = (
        ScriptedAdapter(visited, *answers),
        RecordingAuditLog(visited),
        RecordingObserver(visited),
    )
    budgets = Budgets(clock, randomness, terms)
    recorder = Recorder(audit, observer, clock, Redactor())
    pipeline = Pipeline(
        catalog=catalog,
        adapters={ToolKind.CORE: adapter},
        policy=live,
        plans=Plans(PLAN_KEY, clock, PLAN_TTL_S),
        keys=Idempotency(MemoryKeys(clock), observer, clock, randomness),
        budgets=budgets,
        executor=Executor(observer, recorder, sleep),
        recorder=recorder,
        observer=observer,
        clock=clock,
        redactor=Redactor(),
        approvals=NobodyApproves(),
        jobs=NoJobs(),
        running=NoJobs(),
        artifacts=no_artifacts(clock, randomness),
        call_ids=CallIds(clock, randomness),
        show_raw=show_raw,
    )
    return PipelineHarness(visited, pipeline, adapter, catalog, live, audit, observer, budgets, clock, randomness)


def a_call(
    spec: ToolSpec | str = READ,
    args: Mapping[str, JsonValue] | None = None,
    *,
    principal: str = "local",
    purpose: str = "a test",
    mode: Mode = Mode.EXECUTE,
    plan_digest: str = "",
    deadline_s: float | None = None,
    args_error: ToolError | None = None,
    idempotency_key: str = "",
    budget: BudgetRequest | None = None,
    **context: Any,
) -> Call:
    """Further keywords are fields of its ExecContext."""
    return Call(
        call_id="call-1",
        tool=spec if isinstance(spec, str) else spec.name,
        args=dict(args or {}),
        principal=Principal(principal),
        context=ExecContext(request_id="request-1", budget=budget or BudgetRequest(), **context),
        purpose=purpose,
        mode=mode,
        plan_digest=plan_digest,
        deadline_s=deadline_s,
        args_error=args_error,
        idempotency_key=idempotency_key,
    )


def state_of(call: Call) -> CallState:
    """The state of a call that begins now, as `Pipeline.invoke` makes it."""
    return CallState(call, call, [time.perf_counter_ns(), *NOT_BEGUN], {})
