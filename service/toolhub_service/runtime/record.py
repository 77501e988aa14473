"""Step 9: always. What happened, for the audit log, then for metrics and traces.

`Recorder.announce` decides what is written before step 6:

    the tool only reads                    nothing: one event, when the call settles
    the tool can change something,
        this call does not                 TOOL_CALLED, without waiting for the disk
        this call may                      TOOL_CALLED, on disk before the effect

A call is refused when its event cannot be written. A read is refused, too, when the log cannot accept an event, and
waits only when the log has fallen far behind, because a full log would refuse the next one. After the effect nothing
can be refused: if the log breaks then, the event is lost, which is reported to the observer, but never the caller's
answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from itertools import islice
from time import perf_counter_ns

from toolhub_service.domain.call import Call, GrantedCall, Mode
from toolhub_service.domain.errors.failure import ToolError, ToolFailure
from toolhub_service.domain.event import Event, EventFilter, EventType
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.ports import AuditLog, CallObserver, Clock
from toolhub_service.domain.result import SettledCall, StepName, StepTime, ToolResult
from toolhub_service.guards.foreign_text import on_one_line
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.call_state import NO_RESULT, RECORD, RESOLVE, STEPS, CallState, ResultSummary
from toolhub_service.runtime.failures import POLICY_KINDS
from toolhub_service.schema.canonical_json import dumps

# The audit log's short form of arguments and of results: redacted, long strings and lists cut, at most 1 KiB.

SUMMARY_MAX_BYTES = 1_024
# Characters of a string that the redactor sees: far more than are shown, so that no cut splits a secret.
_CHECKED_MAX = 2_048
_SHOWN_MAX = 200
_MEMBERS_MAX = 20
_DEPTH_MAX = 6
# Characters of a text in the outline of a result; of a longer one only the length is shown, which reveals no half of a
# secret.
_TEXT_SHOWN_MAX = 64


def summarise(args: JsonValue, redactor: Redactor) -> str:
    """Return canonical JSON of the outline of `args`: enough to see what was asked, without secrets."""
    if len(dumps(args)) <= _SHOWN_MAX:
        return redactor.json_text(args)
    return redacted_outline(args, redactor)


def summarise_for_log(args: JsonValue, text: bytes, redactor: Redactor) -> str:
    """The same for an event of the audit log, which hides secrets itself, for many events at once and in a thread of
    its own: so short arguments are passed on unchanged. `text` is their canonical JSON."""
    return text.decode() if len(text) <= _SHOWN_MAX else redacted_outline(args, redactor)


def summarise_large(args: JsonValue, redactor: Redactor) -> str:
    """The same for large arguments, without writing them out to learn their length."""
    return redacted_outline(args, redactor)


def summarise_result(value: JsonValue, text: bytes) -> ResultSummary:
    """Return the summary of a result for an event of the audit log, which hides secrets itself; `text` is its canonical
    JSON."""
    shown = text if len(text) <= _SHOWN_MAX else dumps(_result_outline(value))
    return ResultSummary(hashlib.sha256(text).hexdigest(), shown.decode())


def _result_outline(value: JsonValue) -> JsonValue:
    if not isinstance(value, Mapping):
        return _size(value)
    return {str(_size(name)): _size(value[name]) for name in islice(value, _MEMBERS_MAX)}


def _size(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return value if len(value) <= _TEXT_SHOWN_MAX else f"({len(value)} characters)"
    if isinstance(value, Mapping):
        return f"({len(value)} members)"
    return f"({len(value)} items)" if isinstance(value, list | tuple) else value


def redacted_outline(args: JsonValue, redactor: Redactor) -> str:
    """Return the outline, redacted before it is cut: half a secret would no longer be recognised."""
    outline = _outline(redactor.value(_outline(args, _DEPTH_MAX, _CHECKED_MAX)), _DEPTH_MAX + 1, _SHOWN_MAX)
    return dumps(outline)[:SUMMARY_MAX_BYTES].decode(errors="ignore")


def _outline(value: JsonValue, depth: int, text_max: int) -> JsonValue:
    if isinstance(value, str):
        return value if len(value) <= text_max else f"{value[:text_max]}…"
    if isinstance(value, Mapping):
        return _members(value, depth, text_max)
    if isinstance(value, list | tuple):
        return (
            f"({len(value)} items)" if depth == 0 else [_outline(v, depth - 1, text_max) for v in value[:_MEMBERS_MAX]]
        )
    return value


def _members(value: Mapping[str, JsonValue], depth: int, text_max: int) -> JsonValue:
    if depth == 0:
        return f"({len(value)} members)"
    return {key[:text_max]: _outline(value[key], depth - 1, text_max) for key in list(value)[:_MEMBERS_MAX]}


_ENDED = frozenset({EventType.TOOL_RESULT, EventType.POLICY_DENIED})


class Recorder:
    """Writes what happened to the audit log and notifies the observer."""

    def __init__(self, audit: AuditLog, observer: CallObserver, clock: Clock, redactor: Redactor) -> None:
        self._audit = audit
        self._observer = observer
        self._clock = clock
        self._redactor = redactor
        self.ready = audit.ready
        """Awaited before a call without an effect: a call that could not be recorded is refused with IO_ERROR."""

    async def announce(self, state: CallState, granted: GrantedCall) -> None:
        """Record that the call is about to run, if it may have an effect. Raises ToolFailure IO_ERROR when it cannot be
        recorded."""
        if not (granted.spec.has_side_effects or state.call.mode is not Mode.EXECUTE):
            await self.ready()
            return
        event = self._event(EventType.TOOL_CALLED, state)
        try:
            if granted.has_side_effects:
                await self._audit.append_durably(event)
            else:
                await self.ready()
                self._audit.append(event)
        except asyncio.CancelledError:
            state.is_recorded = granted.has_side_effects  # the event is chained; only the wait for the disk ended
            raise
        state.is_recorded = True

    def record_retry(self, granted: GrantedCall, state: CallState, error: ToolError, attempt: int) -> None:
        """Record that an attempt failed and another follows."""
        self._observer.on_retry(granted, error, attempt)
        attributes = {"attempt": str(attempt)}
        self._append(state, self._event(EventType.RETRY, state, outcome=error.kind.value, attributes=attributes))

    def settle(self, state: CallState, result: ToolResult) -> ToolResult:
        """Step 9: record the answer, whatever it is, and release the lease. Never raises for a broken log."""
        if state.lease is not None:
            state.lease.release(result.error)
        state.begun_ns[RECORD] = perf_counter_ns()
        ended_ns = perf_counter_ns()
        duration_ns = ended_ns - state.begun_ns[RESOLVE]
        spec = state.spec
        # The event before the effect shows what was asked; so does the one of a call that becomes a job, or whose tool
        # is unknown.
        has_two = spec is None or spec.has_side_effects or state.call.mode is not Mode.EXECUTE
        if has_two and not state.is_recorded:
            self._append(state, self._event(EventType.TOOL_CALLED, state))
        error = result.error
        denied = error is not None and error.kind in POLICY_KINDS and result.attempts == 0
        attributes = {"attempts": str(state.attempts)}
        if denied and state.verdict is not None and state.verdict.operator_remedy:
            attributes["remedy"] = self._redactor.text(state.verdict.operator_remedy)
        if state.hidden:
            attributes["hidden"] = self._redactor.text(state.hidden)
        if result.job is not None:
            attributes["job_id"] = result.job.job_id
        if result.replayed:
            attributes.update(replayed="true", first_call_id=result.call_id)
        event = self._event(
            EventType.POLICY_DENIED if denied else EventType.TOOL_RESULT,
            state,
            shows_asked=denied or not has_two,  # a refusal says by itself what was refused
            outcome="ok" if error is None else error.kind.value,
            duration_us=duration_ns // 1_000,
            attributes=attributes,
            result=state.summary if result.ok else NO_RESULT,
        )
        try:
            self._audit.append(event)
        except ToolFailure as broken:
            self._observer.on_crash(state.call, broken)
        steps = settle_steps(state, ended_ns)
        self._observer.on_settled_call(SettledCall(state.call, spec, state.verdict, result, steps, duration_ns))
        return result

    async def record_reuse(self, call: Call, result: ToolResult) -> None:
        """Record an answer that a later run of a job takes from the job's log, unless the log has its event.

        A process that is killed takes the events of its last moment with it, but not the answers that it has stored.
        Never raises for a broken log.
        """
        state = CallState(call, call, [perf_counter_ns()] * len(STEPS), {})
        try:
            if await self._audit.read(EventFilter(call_id=call.call_id, types=_ENDED), after=None, limit=1):
                return
            outcome = "ok" if result.error is None else result.error.kind.value
            attributes = {"replayed": "true"}
            event = self._event(EventType.TOOL_RESULT, state, shows_asked=True, outcome=outcome, attributes=attributes)
            self._audit.append(event)
        except ToolFailure as broken:
            self._observer.on_crash(call, broken)

    def settle_plan(self, state: CallState, error: ToolError | None) -> None:
        """Record a dry run with its plan, or with why there is none. Never raises."""
        duration_us = (perf_counter_ns() - state.begun_ns[RESOLVE]) // 1_000
        mode = {"mode": state.call.mode.value}
        self._append(state, self._event(EventType.TOOL_CALLED, state, attributes=mode))
        outcome = "planned" if error is None else error.kind.value
        self._append(
            state, self._event(EventType.TOOL_RESULT, state, outcome=outcome, duration_us=duration_us, attributes=mode)
        )

    def _append(self, state: CallState, event: Event) -> None:
        try:
            self._audit.append(event)
        except ToolFailure as broken:
            self._observer.on_crash(state.call, broken)

    def _event(
        self,
        type: EventType,
        state: CallState,
        *,
        shows_asked: bool = False,
        outcome: str = "",
        duration_us: int = 0,
        attributes: dict[str, str] | None = None,
        result: ResultSummary = NO_RESULT,
    ) -> Event:
        """Return the event; `shows_asked` adds what was asked and why, for calls without an event of their own for
        that."""
        call, verdict, planned = state.call, state.verdict, state.planned
        context = call.context
        has_whence = call.job_id or call.lineage or call.principal.issuer or call.principal.tenant
        shows_asked = shows_asked or type is EventType.TOOL_CALLED
        summary = ""
        if shows_asked:
            is_short = planned is not None and state.shown_args is None and len(planned.args_json) <= _SHOWN_MAX
            summary = planned.args_json.decode() if planned and is_short else self._summary(state)
        return Event(
            type=type,
            at_unix_ms=self._clock.unix_ms(),
            principal=call.principal.id,
            # The name of a tool that does not exist is whatever a caller has written.
            tool=call.tool if state.spec else on_one_line(call.tool),
            tool_digest=state.spec.digest if state.spec else "",
            call_id=call.call_id,
            request_id=context.request_id,
            args_digest=planned.args_digest if planned else "",
            args_summary=summary,
            purpose=call.purpose if shows_asked else "",
            policy_revision=verdict.policy_revision if verdict else "",
            rule_id=verdict.rule_id if verdict else "",
            outcome=outcome,
            duration_us=duration_us,
            attributes={**_whence(call), **(attributes or {})} if has_whence else attributes or {},
            user_id=context.user_id,
            agent_id=context.agent_id,
            task_id=context.task_id,
            session_id=context.session_id,
            labels=context.labels,
            result_digest=result.digest,
            result_summary=result.text,
        )

    def _summary(self, state: CallState) -> str:
        if state.call.unread_bytes:
            return summarise_large(state.call.args if state.shown_args is None else state.shown_args, self._redactor)
        if state.planned is not None and state.shown_args is None:
            return summarise_for_log(state.planned.args, state.planned.args_json, self._redactor)
        args: JsonValue = state.call.args if state.shown_args is None else state.shown_args
        return summarise_for_log(args, dumps(args), self._redactor)


def _whence(call: Call) -> dict[str, str]:
    """Return who vouches for the caller, the job that runs the call, and the calls that made it."""
    whence = {"job_id": call.job_id} if call.job_id else {}
    whence |= call.principal.facts
    if call.lineage is not None:
        whence |= {"parent_call_id": call.lineage.parent_call_id, "root_call_id": call.lineage.root_call_id}
    return whence


def settle_steps(state: CallState, ended_ns: int) -> tuple[StepTime, ...]:
    """Store the duration of every step that began, each up to the next one and the last up to now, in one pass."""
    steps: Sequence[StepName] = STEPS
    begun_ns: Sequence[int] = state.begun_ns
    if 0 in begun_ns:
        steps = [step for step, at_ns in zip(STEPS, begun_ns, strict=True) if at_ns]
        begun_ns = [at_ns for at_ns in begun_ns if at_ns]
    times = tuple(zip(steps, begun_ns, (*begun_ns[1:], ended_ns), strict=True))
    durations_us = state.durations_us
    for step, start_ns, end_ns in times:
        durations_us[step] = (end_ns - start_ns) // 1_000
    del durations_us[step]  # the last step lasts until the answer is sent
    return times
