"""Ports: the interfaces of adapters, stores, clocks and observers. Each owns a conformance suite in tests/ports/."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from toolhub_service.domain.call import Call, GrantedCall, PlannedCall, Preconditions, Principal
from toolhub_service.domain.errors import ToolError
from toolhub_service.domain.event import ChainedEvent, Event, EventFilter, Verification
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.key import EffectKey, KeyRecord
from toolhub_service.domain.result import Chunk, Outcome, Plan, Progress, SettledCall, ToolResult
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.domain.verdict import Limit, Verdict

Sleep = Callable[[float], Awaitable[None]]
"""Waits for so many seconds: asyncio.sleep, but where a test says when the time is over."""


class Clock(Protocol):
    def monotonic_s(self) -> float:
        """Seconds on the loop clock: for deadlines and durations."""

    def unix_ms(self) -> int:
        """Milliseconds on the wall clock: for records."""


class Randomness(Protocol):
    def uniform(self, low: float, high: float) -> float: ...

    def token_hex(self, size_bytes: int) -> str: ...


class Resolver(Protocol):
    """DNS."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Addresses of a host, IPv4 or IPv6 literals without scope. Raises OSError when the name has none."""


class EventSink(Protocol):
    """Where an execution reports while it runs. Never blocks the execution."""

    def progress(self, progress: Progress) -> None: ...

    def chunk(self, chunk: Chunk) -> None: ...


# The route of a call keeps these, so that an adapter is not asked on every call what is always the same.
class FixedTerms(NamedTuple):
    """What an adapter says alike of all calls of one tool, in the place of its methods of those names."""

    has_side_effects: bool | None = None
    """None: it depends on the arguments."""
    upstream: str | None = None
    """None: the same."""


NOTHING_FIXED = FixedTerms()


class Adapter(Protocol):
    """Runs granted calls of one kind of tool."""

    @property
    def kind(self) -> ToolKind: ...

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        """Run the call before `call.deadline_s`. Raises ToolFailure; cancellation must stop the work."""

    def effects(self, call: GrantedCall) -> Sequence[str]:
        """What the call would do now, one sentence each; for plans. Raises ToolFailure when it would fail."""

    async def preconditions(self, planned: PlannedCall) -> Preconditions:
        """Where the call would work, and the state of what it would destroy there. An execution of a planned call that
        has preconditions refuses, as PLAN_REQUIRED, what has changed since. Never raises for a call that would fail."""

    def has_side_effects(self, planned: PlannedCall) -> bool:
        """Whether this very call may change something: a GET by a tool that can POST does not."""

    def upstream(self, planned: PlannedCall) -> str:
        """Key of the breaker and the concurrency limit that the call belongs to, such as `https://api.example.com`;
        the tool's own name where it has no upstream, and so no breaker."""

    def fixed_terms(self, spec: ToolSpec) -> FixedTerms:
        """What holds for every call of the tool while its definition stays; asked once, not for each call."""

    def resumes(self, spec: ToolSpec) -> bool:
        """Whether a job of this tool keeps a mark of its work on a remote side, to which another run re-attaches."""


# Asked for at run time: most adapters have no such tool, and no such method.
@runtime_checkable
class ForeseeingAdapter(Protocol):
    """An adapter of tools some of which must run something without effect to know what they would do."""

    async def foresee(self, call: GrantedCall) -> Sequence[str]:
        """What `Adapter.effects` tells of all others; for dry runs."""


class Catalog(Protocol):
    """The tools that exist now. Reads are in-memory and never wait."""

    @property
    def revision(self) -> str:
        """Changes whenever a tool is added, removed or changed."""

    @property
    def version(self) -> int:
        """Counts the changes in this process; cheap enough to be read on every call."""

    def get(self, name: str) -> ToolSpec | None: ...

    def all(self) -> Sequence[ToolSpec]:
        """Every tool, sorted by name."""

    def register(self, spec: ToolSpec, *, replace: bool = False) -> None:
        """Raises HubFailure ALREADY_EXISTS when the name is taken and `replace` is false."""

    def unregister(self, name: str) -> None:
        """Raises HubFailure NOT_FOUND."""


class PolicySource(Protocol):
    """The policy in force: a snapshot that a reload swaps as a whole."""

    @property
    def revision(self) -> str: ...

    @property
    def version(self) -> int:
        """Counts the changes in this process; cheap enough to be read on every call."""

    def settled(self, principal: Principal, spec: ToolSpec) -> Verdict | None:
        """What `decide` says, in this version, of every call of the tool by the principal in its own name and with its
        whole grant; None where that depends on the arguments or somebody has to watch each decision."""

    def decide(self, planned: PlannedCall) -> Verdict:
        """May this principal make this call with these arguments? Pure; never raises for a bad call."""

    def limits(self, principal: Principal, spec: ToolSpec) -> tuple[Limit, ...]:
        """What a call would be counted by, whatever its arguments are."""

    def could_allow(self, principal: Principal, spec: ToolSpec) -> bool:
        """Whether some call of the tool could be allowed: what lists and searches may show."""


class EventTail(Protocol):
    """A watch of the audit log: an async iterator to be closed when it is no longer read."""

    def __aiter__(self) -> AsyncIterator[ChainedEvent]: ...

    async def __anext__(self) -> ChainedEvent: ...

    def end(self) -> None:
        """Tell what is waiting, and then no more."""

    async def aclose(self) -> None: ...


class AuditLog(Protocol):
    """Append-only and hash-chained."""

    def append(self, event: Event) -> None:
        """Put the event next in the chain and write it soon (group commit). Raises ToolFailure IO_ERROR when broken."""

    async def append_durably(self, event: Event) -> None:
        """Return when the event, and all before it, are on disk."""

    async def ready(self) -> None:
        """Return when one more event can be taken, at once but where the log has fallen far behind: who comes then is
        slowed down. Raises ToolFailure IO_ERROR when broken."""

    async def read(
        self, where: EventFilter, *, after: tuple[int, str, int] | None, limit: int
    ) -> Sequence[ChainedEvent]:
        """Events in (at_unix_ms, writer, sequence) order, strictly after the cursor; at most `limit`."""

    def tail(self, where: EventFilter) -> EventTail:
        """New events as they become durable, until the iterator is closed."""

    async def verify(self) -> Verification: ...


class KeyStore(Protocol):
    """What is known under each idempotency key. Every change is one compare-and-set, whoever else shares the store.

    Each method raises ToolFailure when the store cannot be reached.
    """

    async def claim(self, key: EffectKey, record: KeyRecord, *, replacing: str = "") -> KeyRecord | None:
        """Put `record` (without a result) under the key. None when that was done, else the record that stands there.

        It is done when nothing stands there that has not expired, or when what stands there belongs to the owner
        `replacing` and has no result yet. Raises ToolFailure RATE_LIMITED when the store is full: a key that has not
        expired is never forgotten.
        """

    async def settle(self, key: EffectKey, owner: str, result: ToolResult, expires_at_unix_ms: int) -> bool:
        """Put the owner's answer under the key, once. False when the key is not, or no more, the owner's to settle."""

    async def release(self, key: EffectKey, owner: str) -> bool:
        """Forget the key, so that a later call may run. False when it is not the owner's or has been settled."""

    async def ended(self, key: EffectKey, owner: str, timeout_s: float) -> bool:
        """Wait until the owner's claim is settled, released, replaced or expired. False when it still stands then."""


class CallObserver(Protocol):
    """Metrics, traces and the error log: called with what happens to calls, never asked."""

    def executing(self, call: GrantedCall) -> AbstractContextManager[object]:
        """Wraps one execution: the `execute_tool` span is current inside."""

    def retried(self, call: GrantedCall, error: ToolError, attempt: int) -> None:
        """Attempt number `attempt` (from 1) failed and another one follows."""

    def crashed(self, call: Call, error: BaseException) -> None:
        """A defect: an exception that no step expected. The caller gets INTERNAL and the call id."""

    def unkept(self, call: Call, problem: ToolError) -> None:
        """What was to be remembered of a call that has ended could not be: a store is away."""

    def settled(self, settled: SettledCall) -> None:
        """The call has ended, refused calls too."""


class AccessObserver(Protocol):
    """The trace of who was turned away, and of who read the audit log."""

    def refused(self, peer: str, method: str, reason: str, *, principal: str = "", key_id: str = "") -> float:
        """An RPC was refused for its credential, or, where `principal` has a good one, for its role.

        `peer` is an address, `method` a path, `reason` that of ErrorInfo, `key_id` the public part of an API key.
        Returns for how many seconds the peer had better not come back; 0 unless it is refused over and over.
        """

    async def audit_read(
        self, principal: str, method: str, where: str, events: int, from_unix_ms: int = 0, to_unix_ms: int = 0
    ) -> None:
        """The principal is about to be shown so many events of what `where`, a filter without times, matches between
        two moments, of which 0 means an open end. Raises nothing."""


class Invoker(Protocol):
    """How skills, sub-agents and core/job.* reach the pipeline without importing it."""

    async def invoke(self, call: Call, sink: EventSink) -> ToolResult | Plan: ...


class InnerCalls(Protocol):
    """Calls made on behalf of one running call: by its principal, in its request, and with no more rights, time or
    calls than it has left itself. Each walks the nine steps; no approval of the running call covers it."""

    @property
    def depth(self) -> int:
        """How many calls stand above the running one: 0 where a caller made it."""

    async def offered(self, wanted: Callable[[ToolSpec], bool]) -> Sequence[ToolSpec]:
        """Of the wanted tools those that may be called, as far as that does not depend on arguments, by name."""

    def narrowed(self, tools: Iterable[str], max_calls: int) -> InnerCalls:
        """The same with these tools alone (full names), of which those that may not be called fall away, and at most so
        many calls. Raises ToolFailure BUDGET_EXCEEDED where calls are nested too deep."""

    def durable(self) -> InnerCalls:
        """The same with a memory where the running call is a job: each answer is kept before it is returned, in the
        order of the calls, and a later run of the job, on whichever hub, gets the kept ones without a second effect.
        Who uses it makes the same calls in the same order each time, or is told EXECUTION_ERROR; its tool declares
        `replays`. Where the running call is no job, or its tool does not declare it: the same handle.

        `invoke` then raises `Suspended`, too: the call waits for a person. A plan is not kept.
        """

    async def invoke(self, tool: str, args: JsonObject, *, purpose: str) -> ToolResult:
        """The answer, whatever it is; only cancellation is raised. What becomes a job is awaited, and cancelled where
        nobody waits for it any more."""

    async def plan(self, tool: str, args: JsonObject, *, purpose: str) -> Plan | ToolResult:
        """What the call would do now, which a person may still have to approve; or the refusal that it would end with.
        Counts as a call. Raises as `invoke`."""
