from __future__ import annotations

import asyncio
import time

import pytest

from tests.overtaken import overdue
from tests.unit.runtime.pipeline_harness import HANG, READ, WRITE, a_pipeline_harness, a_tool
from toolhub_service.domain.call import BudgetRequest
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.result import Outcome

BROKEN = ToolError(ErrorKind.NETWORK_ERROR, "The line is broken.")
MINUTE = BudgetRequest(timeout_s=60.0)
DONE = Outcome(value={"text": "done"})
IDEMPOTENT_WRITE = a_tool("test/text.put", capability="write:fs", idempotent=True)


class RecordedPauses(list[float]):
    """Every pause between attempts that was asked for; none is waited for."""

    async def sleep(self, delay_s: float) -> None:
        self.append(delay_s)
        await asyncio.sleep(0)


@pytest.fixture
def pauses() -> RecordedPauses:
    return RecordedPauses()


@pytest.mark.promise("retry.full-jitter")
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
async def test_pauses_double_with_full_jitter(pauses: RecordedPauses, share: float) -> None:
    harness = a_pipeline_harness(BROKEN, BROKEN, BROKEN, DONE, sleep=pauses.sleep)
    harness.randomness.share = share
    result = await harness.result(READ, budget=BudgetRequest(max_retries=3))
    assert result.ok
    assert result.attempts == 4
    assert pauses == pytest.approx([0.1 * share, 0.2 * share, 0.4 * share])


@pytest.mark.promise("retry.full-jitter")
async def test_the_upstreams_retry_after_is_waited_before_the_jitter(pauses: RecordedPauses) -> None:
    harness = a_pipeline_harness(
        ToolError(ErrorKind.RATE_LIMITED, "Slow down.", retry_after_s=2.0), DONE, sleep=pauses.sleep
    )
    harness.randomness.share = 1.0
    await harness.result(READ, budget=BudgetRequest(max_retries=1))
    assert pauses == pytest.approx([2.1])


@pytest.mark.promise("retry.full-jitter")
async def test_no_retry_begins_after_the_deadline(pauses: RecordedPauses) -> None:
    harness = a_pipeline_harness(
        ToolError(ErrorKind.RATE_LIMITED, "Slow down.", retry_after_s=60.0), DONE, sleep=pauses.sleep
    )
    error = await harness.error(READ, budget=BudgetRequest(max_retries=3, timeout_s=5.0))
    assert error.kind is ErrorKind.RATE_LIMITED
    assert error.retry_after_s == 60.0
    assert pauses == []


async def test_retries_end_with_the_last_error(pauses: RecordedPauses) -> None:
    harness = a_pipeline_harness(BROKEN, ToolError(ErrorKind.UPSTREAM_ERROR, "Still broken."), sleep=pauses.sleep)
    result = await harness.result(READ, budget=BudgetRequest(max_retries=2))
    assert result.error is not None
    assert (result.error.kind, result.attempts) == (ErrorKind.UPSTREAM_ERROR, 3)
    assert [(error.kind, attempt) for error, attempt in harness.observer.retries] == [
        (ErrorKind.NETWORK_ERROR, 1),
        (ErrorKind.UPSTREAM_ERROR, 2),
    ]


@pytest.mark.promise("retry.only-safe")
@pytest.mark.parametrize("kind", [ErrorKind.NOT_FOUND, ErrorKind.EXECUTION_ERROR, ErrorKind.OUTCOME_UNKNOWN])
async def test_a_permanent_failure_is_not_retried(pauses: RecordedPauses, kind: ErrorKind) -> None:
    harness = a_pipeline_harness(ToolError(kind, "No."), DONE, sleep=pauses.sleep)
    result = await harness.result(READ, budget=BudgetRequest(max_retries=3))
    assert result.attempts == 1


@pytest.mark.promise("retry.only-safe")
async def test_side_effect_is_never_tried_again(pauses: RecordedPauses) -> None:
    harness = a_pipeline_harness(BROKEN, DONE, sleep=pauses.sleep)
    result = await harness.result(WRITE, budget=BudgetRequest(max_retries=3))
    assert result.attempts == 1
    assert len(harness.adapter.calls) == 1


@pytest.mark.promise("retry.only-safe")
async def test_idempotent_side_effect_is_tried_again(pauses: RecordedPauses) -> None:
    harness = a_pipeline_harness(BROKEN, DONE, tools=(IDEMPOTENT_WRITE,), sleep=pauses.sleep)
    result = await harness.result(IDEMPOTENT_WRITE, budget=BudgetRequest(max_retries=1))
    assert (result.ok, result.attempts) == (True, 2)


async def test_call_of_a_writing_tool_that_only_reads_is_tried_again(pauses: RecordedPauses) -> None:
    harness = a_pipeline_harness(BROKEN, DONE, sleep=pauses.sleep)
    harness.adapter.reads_only = True
    result = await harness.result(WRITE, budget=BudgetRequest(max_retries=1))
    assert (result.ok, result.attempts) == (True, 2)


async def test_all_attempts_share_one_key(pauses: RecordedPauses) -> None:
    harness = a_pipeline_harness(BROKEN, DONE, sleep=pauses.sleep)
    await harness.result(READ, budget=BudgetRequest(max_retries=1), idempotency_key="k-1")
    assert [call.idempotency_key for call in harness.adapter.calls] == ["k-1", "k-1"]


async def test_read_that_outlives_its_deadline_is_timeout() -> None:
    harness = a_pipeline_harness(HANG)
    result = await overdue(harness.result(READ, budget=MINUTE), 61.0)
    assert result.error is not None
    assert result.error.kind is ErrorKind.TIMEOUT
    assert result.error.is_retryable
    assert harness.adapter.stopped == 1


@pytest.mark.promise("retry.unknown-outcome")
@pytest.mark.parametrize(
    "answer", [HANG, ToolError(ErrorKind.HTTP_TIMEOUT, "Too slow."), ToolError(ErrorKind.TIMEOUT, "Late.")]
)
async def test_a_side_effect_without_an_observed_end_is_outcome_unknown(answer: object) -> None:
    harness = a_pipeline_harness(answer)
    result = await overdue(harness.result(WRITE, budget=MINUTE), 61.0)
    assert result.error is not None
    assert result.error.kind is ErrorKind.OUTCOME_UNKNOWN
    assert not result.error.is_retryable
    assert result.error.details["cause"] in ("TIMEOUT", "HTTP_TIMEOUT")
    assert "before you call it again" in result.error.message


async def test_idempotent_side_effect_that_outlives_its_deadline_is_timeout() -> None:
    harness = a_pipeline_harness(HANG, tools=(IDEMPOTENT_WRITE,))
    error = await overdue(harness.error(IDEMPOTENT_WRITE, budget=MINUTE), 61.0)
    assert error.kind is ErrorKind.TIMEOUT


@pytest.mark.promise("budget.deadline-outer-bound")
async def test_caller_deadline_bounds_the_budget_that_asks_for_more() -> None:
    harness = a_pipeline_harness(HANG)
    # Were it not, the test would run into its own timeout.
    asked = harness.error(READ, deadline_s=time.monotonic() + 60.0, budget=BudgetRequest(timeout_s=600.0))
    error = await overdue(asked, 61.0)
    assert error.kind is ErrorKind.TIMEOUT


async def test_deadline_that_has_passed_runs_nothing() -> None:
    harness = a_pipeline_harness()
    error = await harness.error(WRITE, deadline_s=time.monotonic() - 1.0)
    assert error.kind is ErrorKind.TIMEOUT
    assert harness.adapter.calls == []
