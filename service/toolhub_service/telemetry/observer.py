"""Passes reports of the pipeline (step 9, record), jobs and sources on to metrics, traces, logs and the audit log."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from toolhub_service.domain.call import Call, GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.job import Job, JobCounts
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.domain.result import FINAL_STATES, JobState, SettledCall
from toolhub_service.domain.source import Pin, SourceState, SourceStatus
from toolhub_service.telemetry import names
from toolhub_service.telemetry.logs import log_trouble
from toolhub_service.telemetry.metrics import Metrics
from toolhub_service.telemetry.names import UNKNOWN_TOOL
from toolhub_service.telemetry.tracing import UNTRACED, Tracing

_REFUSED_BY_POLICY = frozenset(
    {
        *(ErrorKind.POLICY_DENIED, ErrorKind.PERMISSION_DENIED, ErrorKind.APPROVAL_REQUIRED, ErrorKind.PLAN_REQUIRED),
        *(ErrorKind.APPROVAL_REJECTED, ErrorKind.PATH_OUTSIDE_SANDBOX, ErrorKind.HTTP_DISALLOWED_HOST),
    }
)
# Ids of a call's context that its log line includes when they are given.
_FOR_WHOM = ("user_id", "agent_id", "task_id", "session_id")


class CallTelemetry:
    """Implements `CallObserver`. A call that succeeds writes no log line unless `access_log` is on."""

    def __init__(
        self, metrics: Metrics, tracing: Tracing, log: FilteringBoundLogger, *, access_log: bool = False
    ) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._log = log
        self._access_log = access_log
        self._records_spans = tracing.tracer is not None
        self.learn: Callable[[SettledCall], None] | None = None
        """Called with ended calls that had a purpose, from which search learns. Must be cheap and not raise."""

    def executing(self, call: GrantedCall) -> AbstractContextManager[object]:
        if not self._records_spans:
            return self._metrics.in_flight
        span = self._tracing.executing(call)
        return self._metrics.in_flight if span is UNTRACED else _together(self._metrics.in_flight, span)

    def retried(self, call: GrantedCall, error: ToolError, attempt: int) -> None:
        self._metrics.call_retried(call.spec.name)
        self._log.info(
            names.LOG_RETRY, call_id=call.call.call_id, tool=call.spec.name, attempt=attempt, kind=error.kind.value
        )

    def crashed(self, call: Call, error: BaseException) -> None:
        if isinstance(error, ToolFailure) and error.error.kind is not ErrorKind.INTERNAL:
            # A full disk is no defect, and a traceback for each call would fill it further.
            self._log.error(
                names.LOG_UNRECORDED,
                call_id=call.call_id,
                tool=call.tool,
                principal=call.principal.id,
                cause=error.error.details.get("cause", ""),
            )
            return
        self._metrics.count_defect()
        self._log.error(names.LOG_CRASH, call_id=call.call_id, tool=call.tool, exc_info=error)

    def unkept(self, call: Call, problem: ToolError) -> None:
        self._log.warning(names.LOG_UNKEPT, call_id=call.call_id, tool=call.tool, problem=problem.message)

    def settled(self, settled: SettledCall) -> None:
        result, spec, who = settled.result, settled.spec, settled.call.principal
        tool = spec.name if spec is not None else UNKNOWN_TOOL
        self._metrics.call_settled(
            tool,
            ok=result.ok,
            latency_s=settled.duration_ns / 1e9,
            steps=settled.steps,
            principal=who.id if who.tenancy is None else who.share,
        )
        if result.replayed:
            self._metrics.call_replayed(tool)
        if result.error is not None:
            self._failed(tool, settled, result.error.kind)
        if self._records_spans:
            self._tracing.settled(settled)
        if self.learn is not None and settled.call.purpose:
            self.learn(settled)
        if self._access_log:
            self._log_call(settled, settled.duration_ns / 1e6)

    def _failed(self, tool: str, settled: SettledCall, kind: ErrorKind) -> None:
        self._metrics.call_failed(kind.value)
        error = settled.result.error
        if kind is ErrorKind.BUDGET_EXCEEDED and error is not None:
            self._metrics.storage_refused(str(error.details.get("limit", "")))
        verdict = settled.verdict
        # A verdict names its rule; a refusal by a guard or a person has none, and is counted by its kind.
        if verdict is not None and not verdict.allows:
            self._metrics.policy_denied(tool, verdict.rule_id)
        elif kind in _REFUSED_BY_POLICY:
            self._metrics.policy_denied(tool, kind.value)

    def _log_call(self, settled: SettledCall, latency_ms: float) -> None:
        error, context = settled.result.error, settled.call.context
        given = {name: getattr(context, name) for name in _FOR_WHOM if getattr(context, name)}
        self._log.info(
            names.LOG_CALL,
            call_id=settled.call.call_id,
            request_id=context.request_id,
            **settled.call.principal.facts | given,
            principal=settled.call.principal.id,
            tool=settled.call.tool,
            outcome="ok" if error is None else error.kind.value,
            attempts=settled.result.attempts,
            duration_ms=round(latency_ms, 3),
        )


@contextmanager
def _together(in_flight: AbstractContextManager[object], span: AbstractContextManager[object]) -> Iterator[None]:
    with in_flight, span:
        yield


class AuditTelemetry:
    """Implements the audit log's `CommitObserver`, `UpkeepObserver` and `ExportObserver`; it logs checkpoints as
    witnesses."""

    def __init__(self, metrics: Metrics, log: FilteringBoundLogger) -> None:
        self._metrics = metrics
        self._log = log
        self._exported = metrics.family(names.AUDIT_EXPORTED)
        self._refused = metrics.family(names.AUDIT_EXPORT_REFUSED)
        self._backlog = metrics.family(names.AUDIT_BACKLOG)
        self._failures = metrics.family(names.UPKEEP_FAILURES)

    def upkeep_failed(self, task: str, problem: Exception) -> None:
        self._failures.labels(task).inc()
        self._log.warning(
            names.LOG_UPKEEP_FAILED, task=task, problem=excerpt(f"{type(problem).__name__}: {problem}", 500)
        )

    def exported(self, sink: str, events: int, refused: int) -> None:
        self._exported.labels(sink).inc(events)
        if refused:
            self._refused.labels(sink).inc(refused)
            self._log.error(names.LOG_EXPORT_REFUSED, sink=sink, events=refused)

    def backlog(self, sink: str, events: int) -> None:
        self._backlog.labels(sink).set(events)

    def begins_anew(self, sink: str) -> None:
        self._log.warning(names.LOG_EXPORT_ANEW, sink=sink)

    def audit_committed(self, events: int, seconds: float, depth: int) -> None:
        self._metrics.audit_committed(events, seconds, depth)

    def audit_failed(self, reason: str) -> None:
        self._metrics.audit_failed(reason)
        self._log.error(names.LOG_AUDIT_FAILED, reason=reason)

    def witness(self, line: str) -> None:
        """Log a checkpoint line, so that it leaves the machine with the other logs."""
        self._log.info(names.LOG_CHECKPOINT, checkpoint=line)


# Jobs

_OPEN = [state for state in JobState if state not in FINAL_STATES]
_MAX_TOOLS = 1_000
_MAX_CAUSES = 50


class JobTelemetry:
    """Implements `JobObserver`."""

    def __init__(
        self, metrics: Metrics, tracing: Tracing, log: FilteringBoundLogger, now_unix_ms: Callable[[], int]
    ) -> None:
        self._tracing = tracing
        self._log = log
        self._now_unix_ms = now_unix_ms
        self._accepted = metrics.family(names.JOBS_ACCEPTED)
        self._ended = metrics.family(names.JOBS_ENDED)
        self._lost = metrics.family(names.JOBS_LOST)
        self._running: Any = metrics.family(names.JOBS_RUNNING)
        self._redeliveries = metrics.family(names.JOB_REDELIVERIES)
        self._watchers = metrics.family(names.JOB_WATCHERS)
        self._troubles = metrics.family(names.JOB_TROUBLES)
        self._oldest = metrics.family(names.JOBS_OLDEST_QUEUED)
        open_jobs, seconds = metrics.family(names.JOBS_OPEN), metrics.family(names.JOB_STATE_SECONDS)
        # Created at once, so that a state without jobs shows 0 instead of nothing.
        self._open = {state: open_jobs.labels(state.value) for state in _OPEN}
        self._seconds = {state: seconds.labels(state.value) for state in _OPEN}
        self._tools: set[str] = set()
        self._causes: set[str] = set()

    def accepted(self, job: Job) -> None:
        self._accepted.labels(self._tool(job)).inc()

    def changed(self, before: Job, job: Job) -> None:
        since_unix_ms = before.state_since_unix_ms or before.created_at_unix_ms
        self._seconds[before.state].observe(max(0, job.status.at_unix_ms - since_unix_ms) / 1_000)
        if job.state.is_final:
            self._ended.labels(self._tool(job), job.state.value).inc()
        if job.state is JobState.LOST:
            self._lost.labels(self._tool(job), self._cause(job)).inc()
        if job.state in (JobState.LOST, JobState.TIMED_OUT):
            self._log.warning(
                names.LOG_JOB_ENDED,
                job_id=job.job_id,
                call_id=job.call.call_id,
                tool=job.call.tool,
                state=job.state.value,
                runs=job.runs,
                **_why(job),
            )

    def taken_over(self, job: Job) -> None:
        self._redeliveries.inc()
        self._log.warning(names.LOG_JOB_TAKEN, job_id=job.job_id, tool=job.call.tool, runs=job.runs)

    @contextmanager
    def running(self, job: Job) -> Iterator[None]:
        attributes: dict[str, str | int] = {names.ATTRIBUTE_JOB: job.job_id, names.ATTRIBUTE_RUNS: job.runs}
        attributes |= {names.ATTRIBUTE_PRINCIPAL: job.call.principal.id}
        attributes |= {f"toolhub.{name}": fact for name, fact in job.call.principal.facts.items()}
        self._running.inc()
        try:
            with self._tracing.work(names.SPAN_JOB.format(tool=job.call.tool), job.trace_parent, attributes):
                yield
        finally:
            self._running.dec()

    def counted(self, counts: JobCounts) -> None:
        for state, gauge in self._open.items():
            gauge.set(counts.by_state.get(state, 0))
        oldest = counts.oldest_queued_at_unix_ms
        self._oldest.set(0 if oldest is None else max(0, self._now_unix_ms() - oldest) / 1_000)

    def watching(self, watchers: int) -> None:
        self._watchers.set(watchers)

    def met_problem(self, job_id: str, problem: BaseException) -> None:
        self._troubles.inc()
        log_trouble(self._log, names.LOG_JOB_TROUBLE, problem, job_id=job_id)

    def _tool(self, job: Job) -> str:
        """Return a bounded label: jobs of unknown tools are FAILED at once and kept."""
        return _bounded(job.call.tool if job.tool_digest else names.UNKNOWN_TOOL, self._tools, _MAX_TOOLS)

    def _cause(self, job: Job) -> str:
        """Return a bounded label: a custom tool may name any cause."""
        return _bounded(_why(job).get("cause") or names.OTHER, self._causes, _MAX_CAUSES)


def _bounded(label: str, known: set[str], most: int) -> str:
    if label in known or len(known) < most:
        known.add(label)
        return label
    return names.OTHER


def _why(job: Job) -> dict[str, str]:
    """Return the answer's error for the log; empty when the record holds none."""
    error = job.status.result.error if job.status.result is not None else None
    if error is None:
        return {}
    return {"kind": error.kind.value, "cause": str(error.details.get("cause", "")), "reason": error.message}


# Sources and pins

_READ: Final = frozenset({SourceState.READY, SourceState.PARTIAL})
_WORRYING: Final = {
    SourceState.DOWN: names.LOG_SOURCE_DOWN,
    SourceState.NEEDS_LOGIN: names.LOG_SOURCE_DOWN,
    SourceState.PARTIAL: names.LOG_SOURCE_PARTIAL,
}
_SAME_DRIFT_MS: Final = 3600 * 1000
# Most changes remembered, over all sources; about 0.3 kB each.
_DRIFTS_MAX: Final = 50_000


class SourceTelemetry:
    """Implements `SourceObserver`."""

    def __init__(self, audit: AuditLog, metrics: Metrics, log: FilteringBoundLogger, clock: Clock) -> None:
        self._audit = audit
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._up = metrics.family(names.SOURCE_UP)
        self._whole = metrics.family(names.SOURCE_WHOLE)
        self._tools = metrics.family(names.SOURCE_TOOLS)
        self._quarantined = metrics.family(names.SOURCE_QUARANTINED)
        self._seconds = metrics.family(names.SOURCE_SECONDS)
        self._troubles = metrics.family(names.SOURCE_TROUBLES)
        self._pins = metrics.family(names.PINS)
        # What was last logged of a source, so that an unchanged state is not logged again.
        self._logged: dict[str, tuple[SourceState, str, int, int]] = {}
        # When a change of a known record was last logged, by record and kind of change.
        self._drifts: OrderedDict[tuple[str, ...], int] = OrderedDict()

    def refreshed(self, status: SourceStatus) -> None:
        name = status.name
        self.checked(status)
        if status.state in _READ:
            self._seconds.labels(name).observe(status.latency_ms / 1_000)
        logged = (status.state, status.reason, status.tool_count, status.quarantined_count)
        if self._logged.get(name) == logged:
            return
        self._logged[name] = logged
        event = _WORRYING.get(status.state)
        write = self._log.info if event is None else self._log.warning
        write(
            event or names.LOG_SOURCE_READ,
            source=name,
            state=status.state.value,
            reason=status.reason,
            tools=status.tool_count,
            quarantined=status.quarantined_count,
        )

    def checked(self, status: SourceStatus) -> None:
        """A source that is switched off, and so not read, is not measured."""
        if status.state is SourceState.DISABLED:
            self.removed(status.name)
            return
        self._up.labels(status.name).set(status.state in _READ)
        self._whole.labels(status.name).set(status.state in _READ and not status.partial)
        self._tools.labels(status.name).set(status.tool_count)
        self._quarantined.labels(status.name).set(status.quarantined_count)

    def removed(self, source: str) -> None:
        """Remove the metrics of a source that is no longer configured or read, so that no alert fires for it."""
        self._logged.pop(source, None)
        for gauge, unremarkable in ((self._up, 1), (self._whole, 1), (self._tools, 0), (self._quarantined, 0)):
            gauge.labels(source).set(unremarkable)
        for metric in (names.SOURCE_UP, names.SOURCE_WHOLE, names.SOURCE_TOOLS, names.SOURCE_QUARANTINED):
            self._metrics.drop(metric, source)

    def pinned(self, pin: Pin) -> None:
        self._remember(EventType.PIN_CREATED, pin)

    def drifted(self, pin: Pin) -> None:
        """Log a change of pins, of each record only the first in an hour; the others are counted.

        A source that removes and restores tools all day changes the same records again and again.
        """
        if pin.version > 1 and not self._is_first(pin):
            self._count(EventType.PIN_DRIFTED, pin)
            return
        self._log.warning(names.LOG_DRIFT, source=pin.source, tool=pin.tool, change=pin.change.value, digest=pin.digest)
        self._remember(EventType.PIN_DRIFTED, pin)

    def decided(self, pin: Pin) -> None:
        self._remember(EventType.PIN_DECIDED, pin)

    def met_problem(self, source: str, problem: BaseException) -> None:
        self._troubles.labels(source).inc()
        log_trouble(self._log, names.LOG_SOURCE_TROUBLE, problem, source=source)

    def _is_first(self, pin: Pin) -> bool:
        key, now = (*pin.key, pin.change.value), self._clock.unix_ms()
        last = self._drifts.get(key)
        if last is not None and now - last < _SAME_DRIFT_MS:
            return False
        self._drifts[key] = now
        self._drifts.move_to_end(key)
        if len(self._drifts) > _DRIFTS_MAX:
            self._drifts.popitem(last=False)
        return True

    def _count(self, type: EventType, pin: Pin) -> None:
        self._pins.labels(pin.source, type.value.removeprefix("PIN_").lower()).inc()

    def _remember(self, type: EventType, pin: Pin) -> None:
        self._count(type, pin)
        attributes = {
            "source": pin.source,
            "digest": pin.digest,
            "previous_digest": pin.previous_digest,
            "change": pin.change.value,
            "state": pin.state.value,
            "findings": "; ".join(pin.findings)[:1_000],
            "comment": pin.comment,
            "renamed_from": pin.renamed_from,
        }
        event = Event(
            type=type,
            at_unix_ms=self._clock.unix_ms(),
            principal=pin.decided_by,
            tool=pin.tool,
            outcome=pin.state.value,
            attributes={name: value for name, value in attributes.items() if value},
        )
        try:
            self._audit.append(event)
        except ToolFailure as failure:  # the audit log reports its own failure; a pin is stored anyway
            self.met_problem(pin.source, failure)
