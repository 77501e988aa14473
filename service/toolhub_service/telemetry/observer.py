"""What the pipeline (step 9, record) and the jobs report, passed on to metrics, traces and logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from structlog.typing import FilteringBoundLogger

from toolhub_service.domain.call import Call, GrantedCall
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.job import Job, JobTally
from toolhub_service.domain.result import FINAL_STATES, JobState, SettledCall
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
# Ids of a call's context that its log line names where they are given.
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
        """What search learns from: called with calls that ended and had a purpose. Must be cheap and not raise."""

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
            # A disk that is full is no defect, and a traceback for each call would fill it further.
            self._log.error(
                names.LOG_UNRECORDED,
                call_id=call.call_id,
                tool=call.tool,
                principal=call.principal.id,
                cause=error.error.details.get("cause", ""),
            )
            return
        self._metrics.defect_met()
        self._log.error(names.LOG_CRASH, call_id=call.call_id, tool=call.tool, exc_info=error)

    def unkept(self, call: Call, problem: ToolError) -> None:
        self._log.warning(names.LOG_UNKEPT, call_id=call.call_id, tool=call.tool, problem=problem.message)

    def settled(self, settled: SettledCall) -> None:
        result, spec = settled.result, settled.spec
        tool = spec.name if spec is not None else UNKNOWN_TOOL
        self._metrics.call_settled(
            tool,
            ok=result.ok,
            latency_s=settled.duration_ns / 1e9,
            steps=settled.steps,
            principal=settled.call.principal.id,
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
        verdict = settled.verdict
        if verdict is not None and not verdict.allows:
            self._metrics.policy_denied(tool, verdict.rule_id)
        elif kind in _REFUSED_BY_POLICY:
            self._metrics.policy_denied(tool, kind.value)

    def _log_call(self, settled: SettledCall, latency_ms: float) -> None:
        error, context = settled.result.error, settled.call.context
        for_whom = {name: getattr(context, name) for name in _FOR_WHOM if getattr(context, name)}
        self._log.info(
            names.LOG_CALL,
            call_id=settled.call.call_id,
            request_id=context.request_id,
            **for_whom,
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
    """Implements the audit log's `CommitObserver`, and carries its checkpoints to the log as witnesses."""

    def __init__(self, metrics: Metrics, log: FilteringBoundLogger) -> None:
        self._metrics = metrics
        self._log = log

    def audit_committed(self, events: int, seconds: float, depth: int) -> None:
        self._metrics.audit_committed(events, seconds, depth)

    def audit_failed(self, reason: str) -> None:
        self._metrics.audit_failed(reason)
        self._log.error(names.LOG_AUDIT_FAILED, reason=reason)

    def witness(self, line: str) -> None:
        """For the log's `witness`: the line leaves the machine with the other logs."""
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
        attributes: dict[str, str | int] = {
            names.ATTRIBUTE_JOB: job.job_id,
            names.ATTRIBUTE_RUNS: job.runs,
            names.ATTRIBUTE_PRINCIPAL: job.call.principal.id,
        }
        self._running.inc()
        try:
            with self._tracing.work(names.SPAN_JOB.format(tool=job.call.tool), job.trace_parent, attributes):
                yield
        finally:
            self._running.dec()

    def tallied(self, tally: JobTally) -> None:
        for state, gauge in self._open.items():
            gauge.set(tally.by_state.get(state, 0))
        oldest = tally.oldest_queued_at_unix_ms
        self._oldest.set(0 if oldest is None else max(0, self._now_unix_ms() - oldest) / 1_000)

    def watching(self, watchers: int) -> None:
        self._watchers.set(watchers)

    def troubled(self, job_id: str, problem: BaseException) -> None:
        self._troubles.inc()
        log_trouble(self._log, names.LOG_JOB_TROUBLE, problem, job_id=job_id)

    def _tool(self, job: Job) -> str:
        """Bounded, as every label: jobs of unknown tools are FAILED at once and kept."""
        return _bounded(job.call.tool if job.tool_digest else names.UNKNOWN_TOOL, self._tools, _MAX_TOOLS)

    def _cause(self, job: Job) -> str:
        """Bounded, too: a tool of one's own may name any."""
        return _bounded(_why(job).get("cause") or names.OTHER, self._causes, _MAX_CAUSES)


def _bounded(label: str, known: set[str], most: int) -> str:
    if label in known or len(known) < most:
        known.add(label)
        return label
    return names.OTHER


def _why(job: Job) -> dict[str, str]:
    """The error of the answer, for whoever reads the log; nothing where the record holds no error."""
    error = job.status.result.error if job.status.result is not None else None
    if error is None:
        return {}
    return {"kind": error.kind.value, "cause": str(error.details.get("cause", "")), "reason": error.message}
