"""What metrics tell of approvals."""

from __future__ import annotations

from tests.unit.runtime.approval_door import EXPIRES_S, REJECTED, an_approval_door
from toolhub_service.telemetry.approval_telemetry import ApprovalTelemetry
from toolhub_service.telemetry.metrics import Metrics


async def test_every_change_is_counted_once_and_the_wait_for_a_person_measured() -> None:
    metrics = Metrics(version="1")
    door = an_approval_door(observer=ApprovalTelemetry(metrics))
    granted = await door.ask("a")
    await door.ask("a", number=2)
    door.door.clock.advance(30)
    await door.decide(granted)
    await door.decide(granted)
    assert (await door.call("a", number=3, approval_id=granted)).ok
    await door.decide(await door.ask("b"), REJECTED)
    await door.ask("c")
    door.door.clock.advance(EXPIRES_S)
    await door.ask("d")
    await door.approvals.sweep()
    told = metrics.exposition().decode()
    for state, count in (("PENDING", 4), ("APPROVED", 1), ("USED", 1), ("REJECTED", 1), ("EXPIRED", 1)):
        assert f'toolhub_approvals_total{{state="{state}"}} {count}.0' in told
    assert "toolhub_approvals_pending 1.0" in told
    assert "toolhub_approval_decision_seconds_sum 30.0" in told
    assert "toolhub_approval_decision_seconds_count 2.0" in told
