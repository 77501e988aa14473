from __future__ import annotations

from typing import Any

import pytest

from tests.unit.runtime.pipeline_harness import (
    PLAN_TTL_S,
    POLICY,
    READ,
    WRITE,
    PipelineHarness,
    a_pipeline_harness,
    a_tool,
)
from toolhub_service.domain.call import BudgetRequest
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.result import StepName
from toolhub_service.domain.verdict import Effect

PLAN_FIRST = POLICY + "rules: [{id: look-first, effect: REQUIRE_PLAN, tools: [test/text.write], reason: Look first.}]\n"
FIRST_FIVE = list(StepName)[:5]


@pytest.fixture
def harness() -> PipelineHarness:
    return a_pipeline_harness(policy=PLAN_FIRST)


@pytest.mark.promise("plan.shows-without-doing")
async def test_dry_run_shows_the_completed_call_and_runs_nothing(harness: PipelineHarness) -> None:
    plan = await harness.plan(WRITE, {"text": "hi"})
    assert plan.args == {"text": "hi", "times": 1}
    assert plan.defaults_applied == ("/times",)
    assert plan.effects == ("Say it.",)
    assert (plan.tool, plan.tool_version, plan.tool_digest) == (WRITE.name, WRITE.version, WRITE.digest)
    assert plan.expires_at_unix_ms == harness.clock.unix_ms() + PLAN_TTL_S * 1_000
    assert harness.adapter.calls == []


@pytest.mark.promise("plan.shows-without-doing")
async def test_a_dry_run_walks_the_first_five_steps_and_states_what_each_decided(harness: PipelineHarness) -> None:
    plan = await harness.plan(WRITE, {"text": "hi"})
    assert [verdict.step for verdict in plan.steps] == FIRST_FIVE
    assert all(verdict.ok for verdict in plan.steps)
    policy = plan.steps[3]
    assert policy.rule_id == "look-first"
    assert policy.reason == "Look first. Commit this plan by its digest."


async def test_a_dry_run_of_a_refused_call_names_the_step_and_seals_nothing() -> None:
    harness = a_pipeline_harness(
        policy=POLICY + "rules: [{id: never, effect: DENY, reason: Never., remedy: Ask somebody.}]\n"
    )
    plan = await harness.plan(WRITE, {"text": "hi"})
    last = plan.steps[-1]
    assert (last.step, last.ok, last.rule_id) == (StepName.CHECK_POLICY, False, "never")
    assert (last.reason, last.remedy) == ("Never.", "Ask somebody.")
    assert last.error is not None
    assert last.error.kind is ErrorKind.POLICY_DENIED
    assert plan.plan_digest == ""


async def test_dry_run_of_an_unknown_tool_is_a_plan_that_stops_at_the_first_step(harness: PipelineHarness) -> None:
    plan = await harness.plan("test/unknown")
    assert [(verdict.step, verdict.ok) for verdict in plan.steps] == [(StepName.RESOLVE, False)]


async def test_side_effect_that_needs_a_plan_is_refused_without_one(harness: PipelineHarness) -> None:
    error = await harness.error(WRITE, {"text": "hi"})
    assert error.kind is ErrorKind.PLAN_REQUIRED
    assert error.details["rule_id"] == "look-first"
    assert harness.adapter.calls == []
    assert "adapter.preconditions" not in harness.visited, "nothing is looked at for a call that shows no plan"


@pytest.mark.promise("plan.commits-what-was-shown")
async def test_plan_that_was_shown_can_be_committed(harness: PipelineHarness) -> None:
    plan = await harness.plan(WRITE, {"text": "hi"})
    result = await harness.result(WRITE, {"text": "hi"}, plan_digest=plan.plan_digest)
    assert result.ok
    assert len(harness.adapter.calls) == 1
    assert harness.adapter.calls[0].verdict.effect is Effect.ALLOW


async def test_arguments_that_mean_the_same_are_the_same_plan(harness: PipelineHarness) -> None:
    """The hub compares completed arguments: a default written out changes nothing."""
    plan = await harness.plan(WRITE, {"text": "hi"})
    result = await harness.result(WRITE, {"times": 1, "text": "hi"}, plan_digest=plan.plan_digest)
    assert result.ok


async def differs(harness: PipelineHarness, spec: Any = WRITE, args: Any = None, **fields: Any) -> list[str]:
    error = await harness.error(spec, {"text": "hi"} if args is None else args, **fields)
    assert error.kind is ErrorKind.PLAN_REQUIRED
    assert "DRY_RUN again" in error.message
    assert harness.adapter.calls == []
    named = error.details["differs"]
    assert isinstance(named, list)
    return [str(name) for name in named]


@pytest.mark.promise("plan.commits-what-was-shown")
async def test_other_arguments_are_not_the_plan(harness: PipelineHarness) -> None:
    plan = await harness.plan(WRITE, {"text": "hi"})
    assert await differs(harness, args={"text": "ho"}, plan_digest=plan.plan_digest) == ["arguments"]


@pytest.mark.promise("plan.commits-what-was-shown")
async def test_other_principal_is_not_the_plan(harness: PipelineHarness) -> None:
    plan = await harness.plan(WRITE, {"text": "hi"})
    assert await differs(harness, principal="mallory", plan_digest=plan.plan_digest) == ["principal"]


@pytest.mark.promise("plan.commits-what-was-shown")
async def test_changed_tool_definition_is_not_the_plan(harness: PipelineHarness) -> None:
    plan = await harness.plan(WRITE, {"text": "hi"})
    changed = a_tool(WRITE.name, capability="write:fs", description="Say a text, and delete everything.")
    harness.catalog.register(changed, replace=True)
    assert await differs(harness, plan_digest=plan.plan_digest) == ["tool definition"]


@pytest.mark.promise("plan.commits-what-was-shown")
async def test_changed_policy_is_not_the_plan(harness: PipelineHarness) -> None:
    plan = await harness.plan(WRITE, {"text": "hi"})
    assert harness.policy.replace(PLAN_FIRST + "limits: [{id: some, rate_per_s: 5}]\n").applied
    assert await differs(harness, plan_digest=plan.plan_digest) == ["policy verdict"]


@pytest.mark.promise("plan.expires-and-cannot-be-forged")
async def test_expired_plan_is_refused(harness: PipelineHarness) -> None:
    plan = await harness.plan(WRITE, {"text": "hi"})
    harness.clock.advance(PLAN_TTL_S)
    assert await differs(harness, plan_digest=plan.plan_digest) == ["expired"]


@pytest.mark.promise("plan.expires-and-cannot-be-forged")
@pytest.mark.parametrize("forge", ["v1.0.x.y", "v2.0.x.y", "nonsense", "{}x", "v2{}"])
async def test_forged_plan_is_refused(harness: PipelineHarness, forge: str) -> None:
    plan = await harness.plan(WRITE, {"text": "hi"})
    assert await differs(harness, plan_digest=forge.format(plan.plan_digest)) == ["forged"]


async def test_digest_with_a_later_expiry_written_in_is_forged(harness: PipelineHarness) -> None:
    plan = await harness.plan(WRITE, {"text": "hi"})
    version, expiry, parts, mac = plan.plan_digest.split(".")
    later = ".".join((version, str(int(expiry) + 10**9), parts, mac))
    assert await differs(harness, plan_digest=later) == ["forged"]


async def test_wrong_digest_refuses_a_call_that_needs_no_plan_too(harness: PipelineHarness) -> None:
    """Who sends a digest means exactly what was shown."""
    assert await differs(harness, READ, {}, plan_digest="nonsense") == ["forged"]


async def test_dry_run_takes_no_notice_of_a_digest(harness: PipelineHarness) -> None:
    assert (await harness.plan(WRITE, {"text": "hi"}, plan_digest="nonsense")).plan_digest


@pytest.mark.promise("plan.never-lifts-a-deny")
async def test_plan_never_lifts_a_denial_and_the_denial_is_what_is_reported() -> None:
    harness = a_pipeline_harness(policy=PLAN_FIRST)
    plan = await harness.plan(WRITE, {"text": "hi"})
    harness.policy.replace(PLAN_FIRST.replace("REQUIRE_PLAN", "DENY"))
    error = await harness.error(WRITE, {"text": "hi"}, plan_digest=plan.plan_digest)
    assert not harness.adapter.calls
    assert error.kind is ErrorKind.POLICY_DENIED


@pytest.mark.promise("plan.shows-without-doing")
async def test_dry_run_gives_its_budget_back() -> None:
    limits = "limits: [{id: two-a-day, quota: 2, rate_per_s: 0.001, burst: 2}]\n"
    harness = a_pipeline_harness(policy=POLICY + limits)
    for _ in range(5):
        assert (await harness.plan(WRITE, {"text": "hi"})).plan_digest
    assert harness.budgets.in_flight(WRITE.upstream_key) == 0
    assert [(await harness.result(WRITE)).ok for _ in range(3)] == [True, True, False]


async def test_dry_run_does_not_count_as_a_call_of_its_request(harness: PipelineHarness) -> None:
    one = BudgetRequest(max_tool_calls=1)
    for _ in range(3):
        await harness.plan(WRITE, {"text": "hi"}, budget=one)
    assert (await harness.result(READ, budget=one)).ok
    assert (await harness.error(READ, budget=one)).kind is ErrorKind.BUDGET_EXCEEDED
