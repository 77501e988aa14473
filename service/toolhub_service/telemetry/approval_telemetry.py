"""What the runtime tells of approvals, passed on to metrics."""

from __future__ import annotations

from toolhub_service.domain.approval import Approval, ApprovalState
from toolhub_service.telemetry import names
from toolhub_service.telemetry.metrics import Metrics

_DECISIONS = (ApprovalState.APPROVED, ApprovalState.REJECTED)


class ApprovalTelemetry:
    """Implements `ApprovalObserver`."""

    def __init__(self, metrics: Metrics) -> None:
        changes = metrics.family(names.APPROVALS)
        self._changes = {state: changes.labels(state.value) for state in ApprovalState}
        self._pending = metrics.family(names.APPROVALS_PENDING)
        self._seconds = metrics.family(names.APPROVAL_SECONDS)

    def changed(self, approval: Approval) -> None:
        self._changes[approval.state].inc()
        if approval.state in _DECISIONS:
            self._seconds.observe(max(0, approval.decided_at_unix_ms - approval.requested_at_unix_ms) / 1_000)

    def pending(self, count: int) -> None:
        self._pending.set(count)
