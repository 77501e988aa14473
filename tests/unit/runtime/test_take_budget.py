"""Step 5 as the pipeline takes it: what it charges for a call, and that it waits where the lease states it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import pytest

from tests.fakes.clock import FixedRandomness, ManualClock
from tests.fakes.planned_calls import TIME_NOW, a_call
from toolhub_service.budget.ledger import Budgets
from toolhub_service.budget.terms import BudgetTerms
from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.runtime.route import Route
from toolhub_service.runtime.steps import take_budget
from toolhub_service.schema.tool_schemas import for_tool

VERDICT = Verdict(Effect.ALLOW, "rev", "grant:local", "ok")
CALL = a_call(TIME_NOW)
JOB = CALL._replace(call=CALL.call._replace(job_id="job-1"))


@dataclass
class FakeAdapter:
    """As much of an adapter as is asked in step 5."""

    is_resuming: bool

    def upstream(self, planned: PlannedCall) -> str:
        return "far"

    def has_side_effects(self, planned: PlannedCall) -> bool:
        return False

    def resumes(self, spec: object) -> bool:
        return self.is_resuming


def route_of(is_resuming: bool) -> Route:
    return Route(
        spec=TIME_NOW,
        adapter=cast(Any, FakeAdapter(is_resuming)),
        schemas=for_tool(TIME_NOW),
        policy_version=0,
        verdict=VERDICT,
        has_side_effects=None,
        upstream=None,
        becomes_job=False,
        derives_key=False,
    )


def books() -> Budgets:
    return Budgets(ManualClock(), FixedRandomness(), BudgetTerms(upstream_concurrency=1))


@pytest.mark.parametrize(
    ("call", "is_resuming", "slots"), [(JOB, True, 0), (JOB, False, 1), (CALL, True, 1), (CALL, False, 1)]
)
async def test_only_a_job_whose_work_is_followed_holds_no_slot(
    call: PlannedCall, is_resuming: bool, slots: int
) -> None:
    budgets = books()
    _, lease = await take_budget(route_of(is_resuming), call, VERDICT, budgets)
    assert budgets.in_flight("far") == slots
    lease.release()


async def test_a_call_is_granted_only_when_the_slot_is_its_own() -> None:
    budgets, route = books(), route_of(is_resuming=False)
    _, first = await take_budget(route, CALL, VERDICT, budgets)
    second = asyncio.create_task(take_budget(route, CALL, VERDICT, budgets))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not second.done()
    first.release()
    _, lease = await second
    assert (budgets.in_flight("far"), lease.is_pending) == (1, False)
    lease.release()
