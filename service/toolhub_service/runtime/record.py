"""Step 9: always. Two audit events a call (asked, settled), then metrics and traces.

The *asked* event of a side effect is on disk before the effect: `ask` waits for it, and a call whose record
cannot be written is refused. Reads do not wait (group commit) but where the log has fallen far behind: a call that
waits for it slows its caller down, a full log would refuse the next. What happens after the effect cannot be refused
any more: a log that breaks then costs its event, which the observer is told of, and never the caller's answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import ToolError, ToolFailure
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.ports import AuditLog, CallObserver, Clock
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.settled import SettledCall
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.failures import POLICY_KINDS
from toolhub_service.runtime.summary import NO_RESULT, ResultSummary, summarise_for_log, summarise_large
from toolhub_service.runtime.walk import Walk
from toolhub_service.schema.canonical_json import dumps


class Recorder:
    """Writes what happened to the audit log and tells the observer."""

    def __init__(
        self,
        audit: AuditLog,
        observer: CallObserver,
        clock: Clock,
        redactor: Redactor,
        *,
        is_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_behind` says whether the log has more to write than it should."""
        self._audit = audit
        self._observer = observer
        self._clock = clock
        self._redactor = redactor
        self._is_behind = is_behind

    async def ask(self, walk: Walk, granted: GrantedCall) -> None:
        """Record that the call is about to run. Raises ToolFailure IO_ERROR when a side effect cannot be recorded."""
        event = self._event(EventType.TOOL_CALLED, walk)
        try:
            if granted.has_side_effects or self._is_behind():
                await self._audit.append_durably(event)
            else:
                self._audit.append(event)
        except asyncio.CancelledError:
            walk.is_recorded = True  # the event is chained; only the wait for the disk was cut short
            raise
        walk.is_recorded = True

    def retried(self, granted: GrantedCall, walk: Walk, error: ToolError, attempt: int) -> None:
        """Record that an attempt failed and another follows."""
        self._observer.retried(granted, error, attempt)
        attributes = {"attempt": str(attempt)}
        self._append(walk, self._event(EventType.RETRY, walk, outcome=error.kind.value, attributes=attributes))

    def settle(self, walk: Walk, result: ToolResult) -> None:
        """Record the answer, whatever it is. Never raises for a broken log."""
        duration_ns = walk.elapsed_ns()
        if not walk.is_recorded:
            self._append(walk, self._event(EventType.TOOL_CALLED, walk))
        self._append(walk, self._settled_event(walk, result, duration_ns))
        self._observer.settled(SettledCall(walk.call, walk.spec, walk.verdict, result, walk.steps(), duration_ns))

    def settle_plan(self, walk: Walk, error: ToolError | None) -> None:
        """Record a dry run: it asked, and was answered with a plan or with why there is none. Never raises."""
        duration_ns = walk.elapsed_ns()
        mode = {"mode": walk.call.mode.value}
        self._append(walk, self._event(EventType.TOOL_CALLED, walk, attributes=mode))
        outcome = "planned" if error is None else error.kind.value
        duration_us = duration_ns // 1_000
        self._append(
            walk, self._event(EventType.TOOL_RESULT, walk, outcome=outcome, duration_us=duration_us, attributes=mode)
        )

    def _append(self, walk: Walk, event: Event) -> None:
        try:
            self._audit.append(event)
        except ToolFailure as broken:
            self._observer.crashed(walk.call, broken)

    def _settled_event(self, walk: Walk, result: ToolResult, duration_ns: int) -> Event:
        outcome = "ok" if result.error is None else result.error.kind.value
        denied = result.error is not None and result.error.kind in POLICY_KINDS and result.attempts == 0
        attributes = {"attempts": str(walk.attempts)}
        if result.job is not None:
            attributes["job_id"] = result.job.job_id
        if result.replayed:
            attributes.update(replayed="true", first_call_id=result.call_id)
        return self._event(
            EventType.POLICY_DENIED if denied else EventType.TOOL_RESULT,
            walk,
            outcome=outcome,
            duration_us=duration_ns // 1_000,
            attributes=attributes,
            result=walk.summary if result.ok else NO_RESULT,
        )

    def _event(
        self,
        type: EventType,
        walk: Walk,
        *,
        outcome: str = "",
        duration_us: int = 0,
        attributes: dict[str, str] | None = None,
        result: ResultSummary = NO_RESULT,
    ) -> Event:
        call, verdict = walk.call, walk.verdict
        context = call.context
        return Event(
            type=type,
            at_unix_ms=self._clock.unix_ms(),
            principal=call.principal.id,
            tool=call.tool,
            tool_digest=walk.spec.digest if walk.spec else "",
            call_id=call.call_id,
            request_id=context.request_id,
            args_digest=walk.planned.args_digest if walk.planned else "",
            args_summary=self._summary(walk) if type is EventType.TOOL_CALLED else "",
            purpose=call.purpose if type is EventType.TOOL_CALLED else "",
            policy_revision=verdict.policy_revision if verdict else "",
            rule_id=verdict.rule_id if verdict else "",
            outcome=outcome,
            duration_us=duration_us,
            attributes={"job_id": call.job_id, **(attributes or {})} if call.job_id else attributes or {},
            user_id=context.user_id,
            agent_id=context.agent_id,
            task_id=context.task_id,
            session_id=context.session_id,
            labels=context.labels,
            result_digest=result.digest,
            result_summary=result.text,
        )

    def _summary(self, walk: Walk) -> str:
        if walk.call.unread_bytes:
            return summarise_large(walk.call.args if walk.shown_args is None else walk.shown_args, self._redactor)
        if walk.planned is not None and walk.shown_args is None:
            return summarise_for_log(walk.planned.args, walk.planned.args_json, self._redactor)
        args: JsonValue = walk.call.args if walk.shown_args is None else walk.shown_args
        return summarise_for_log(args, dumps(args), self._redactor)
