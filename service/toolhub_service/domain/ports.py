"""Ports: the interfaces of adapters, stores, clocks and observers. Each has a conformance suite in tests/ports/."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from toolhub_service.domain.call import Call, GrantedCall, PlannedCall, Preconditions, Principal
from toolhub_service.domain.errors.failure import ToolError
from toolhub_service.domain.event import ChainedEvent, Event, EventFilter, Verification
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.key import EffectKey, KeyRecord
from toolhub_service.domain.result import Chunk, Outcome, Plan, Progress, SettledCall, ToolResult
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.domain.verdict import Limit, Verdict

Sleep = Callable[[float], Awaitable[None]]
"""Waits for this many seconds: asyncio.sleep, except where a test controls the time."""


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
        """Return the addresses of a host, IPv4 or IPv6 literals without scope. Raises OSError when the name has
        none."""


class EventSink(Protocol):
    """Receives the events of a running execution. Never blocks it."""

    def progress(self, progress: Progress) -> None: ...

    def chunk(self, chunk: Chunk) -> None: ...


# The route of a call stores these, so that an adapter is not asked on every call for what is always the same.
class FixedTerms(NamedTuple):
    """An adapter's answers that hold for all calls of one tool, in place of its methods of those names."""

    has_side_effects: bool | None = None
    """None: it depends on the arguments."""
    upstream: str | None = None
    """None: it depends on the arguments."""


NOTHING_FIXED = FixedTerms()


class Adapter(Protocol):
    """Runs granted calls of one kind of tool."""

    @property
    def kind(self) -> ToolKind: ...

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        """Run the call before `call.deadline_s`. Raises ToolFailure; cancellation must stop the work."""

    def effects(self, call: GrantedCall) -> Sequence[str]:
        """Return what the call would do now, one sentence each; for plans. Raises ToolFailure when it would fail."""

    async def preconditions(self, planned: PlannedCall) -> Preconditions:
        """Return where the call would work, and the state of what it would destroy there. The execution of a planned
        call with preconditions is refused with PLAN_REQUIRED when that has changed since. Never raises for a call that
        would fail."""

    def has_side_effects(self, planned: PlannedCall) -> bool:
        """Return whether this very call may change something: a GET by a tool that can POST does not."""

    def upstream(self, planned: PlannedCall) -> str:
        """Return the key of the breaker and the concurrency limit, such as `https://api.example.com`; the tool's own
        name where it has no upstream, and so no breaker."""

    def fixed_terms(self, spec: ToolSpec) -> FixedTerms:
        """Return what holds for every call of the tool while its definition stays; called once, not for each call."""

    def resumes(self, spec: ToolSpec) -> bool:
        """Return whether a job of this tool stores a mark of its work on a remote side, to which another run
        re-attaches."""


# Checked at run time: most adapters have no such tool, and no such method.
@runtime_checkable
class ForeseeingAdapter(Protocol):
    """An adapter that must run something without effect to know what some of its tools would do."""

    async def foresee(self, call: GrantedCall) -> Sequence[str]:
        """Return what `Adapter.effects` returns for other tools; for dry runs."""


class Catalog(Protocol):
    """The current tools. Reads are in-memory and never wait."""

    @property
    def revision(self) -> str:
        """A value that changes whenever a tool is added, removed or changed."""

    @property
    def version(self) -> int:
        """Number of changes in this process; cheap enough to be read on every call."""

    def get(self, name: str) -> ToolSpec | None: ...

    def all(self) -> Sequence[ToolSpec]:
        """Return every tool, sorted by name."""

    def register(self, spec: ToolSpec, *, replace: bool = False) -> None:
        """Add a tool. Raises HubFailure ALREADY_EXISTS when the name is taken and `replace` is false."""

    def unregister(self, name: str) -> None:
        """Remove a tool. Raises HubFailure NOT_FOUND."""


class PolicySource(Protocol):
    """The policy in force: a snapshot that a reload swaps as a whole."""

    @property
    def revision(self) -> str: ...

    @property
    def version(self) -> int:
        """Number of changes in this process; cheap enough to be read on every call."""

    def decide_beforehand(self, principal: Principal, spec: ToolSpec) -> Verdict | None:
        """Return what `decide` returns, in this version, for every call of the tool by the principal in its own name
        and with its whole grant; None where that depends on the arguments or each decision must be observed."""

    def decide(self, planned: PlannedCall) -> Verdict:
        """Return whether the principal may make this call with these arguments. Pure; never raises for a bad call."""

    def limits(self, principal: Principal, spec: ToolSpec) -> tuple[Limit, ...]:
        """Return the limits of a call, whatever its arguments are."""

    def could_allow(self, principal: Principal, spec: ToolSpec) -> bool:
        """Return whether some call of the tool could be allowed: lists and searches may show it."""

    def could_require_plan(self, principal: Principal, spec: ToolSpec) -> bool:
        """Return whether some call of the tool could need a plan: its definition then says how to send one."""


class EventTail(Protocol):
    """A watch of the audit log: an async iterator that must be closed when it is no longer read."""

    def __aiter__(self) -> AsyncIterator[ChainedEvent]: ...

    async def __anext__(self) -> ChainedEvent: ...

    def end(self) -> None:
        """End the iteration after the events that are waiting."""

    async def aclose(self) -> None: ...


class AuditLog(Protocol):
    """Append-only and hash-chained."""

    def append(self, event: Event) -> None:
        """Add the event to the chain and write it soon (group commit). Raises ToolFailure IO_ERROR when broken."""

    async def append_durably(self, event: Event) -> None:
        """Return when the event, and all before it, are on disk."""

    async def ready(self) -> None:
        """Return when one more event can be accepted: at once, unless the log has fallen far behind, which slows
        callers down. Raises ToolFailure IO_ERROR when broken."""

    async def read(
        self, where: EventFilter, *, after: tuple[int, str, int] | None, limit: int
    ) -> Sequence[ChainedEvent]:
        """Yield events in (at_unix_ms, writer, sequence) order, strictly after the cursor; at most `limit`."""

    def tail(self, where: EventFilter) -> EventTail:
        """Return new events as they become durable, until the iterator is closed."""

    async def verify(self) -> Verification: ...


class KeyStore(Protocol):
    """The record of each idempotency key. Every change is one compare-and-set, in a store that others may share.

    Each method raises ToolFailure when the store cannot be reached.
    """

    async def claim(self, key: EffectKey, record: KeyRecord, *, replacing: str = "") -> KeyRecord | None:
        """Store `record` (without a result) under the key. Return None when that was done, else the existing record.

        It is stored when there is no unexpired record, or when the existing one belongs to the owner `replacing` and
        has no result yet. Raises ToolFailure RATE_LIMITED when the store is full: an unexpired key is never deleted.
        """

    async def settle(self, key: EffectKey, owner: str, result: ToolResult, expires_at_unix_ms: int) -> bool:
        """Store the owner's answer under the key, once. Return False when the owner does not hold the key, or no
        longer."""

    async def release(self, key: EffectKey, owner: str) -> bool:
        """Delete the key, so that a later call may run. Return False when it is not the owner's or has been settled."""

    async def wait_for_end(self, key: EffectKey, owner: str, timeout_s: float) -> bool:
        """Wait until the owner's claim is settled, released, replaced or expired. Return False when it still exists
        after the wait."""


class SharedKeys(Protocol):
    """Keys that all hubs of one store seal with, so that each takes what another has sealed."""

    async def agree(self, name: str, own: bytes) -> bytes:
        """Return the key of that name; `own` becomes it, durably, where the store has none.

        Raises ToolFailure TOOL_UNAVAILABLE.
        """


class CallObserver(Protocol):
    """Metrics, traces and the error log: notified of what happens to calls; cannot influence them."""

    def executing(self, call: GrantedCall) -> AbstractContextManager[object]:
        """Wrap one execution; in the body the `execute_tool` span is current."""

    def on_retry(self, call: GrantedCall, error: ToolError, attempt: int) -> None:
        """Attempt number `attempt` (from 1) failed and another one follows."""

    def on_crash(self, call: Call, error: BaseException) -> None:
        """A defect: an unexpected exception of a step. The caller gets INTERNAL and the call id."""

    def on_unkept_result(self, call: Call, problem: ToolError) -> None:
        """A record about a call that has ended could not be written: a store is unreachable."""

    def on_settled_call(self, settled: SettledCall) -> None:
        """The call has ended; called for refused calls, too."""


class AccessObserver(Protocol):
    """The trace of refused access, and of who read the audit log."""

    def count_refusal(self, peer: str, method: str, reason: str, *, principal: str = "", key_id: str = "") -> float:
        """An RPC was refused for its credential, or for its role where `principal` has a valid credential.

        `peer` is an address, `method` a path, `reason` that of ErrorInfo, `key_id` the public part of an API key.
        Return the seconds that the peer should wait before it retries; 0 unless it is refused repeatedly.
        """

    async def audit_read(
        self, principal: str, method: str, where: str, events: int, from_unix_ms: int = 0, to_unix_ms: int = 0
    ) -> None:
        """The principal is about to be shown this many events that match `where`, a filter without times, between two
        times, of which 0 means an open end. Raises nothing."""


class Invoker(Protocol):
    """Gives skills, sub-agents and core/job.* access to the pipeline without importing it."""

    async def invoke(self, call: Call, sink: EventSink) -> ToolResult | Plan: ...


class InnerCalls(Protocol):
    """Calls made on behalf of one running call: by its principal, in its request, and with no more rights, time or
    calls than it has left itself. Each passes the nine steps; no approval of the running call covers it."""

    @property
    def depth(self) -> int:
        """Number of calls above the running one: 0 where a caller made it."""

    async def offered_tools(self, wanted: Callable[[ToolSpec], bool]) -> Sequence[ToolSpec]:
        """Return those of the wanted tools that may be called, as far as that does not depend on arguments, by name."""

    def restrict_to(self, tools: Iterable[str], max_calls: int) -> InnerCalls:
        """Return the same restricted to these tools (full names), without those that may not be called, and to at most
        this many calls. Raises ToolFailure BUDGET_EXCEEDED where calls are nested too deep."""

    def durable(self) -> InnerCalls:
        """Return the same with a log where the running call is a job: each answer is stored before it is returned, in
        the order of the calls, and a later run of the job, on any hub, gets the stored ones without a second effect.
        The tool must declare `replays` and make the same calls in the same order each time; otherwise it gets
        EXECUTION_ERROR. Where the running call is not a job, or its tool does not declare it: the same handle.

        `invoke` then also raises `Suspended` when the call waits for a person. A plan is not stored.
        """

    async def invoke(self, tool: str, args: JsonObject, *, purpose: str) -> ToolResult:
        """Return the answer, whatever it is; only cancellation is raised. A call that becomes a job is awaited, and
        cancelled where nobody waits for it any more."""

    async def plan(self, tool: str, args: JsonObject, *, purpose: str) -> Plan | ToolResult:
        """Return what the call would do now, which a person may still have to approve; or the refusal that it would end
        with. Counts as a call. Raises as `invoke`."""
