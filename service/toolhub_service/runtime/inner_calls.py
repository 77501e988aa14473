"""Calls that a running call makes: sub-agents now, whoever runs something for a model later.

A tool is handed an `InnerCalls` by its context and cannot widen it. What an inner call may do is settled here and in
step 4, never by the one who asks for it:

    principal, user, agent, request    the running call's
    permissions                        the running call's own, as far as it had any
    tools                              those it was narrowed to, by full name; anything else is POLICY_DENIED
    deadline                           the running call's, and the tool's own timeout
    calls                              counted here, and with all others of the request where its caller bounds them
    approvals, plans                   none: what needs one asks, or is refused
    depth                              one more, DEPTH_MAX at most, however a tool calls itself through others
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from toolhub_service.budget.limits import all_used
from toolhub_service.domain.call import BudgetRequest, Call, GrantedCall, Lineage, Mode
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.job import Job, JobStatus
from toolhub_service.domain.job_ports import JobService
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import Catalog, Clock, InnerCalls, Invoker, PolicySource, Randomness
from toolhub_service.domain.result import JobRef, Plan, ToolResult
from toolhub_service.domain.tool import ToolSpec, ToolState, canonical_capabilities
from toolhub_service.policy.table import Holdings
from toolhub_service.registry.cooperative import TimeSlice
from toolhub_service.runtime.steps import SILENT, to_its_end

DEPTH_MAX: Final = 4
"""Calls within calls: far more than anybody needs, and an end for tools that call one another for ever."""
CALLS_MAX: Final = 1_000
"""Of one running call, whatever it was narrowed to."""

_REFERENCE: Final = "$artifact"


@dataclass(frozen=True, slots=True)
class InnerCallDeps:
    """What all inner calls of a hub have in common."""

    invoker: Invoker
    catalog: Catalog
    policy: PolicySource
    jobs: JobService
    follow: Callable[[Job, int], AsyncGenerator[JobStatus, None]]
    """A job's history from a place on, to its end."""
    clock: Clock
    randomness: Randomness

    def of(self, running: GrantedCall) -> InnerCalls:
        """Everything that the running call may do itself; to be narrowed."""
        lineage = running.call.lineage
        left = CALLS_MAX if lineage is None else lineage.calls_left
        return CallsWithin(self, running, None if lineage is None else lineage.tools, left)


class CallsWithin:
    """Implements `InnerCalls`."""

    def __init__(self, deps: InnerCallDeps, running: GrantedCall, tools: frozenset[str] | None, max_calls: int) -> None:
        """`tools`: None: all that the principal may call."""
        self._deps = deps
        self._running = running
        self._tools = tools
        self._max_calls = max_calls
        self._used = 0
        permissions = running.call.context.permissions
        self._held = None if permissions is None else Holdings(permissions)

    @property
    def depth(self) -> int:
        lineage = self._running.call.lineage
        return 0 if lineage is None else lineage.depth

    async def offered(self, wanted: Callable[[ToolSpec], bool]) -> Sequence[ToolSpec]:
        found, time_slice = [], TimeSlice()
        for spec in self._deps.catalog.all():
            if wanted(spec) and self._may_call(spec):
                found.append(spec)
            await time_slice.pause_if_due()
        return found

    def narrowed(self, tools: Iterable[str], max_calls: int) -> CallsWithin:
        if self.depth >= DEPTH_MAX:
            message = f"Calls are nested {DEPTH_MAX} deep already. Do the work here, without another call in between."
            raise refuse(ErrorKind.BUDGET_EXCEEDED, message)
        specs = map(self._deps.catalog.get, tools)
        held = frozenset(spec.name for spec in specs if spec is not None and self._may_call(spec))
        return CallsWithin(self._deps, self._running, held, min(max_calls, self._max_calls - self._used))

    def durable(self) -> CallsWithin:
        return self

    async def invoke(self, tool: str, args: JsonObject, *, purpose: str) -> ToolResult:
        call = self._call(tool, args, purpose)
        if (refused := self._taken(call)) is not None:
            return refused
        result = await self._deps.invoker.invoke(call, SILENT)
        assert isinstance(result, ToolResult)  # a plan answers a dry run only
        return result if result.job is None else await self._ended(result, result.job)

    async def plan(self, tool: str, args: JsonObject, *, purpose: str) -> Plan | ToolResult:
        call = self._call(tool, args, purpose)._replace(mode=Mode.DRY_RUN)
        if (refused := self._taken(call)) is not None:
            return refused
        plan = await self._deps.invoker.invoke(call, SILENT)
        assert isinstance(plan, Plan)
        error = None if plan.plan_digest else plan.steps[-1].error
        return plan if error is None else _refused(call, error)

    def _taken(self, call: Call) -> ToolResult | None:
        """The refusal of a call for which nothing is left; None when it has been counted."""
        if self._used >= self._max_calls:
            return _refused(call, all_used(self._max_calls, self._used).error)
        self._used += 1
        return None

    def _may_call(self, spec: ToolSpec) -> bool:
        call = self._running.call
        if spec.state is not ToolState.ACTIVE or (self._tools is not None and spec.name not in self._tools):
            return False
        if self._held is not None and self._held.lack(canonical_capabilities(spec.capabilities)):
            return False
        return self._deps.policy.could_allow(call.principal.id, spec)

    def _call(self, tool: str, args: JsonObject, purpose: str) -> Call:
        running, deps = self._running.call, self._deps
        lineage = Lineage(
            parent_call_id=running.call_id,
            root_call_id=running.call_id if running.lineage is None else running.lineage.root_call_id,
            depth=self.depth + 1,
            tools=frozenset() if self._tools is None else self._tools,
            calls_left=max(0, self._max_calls - self._used - 1),
        )
        left_s = max(0.0, self._running.deadline_s - deps.clock.monotonic_s())
        spec = deps.catalog.get(tool)
        own_s = left_s if spec is None or spec.cost.is_async else min(left_s, spec.limits.timeout_s)
        asked = running.context.budget
        budget = BudgetRequest(timeout_s=own_s, max_retries=asked.max_retries, max_tool_calls=asked.max_tool_calls)
        return Call(
            call_id=f"call_{deps.clock.unix_ms():012x}{deps.randomness.token_hex(8)}",
            tool=tool,
            args=args,
            principal=running.principal,
            context=running.context._replace(budget=budget),
            purpose=purpose,
            deadline_s=self._running.deadline_s,
            names_artifacts=_names_artifacts(args),
            lineage=lineage,
        )

    async def _ended(self, accepted: ToolResult, ref: JobRef) -> ToolResult:
        """What became of a job that the call has become."""
        principal, jobs = self._running.call.principal, self._deps.jobs
        is_over = False
        try:
            async with asyncio.timeout_at(self._running.deadline_s):
                async with aclosing(self._deps.follow(await jobs.get(principal, ref.job_id), 0)) as history:
                    async for status in history:
                        if status.result is not None:
                            is_over = True
                            return status.result
            return accepted
        except TimeoutError:
            message = f"Job {ref.job_id} of {accepted.tool} was not over in time, and was asked to stop."
            return accepted._replace(ok=False, error=ToolError(ErrorKind.TIMEOUT, message, retryable=False))
        except ToolFailure as lost:
            return accepted._replace(ok=False, error=lost.error)
        finally:
            if not is_over:
                await to_its_end(self._stop(ref.job_id))

    async def _stop(self, job_id: str) -> None:
        try:
            why = "The call that made it has ended."
            await self._deps.jobs.cancel(self._running.call.principal, job_id, why)
        except ToolFailure:
            return  # its own deadline, which is no later than that of the call, ends it


def _names_artifacts(value: JsonValue) -> bool:
    """Whether a reference to an artifact may be among the arguments."""
    if isinstance(value, dict):
        return _REFERENCE in value or any(map(_names_artifacts, value.values()))
    return isinstance(value, list) and any(map(_names_artifacts, value))


def _refused(call: Call, error: ToolError) -> ToolResult:
    return ToolResult(ok=False, call_id=call.call_id, tool=call.tool, error=error, request_id=call.context.request_id)
