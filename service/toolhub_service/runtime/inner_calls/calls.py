"""Calls that a running call makes, for example those of a sub-agent.

A tool gets an `InnerCalls` from its context and cannot widen it. What an inner call may do is decided here and in
step 4, never by the tool that makes it:

    principal, user, agent, request    the running call's
    permissions                        the running call's own, as far as it had any
    tools                              those it was narrowed to, by full name; anything else is POLICY_DENIED
    deadline                           the running call's, and the tool's own timeout
    calls, bytes of answers            taken from what the running call and all above it have left, for good; calls also
                                       from those of the request where its caller bounds them
    approvals, plans                   none: what needs one asks, or is refused
    depth                              one more, DEPTH_MAX at most, however a tool calls itself through others
    cycles                             none: no call above it may be of the same tool with the same arguments

Usage by calls that run as jobs in another process is not counted here: such a job has a share of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from toolhub_service.aio.cooperative import TimeSlice
from toolhub_service.aio.waits import shield_until_done
from toolhub_service.budget.quota import refuse_used_up_request
from toolhub_service.domain.call import INNER_BYTES_MAX, BudgetRequest, Call, GrantedCall, Lineage, Mode
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolError, ToolFailure, refuse
from toolhub_service.domain.job import Job, JobStatus
from toolhub_service.domain.job_ports import JobService
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import Catalog, Clock, InnerCalls, Invoker, PolicySource, Randomness
from toolhub_service.domain.result import SILENT, JobRef, Plan, ToolResult
from toolhub_service.domain.tool import ToolSpec, ToolState, canonical_capabilities
from toolhub_service.guards.foreign_text import on_one_line
from toolhub_service.policy.holdings import Holdings
from toolhub_service.schema.canonical_json import digest, dumps

DEPTH_MAX: Final = 4
"""Depth and number of inner calls: far more than a tool needs, and an end for tools that call one another forever."""
CALLS_MAX: Final = 1_000
"""Limit for one running call and all calls that it causes, whatever it was narrowed to."""

_LEAVING_POLL_S: Final = 0.2
_REFERENCE: Final = "$artifact"


@dataclass(slots=True, weakref_slot=True, eq=False)
class Account:
    """What the calls of a running call may use; usage counts against all accounts above as well."""

    calls: int
    bytes: int
    above: Account | None = None
    used_calls: int = 0
    used_bytes: int = 0
    ancestors: tuple[tuple[str, str], ...] = ()
    """As `Lineage.ancestors` of the calls that use this account; empty until the first one."""

    @property
    def calls_left(self) -> int:
        return max(0, min(each.calls - each.used_calls for each in self._all()))

    @property
    def bytes_left(self) -> int:
        return max(0, min(each.bytes - each.used_bytes for each in self._all()))

    def take(self, *, calls: int = 0, bytes: int = 0) -> None:
        for each in self._all():
            each.used_calls += calls
            each.used_bytes += bytes

    def _all(self) -> Iterator[Account]:
        each: Account | None = self
        while each is not None:
            yield each
            each = each.above


class InnerCallDeps(msgspec.Struct, frozen=True):
    """What all inner calls of a hub have in common."""

    invoker: Invoker
    catalog: Catalog
    policy: PolicySource
    jobs: JobService
    follow: Callable[[Job, int], AsyncGenerator[JobStatus, None]]
    """Follows a job's history from a sequence to its end."""
    parked: Callable[[str], AbstractAsyncContextManager[None]]
    """As `JobEngine.park`."""
    clock: Clock
    randomness: Randomness
    durable: Callable[[CallsWithin], InnerCalls]
    """Makes the `InnerCalls` of a job whose tool replays."""
    accounts: WeakValueDictionary[str, Account] = msgspec.field(default_factory=WeakValueDictionary)
    """Accounts by inner call: the one that it counts against, and that the calls it makes count against in turn."""

    def of(self, running: GrantedCall) -> InnerCalls:
        """Return an `InnerCalls` with everything that the running call may do itself, to be narrowed. Call it once per
        running call."""
        lineage = running.call.lineage
        if lineage is None:
            account = Account(CALLS_MAX, INNER_BYTES_MAX)
        else:
            above = self.accounts.get(running.call.call_id)
            account = Account(lineage.calls_left, lineage.bytes_left, above)
        return CallsWithin(self, running, None if lineage is None else lineage.tools, account)


class CallsWithin:
    """Implements `InnerCalls`."""

    def __init__(
        self,
        deps: InnerCallDeps,
        running: GrantedCall,
        tools: frozenset[str] | None,
        account: Account,
        root: Account | None = None,
    ) -> None:
        """`tools` of None means all that the principal may call. `root` is the account that this one was narrowed
        from."""
        self.deps = deps
        self.running = running
        self._tools = tools
        self._account = account
        self.root = root or account
        """The same for all handles of one running call."""
        permissions = running.call.context.permissions
        self._held = None if permissions is None else Holdings(permissions)

    @property
    def depth(self) -> int:
        lineage = self.running.call.lineage
        return 0 if lineage is None else lineage.depth

    @property
    def job_id(self) -> str:
        """Job that the running call belongs to; empty when there is none."""
        call = self.running.call
        return call.job_id or ("" if call.lineage is None else call.lineage.job_id)

    async def offered_tools(self, wanted: Callable[[ToolSpec], bool]) -> Sequence[ToolSpec]:
        found, time_slice = [], TimeSlice()
        for spec in self.deps.catalog.all():
            if wanted(spec) and self._may_call(spec):
                found.append(spec)
            await time_slice.pause_if_due()
        return found

    def restrict_to(self, tools: Iterable[str], max_calls: int) -> CallsWithin:
        if self.depth >= DEPTH_MAX:
            raise ToolFailure(_too_deep())
        specs = map(self.deps.catalog.get, tools)
        held = frozenset(spec.name for spec in specs if spec is not None and self._may_call(spec))
        left = self._account
        account = Account(min(max_calls, left.calls_left), left.bytes_left, left)
        return CallsWithin(self.deps, self.running, held, account, self.root)

    def durable(self) -> InnerCalls:
        if not self.running.call.job_id or not self.running.spec.replays:
            return self
        return self.deps.durable(self)

    async def invoke(self, tool: str, args: JsonObject, *, purpose: str) -> ToolResult:
        call = self.call(tool, args, purpose)
        if (refusal := self.account_for_call(call)) is not None:
            return refuse_inner_call(call, refusal)
        result = await self.deps.invoker.invoke(call, SILENT)
        assert isinstance(result, ToolResult)  # a plan answers a dry run only
        if result.job is not None:
            result = await self.wait_for_job(result, result.job, stops=lambda: True)
        return self.account_for_answer(call, result)

    async def plan(self, tool: str, args: JsonObject, *, purpose: str) -> Plan | ToolResult:
        call = self.call(tool, args, purpose)._replace(mode=Mode.DRY_RUN)
        if (refusal := self.account_for_call(call)) is not None:
            return refuse_inner_call(call, refusal)
        plan = await self.deps.invoker.invoke(call, SILENT)
        assert isinstance(plan, Plan)
        error = None if plan.plan_digest else plan.steps[-1].error
        return plan if error is None else refuse_inner_call(call, error)

    def account_for_call(self, call: Call) -> ToolError | None:
        """Return why the call may not be made; None when it may, and then it is counted."""
        account = self._account
        if self.depth >= DEPTH_MAX:
            return _too_deep()
        if not account.calls_left:
            return refuse_used_up_request(account.calls, account.used_calls).error
        if not account.bytes_left:
            return _no_bytes(account, f"{account.bytes} bytes of answers have been read")
        account.take(calls=1)
        self.deps.accounts[call.call_id] = account
        assert call.lineage is not None  # every inner call has one
        above = [ancestor for ancestor in call.lineage.ancestors if ancestor[0] == call.tool]
        return _cycle(call) if above and (call.tool, digest(call.args)) in above else None

    def account_for_answer(self, call: Call, result: ToolResult) -> ToolResult:
        """Return the answer if its bytes are still allowed, else a refusal."""
        size_bytes = 0 if result.value is None else len(dumps(result.value))
        account, left = self._account, self._account.bytes_left
        account.take(bytes=min(size_bytes, left))
        if size_bytes <= left:
            return result
        what = f"the call was made, and its answer is {size_bytes} bytes, where {left} are left"
        return refuse_inner_call(call, _no_bytes(account, what))

    def read(self, result: ToolResult) -> None:
        """Count an answer again that an earlier run has read."""
        self._account.take(bytes=0 if result.value is None else len(dumps(result.value)))

    def _may_call(self, spec: ToolSpec) -> bool:
        call = self.running.call
        if spec.state is not ToolState.ACTIVE or (self._tools is not None and spec.name not in self._tools):
            return False
        if self._held is not None and self._held.lack(canonical_capabilities(spec.capabilities)):
            return False
        return self.deps.policy.could_allow(call.principal, spec)

    def call(self, tool: str, args: JsonObject, purpose: str) -> Call:
        """Return the call as it would be made now, without counting it."""
        running, deps, account = self.running.call, self.deps, self._account
        lineage = Lineage(
            parent_call_id=running.call_id,
            root_call_id=running.call_id if running.lineage is None else running.lineage.root_call_id,
            depth=self.depth + 1,
            tools=frozenset() if self._tools is None else self._tools,
            calls_left=max(0, account.calls_left - 1),
            bytes_left=account.bytes_left,
            ancestors=self._ancestors(),
            job_id=self.job_id,
        )
        left_s = max(0.0, self.running.deadline_s - deps.clock.monotonic_s())
        spec = deps.catalog.get(tool)
        own_s = left_s if spec is None or spec.cost.is_async else min(left_s, spec.limits.timeout_s)
        asked = running.context.budget
        budget = BudgetRequest(timeout_s=own_s, max_retries=asked.max_retries, max_tool_calls=asked.max_tool_calls)
        return Call(
            call_id=f"call_{deps.clock.unix_ms():012x}{deps.randomness.token_hex(8)}",
            tool=tool if spec else on_one_line(tool),
            args=args,
            principal=running.principal,
            context=running.context._replace(budget=budget),
            purpose=purpose,
            deadline_s=self.running.deadline_s,
            names_artifacts=_names_artifacts(args),
            lineage=lineage,
        )

    def _ancestors(self) -> tuple[tuple[str, str], ...]:
        if not self.root.ancestors:  # arguments may be a whole program: their digest is made once
            lineage = self.running.call.lineage
            own = (self.running.spec.name, digest(self.running.call.args))
            self.root.ancestors = (own,) if lineage is None else (*lineage.ancestors, own)
        return self.root.ancestors

    async def wait_for_job(self, accepted: ToolResult, ref: JobRef, *, stops: Callable[[], bool]) -> ToolResult:
        """Return the result of the job that the call has become. `stops` says whether to cancel the job when nobody
        waits for it any more. While waiting, the running call's own job frees its place for others."""
        is_over = False
        try:
            async with self.deps.parked(self.job_id), asyncio.timeout_at(self.running.deadline_s):
                result = await self._result_of(ref.job_id)
            is_over = True
            return result
        except TimeoutError:
            message = f"Job {ref.job_id} of {accepted.tool} was not over in time, and was asked to stop."
            return accepted._replace(ok=False, error=ToolError(ErrorKind.TIMEOUT, message, retryable=False))
        except ToolFailure as lost:
            return accepted._replace(ok=False, error=lost.error)
        finally:
            if not is_over and stops():
                await shield_until_done(self._stop(ref.job_id))

    async def _result_of(self, job_id: str) -> ToolResult:
        """Return the job's result once it has ended."""
        principal, jobs = self.running.call.principal, self.deps.jobs
        with suppress(HubFailure):  # this process shuts down and ends watches; its jobs still have their grace period
            async with aclosing(self.deps.follow(await jobs.get(principal, job_id), 0)) as history:
                async for status in history:
                    if status.result is not None:
                        return status.result
        while (result := (await jobs.get(principal, job_id)).status.result) is None:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(_LEAVING_POLL_S)
        return result

    async def _stop(self, job_id: str) -> None:
        try:
            why = "The call that made it has ended."
            await self.deps.jobs.cancel(self.running.call.principal, job_id, why)
        except ToolFailure:
            return  # the job's own deadline, no later than that of the call, ends it


def _names_artifacts(value: JsonValue) -> bool:
    """Return whether the arguments may contain a reference to an artifact."""
    if isinstance(value, dict):
        return _REFERENCE in value or any(map(_names_artifacts, value.values()))
    return isinstance(value, list) and any(map(_names_artifacts, value))


def refuse_inner_call(call: Call, error: ToolError) -> ToolResult:
    """Return the answer to a call that was not made, or whose answer is withheld."""
    return ToolResult(ok=False, call_id=call.call_id, tool=call.tool, error=error, request_id=call.context.request_id)


def _too_deep() -> ToolError:
    message = f"Calls are nested {DEPTH_MAX} deep already. Do the work here, without another call in between."
    return refuse(ErrorKind.BUDGET_EXCEEDED, message).error


def _cycle(call: Call) -> ToolError:
    assert call.lineage is not None
    chain = " > ".join([*(tool for tool, _ in call.lineage.ancestors), call.tool])
    message = f"{chain}: the call comes back to itself with the same arguments. Call it with others, or not at all."
    return refuse(ErrorKind.BUDGET_EXCEEDED, message).error


def _no_bytes(account: Account, what: str) -> ToolError:
    message = f"{what[0].upper()}{what[1:]}. Ask for less at once, or have large results kept as artifacts."
    return refuse(ErrorKind.BUDGET_EXCEEDED, message, quota_bytes=account.bytes, used_bytes=account.used_bytes).error
