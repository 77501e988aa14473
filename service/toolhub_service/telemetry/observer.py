"""What the pipeline tells, passed on to metrics, traces and logs (step 9, record)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from structlog.typing import FilteringBoundLogger

from toolhub_service.domain.call import Call, GrantedCall
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.settled import SettledCall
from toolhub_service.telemetry import names
from toolhub_service.telemetry.metrics import Metrics
from toolhub_service.telemetry.names import UNKNOWN_TOOL
from toolhub_service.telemetry.tracing import UNTRACED, Tracing

_REFUSED_BY_POLICY = frozenset(
    {
        *(ErrorKind.POLICY_DENIED, ErrorKind.PERMISSION_DENIED, ErrorKind.APPROVAL_REQUIRED, ErrorKind.PLAN_REQUIRED),
        *(ErrorKind.APPROVAL_REJECTED, ErrorKind.PATH_OUTSIDE_SANDBOX, ErrorKind.HTTP_DISALLOWED_HOST),
    }
)
_FOR_WHOM = ("user_id", "agent_id", "task_id", "session_id")
"""Ids of a call's context that its log line names where they are given."""


class CallTelemetry:
    """Implements `CallObserver`. A call that succeeds writes no log line unless `access_log` is on."""

    def __init__(
        self, metrics: Metrics, tracing: Tracing, log: FilteringBoundLogger, *, access_log: bool = False
    ) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._log = log
        self._access_log = access_log
        self.learn: Callable[[SettledCall], None] | None = None
        """Who else is told of calls that ended: what search learns from. Must be cheap and not raise."""

    def executing(self, call: GrantedCall) -> AbstractContextManager[object]:
        span = self._tracing.executing(call)
        return self._metrics.in_flight if span is UNTRACED else _together(self._metrics.in_flight, span)

    def retried(self, call: GrantedCall, error: ToolError, attempt: int) -> None:
        self._metrics.call_retried(call.spec.name)
        self._log.info(
            names.LOG_RETRY, call_id=call.call.call_id, tool=call.spec.name, attempt=attempt, kind=error.kind.value
        )

    def crashed(self, call: Call, error: BaseException) -> None:
        if isinstance(error, ToolFailure) and error.error.kind is not ErrorKind.INTERNAL:
            self._unrecorded(call, error.error)
            return
        self._metrics.defect_met()
        self._log.error(names.LOG_CRASH, call_id=call.call_id, tool=call.tool, exc_info=error)

    def _unrecorded(self, call: Call, problem: ToolError) -> None:
        """A disk that is full is no defect, and a traceback for each call would fill it further."""
        self._log.error(
            names.LOG_UNRECORDED,
            call_id=call.call_id,
            tool=call.tool,
            principal=call.principal.id,
            cause=problem.details.get("cause", ""),
        )

    def unkept(self, call: Call, problem: ToolError) -> None:
        self._log.warning(names.LOG_UNKEPT, call_id=call.call_id, tool=call.tool, problem=problem.message)

    def settled(self, settled: SettledCall) -> None:
        result, spec = settled.result, settled.spec
        tool = spec.name if spec is not None else UNKNOWN_TOOL
        latency_ms = settled.duration_ns / 1e6
        self._metrics.call_settled(tool, ok=result.ok, latency_ms=latency_ms, steps=settled.steps)
        if result.replayed:
            self._metrics.call_replayed(tool)
        if result.error is not None:
            self._failed(tool, settled, result.error.kind)
        self._tracing.settled(settled)
        if self.learn is not None:
            self.learn(settled)
        if self._access_log:
            self._log_call(settled, latency_ms)

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
