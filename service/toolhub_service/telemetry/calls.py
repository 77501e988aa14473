"""Passes reports of the pipeline (step 9, record) on to metrics, traces and logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from structlog.typing import FilteringBoundLogger

from toolhub_service.domain.call import Call, GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.result import SettledCall
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

    def on_retry(self, call: GrantedCall, error: ToolError, attempt: int) -> None:
        self._metrics.call_retried(call.spec.name)
        self._log.info(
            names.LOG_RETRY, call_id=call.call.call_id, tool=call.spec.name, attempt=attempt, kind=error.kind.value
        )

    def on_crash(self, call: Call, error: BaseException) -> None:
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

    def on_unkept_result(self, call: Call, problem: ToolError) -> None:
        self._log.warning(names.LOG_UNKEPT, call_id=call.call_id, tool=call.tool, problem=problem.message)

    def on_settled_call(self, settled: SettledCall) -> None:
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
            self._count_failure(tool, settled, result.error.kind)
        if self._records_spans:
            self._tracing.record_steps(settled)
        if self.learn is not None and settled.call.purpose:
            self.learn(settled)
        if self._access_log:
            self._log_call(settled, settled.duration_ns / 1e6)

    def _count_failure(self, tool: str, settled: SettledCall, kind: ErrorKind) -> None:
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
