"""The walk of a call through the nine steps. Read this first.

    1 resolve          which tool, is it callable?             resolve.py
    2 validate_input   do the arguments fit?                   validate_input.py
    3 apply_defaults   what was left out?                      apply_defaults.py
    4 check_policy     may this agent do this?                 check_policy.py
    5 take_budget      is there time, rate, a slot, quota?     take_budget.py (before it, once per key: idempotency.py)
    6 execute          run the adapter, with its retries       execute.py
    7 validate_output  does the result fit?                    validate_output.py
    8 attach_evidence  what proves it?                         attach_evidence.py
    9 record           always: audit, metrics, trace           record.py

`Call` becomes `PlannedCall` becomes `GrantedCall`; an adapter accepts nothing but the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolhub_service.budget.lease import Lease
from toolhub_service.budget.ledger import Budgets
from toolhub_service.domain.call import Call, Mode
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.plan import Plan
from toolhub_service.domain.ports import Adapter, CallObserver, Catalog, Clock, EventSink, PolicySource
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.step import StepName
from toolhub_service.domain.tool import IdempotencyMode, ToolKind
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.apply_defaults import apply_defaults
from toolhub_service.runtime.attach_evidence import attach_evidence, attach_refusal
from toolhub_service.runtime.check_policy import check_policy, enforce
from toolhub_service.runtime.execute import Executor
from toolhub_service.runtime.failures import cancelled, crash
from toolhub_service.runtime.idempotency import Idempotency
from toolhub_service.runtime.plans import Plans
from toolhub_service.runtime.record import Recorder
from toolhub_service.runtime.redact import redact_error, redact_plan
from toolhub_service.runtime.resolve import resolve
from toolhub_service.runtime.sinks import SILENT
from toolhub_service.runtime.take_budget import take_budget
from toolhub_service.runtime.validate_input import validate_input
from toolhub_service.runtime.validate_output import validate_output
from toolhub_service.runtime.walk import Walk
from toolhub_service.schema.tool_schemas import for_tool


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Everything a call meets on its way, and the order in which it meets it."""

    catalog: Catalog
    adapters: Mapping[ToolKind, Adapter]
    policy: PolicySource
    plans: Plans
    keys: Idempotency
    budgets: Budgets
    executor: Executor
    recorder: Recorder
    observer: CallObserver
    clock: Clock
    redactor: Redactor
    show_raw: bool = False
    """Whether results carry the upstream's own answer."""

    async def invoke(self, call: Call, sink: EventSink = SILENT) -> ToolResult | Plan:
        """Answer a call: always a ToolResult, or a Plan when it is a dry run. Only cancellation is raised."""
        walk, lease, claim, answer = Walk(call), None, None, None
        try:
            walk.enter(StepName.RESOLVE)
            walk.spec = spec = resolve(call, self.catalog, self.policy)
            adapter, schemas = self.adapters[spec.kind], for_tool(spec)

            walk.enter(StepName.VALIDATE_INPUT)
            validate_input(call, spec, schemas)

            walk.enter(StepName.APPLY_DEFAULTS)
            walk.planned = planned = apply_defaults(call, spec, schemas)

            walk.enter(StepName.CHECK_POLICY)
            walk.verdict = verdict = check_policy(planned, self.policy, self.plans)
            enforce(planned, verdict)

            walk.enter(StepName.TAKE_BUDGET)
            if call.idempotency_key or spec.idempotency is IdempotencyMode.DERIVED:
                claim, stored = await self.keys.claim(walk, adapter)
                if stored is not None:
                    return self._record(walk, lease, stored)
            granted, lease = await take_budget(planned, verdict, adapter, self.budgets, claim)
            if call.mode is Mode.DRY_RUN:
                walk.enter(StepName.EXECUTE)
                return self._show(walk, lease, adapter.effects(granted))
            await self.recorder.ask(walk, granted)

            walk.enter(StepName.EXECUTE)
            outcome = await self.executor.execute(walk, granted, lease, adapter, sink)

            walk.enter(StepName.VALIDATE_OUTPUT)
            validate_output(spec, outcome, schemas)

            walk.enter(StepName.ATTACH_EVIDENCE)
            result = attach_evidence(walk, outcome, self.clock.unix_ms(), self.redactor, show_raw=self.show_raw)
        except asyncio.CancelledError:
            self._refuse(walk, lease, cancelled())
            raise
        except Exception as failure:  # noqa: BLE001 - the top of the walk: what no step foresaw is answered too
            answer = self._fail(walk, lease, failure)
        else:
            answer = self._record(walk, lease, result)
        finally:
            if claim is not None:
                await self.keys.end(claim, walk, answer)
        return answer

    def _fail(self, walk: Walk, lease: Lease | None, failure: Exception) -> ToolResult | Plan:
        """The answer to a call that a step refused or broke: a defect is logged whole and told without its text."""
        error = failure.error if isinstance(failure, ToolFailure) else crash(walk.call.call_id)
        if error.kind is ErrorKind.INTERNAL:
            self.observer.crashed(walk.call, failure)
        return self._refuse(walk, lease, error)

    def _refuse(self, walk: Walk, lease: Lease | None, error: ToolError) -> ToolResult | Plan:
        """The answer to a call that stopped at `walk.step`."""
        error = redact_error(error, self.redactor)
        if walk.call.mode is Mode.DRY_RUN:
            return self._show(walk, lease, (), error)
        return self._record(walk, lease, attach_refusal(walk, error, self.clock.unix_ms()))

    def _record(self, walk: Walk, lease: Lease | None, result: ToolResult) -> ToolResult:
        """Step 9, and the end of the lease."""
        if lease is not None:
            lease.release(result.error)
        walk.enter(StepName.RECORD)
        self.recorder.settle(walk, result)
        return result

    def _show(self, walk: Walk, lease: Lease | None, effects: Sequence[str], error: ToolError | None = None) -> Plan:
        """The end of a dry run: what was taken is given back, and the plan is recorded like any call."""
        if lease is not None:
            lease.refund()
        plan = redact_plan(self.plans.show(walk, effects, error), self.redactor)
        self.recorder.settle_plan(walk, error)
        return plan
