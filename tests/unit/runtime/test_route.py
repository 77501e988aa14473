"""Routes: what is kept of a principal and a tool holds for one version of policy and catalog, and not a call longer."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.unit.runtime.pipeline_harness import (
    HANG,
    POLICY,
    READ,
    WRITE,
    PipelineHarness,
    a_call,
    a_pipeline_harness,
    a_tool,
)
from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.tool import ToolState
from toolhub_service.policy.live import Difference
from toolhub_service.runtime import route

DENY = POLICY + "rules: [{id: never, effect: DENY, tools: [test/text.read]}]\n"
CONDITIONAL = POLICY + "rules: [{id: shouting, effect: DENY, when: 'args.text == \"HI\"'}]\n"


async def denied_by(harness: PipelineHarness) -> str | None:
    result = await harness.result(READ)
    return None if result.error is None else str(result.error.details.get("rule_id"))


async def test_route_is_made_once_for_a_principal_and_a_tool() -> None:
    harness = a_pipeline_harness()
    routes = harness.pipeline.routes
    first = routes.of(a_call(READ))
    assert routes.of(a_call(READ)) is first
    assert routes.of(a_call(WRITE)) is not first
    assert routes.of(a_call(READ, principal="other")) is not first
    assert len(routes) == 3


async def test_every_policy_that_comes_into_force_holds_for_the_next_call() -> None:
    harness = a_pipeline_harness()
    for _ in range(3):
        assert await denied_by(harness) is None
        assert harness.policy.replace(DENY).applied
        assert await denied_by(harness) == "never"
        assert len(harness.pipeline.routes) == 1
        assert harness.policy.replace(POLICY).applied
    assert {event.policy_revision for event in harness.events[:2]} != {harness.policy.revision}


async def test_policy_that_is_refused_changes_no_route() -> None:
    harness = a_pipeline_harness()
    before = harness.pipeline.routes.of(a_call(READ))
    assert not harness.policy.replace("rules: 7").applied
    assert harness.pipeline.routes.of(a_call(READ)) is before


async def test_definition_that_changes_is_the_one_of_the_next_call() -> None:
    harness = a_pipeline_harness()
    digests = [(await harness.result(READ)).tool_digest]
    changed = a_tool(READ.name, read_only=True, description="Another.")
    harness.catalog.register(changed, replace=True)
    digests.append((await harness.result(READ)).tool_digest)
    assert digests == [READ.digest, changed.digest]


@pytest.mark.parametrize(
    ("reason", "expected"), [("The schema changed.", "The schema changed."), ("", "it is not approved.")]
)
async def test_refusal_of_a_quarantined_tool_gives_the_reason(reason: str, expected: str) -> None:
    harness = a_pipeline_harness()
    harness.catalog.register(replace(READ, state=ToolState.QUARANTINED, state_reason=reason), replace=True)
    assert f"awaits an operator's decision: {expected} " in (await harness.error(READ)).message


@pytest.mark.parametrize(
    ("state", "kind"),
    [(ToolState.QUARANTINED, ErrorKind.TOOL_QUARANTINED), (ToolState.UNAVAILABLE, ErrorKind.TOOL_UNAVAILABLE)],
)
async def test_tool_that_is_withdrawn_is_refused_from_the_next_call_on(state: ToolState, kind: ErrorKind) -> None:
    harness = a_pipeline_harness()
    assert (await harness.result(READ)).ok
    harness.catalog.register(replace(READ, state=state), replace=True)
    assert (await harness.error(READ)).kind is kind
    harness.catalog.unregister(READ.name)
    assert (await harness.error(READ)).kind is ErrorKind.TOOL_NOT_FOUND
    assert len(harness.adapter.calls) == 1


async def test_calls_under_way_while_policy_and_catalog_change_end_by_what_they_began_with() -> None:
    harness = a_pipeline_harness(HANG)
    running = asyncio.create_task(harness.pipeline.invoke(a_call(READ)))
    await harness.adapter.started.wait()
    before = harness.policy.revision
    assert harness.policy.replace(DENY).applied
    harness.catalog.register(a_tool(READ.name, read_only=True, description="Another."), replace=True)
    assert await denied_by(harness) == "never"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    denied, cancelled = harness.events
    assert (denied.policy_revision, denied.tool_digest == READ.digest) == (harness.policy.revision, False)
    assert (cancelled.policy_revision, cancelled.tool_digest) == (before, READ.digest)


async def test_many_calls_between_changes_never_meet_a_dead_version() -> None:
    harness = a_pipeline_harness()

    async def call(number: int) -> None:
        for _ in range(20):
            result = await harness.pipeline.invoke(a_call(READ, principal=f"p{number}"))
            assert isinstance(result, ToolResult)
            event = harness.events[-1]
            assert (event.policy_revision, result.ok) == (harness.policy.revision, event.rule_id != "never")
            await asyncio.sleep(0)

    async def change() -> None:
        for number in range(20):
            assert harness.policy.replace(DENY if number % 2 else POLICY).applied
            await asyncio.sleep(0)

    await asyncio.gather(*map(call, range(5)), change())


async def test_verdict_is_kept_only_where_nothing_of_the_call_has_a_say() -> None:
    harness = a_pipeline_harness(policy=CONDITIONAL)
    assert harness.pipeline.routes.of(a_call(READ)).verdict is None
    assert (await harness.result(READ, {"text": "hi"})).ok
    assert (await harness.error(READ, {"text": "HI"})).details["rule_id"] == "shouting"


@pytest.mark.parametrize(
    ("context", "rule"),
    [
        ({"agent_id": "somebody"}, "identity"),
        ({"user_id": "somebody"}, "identity"),
        ({"permissions": frozenset({"write:fs"})}, "permissions"),
    ],
)
async def test_call_for_another_or_with_less_is_decided_for_itself(context: dict[str, object], rule: str) -> None:
    harness = a_pipeline_harness()
    assert (await harness.result(READ)).ok
    error = await harness.error(READ, **context)  # type: ignore[arg-type]
    assert error.details["rule_id"] == rule


async def test_candidate_that_watches_sees_calls_of_routes_that_were_made_before() -> None:
    harness = a_pipeline_harness()
    differences: list[Difference] = []
    harness.policy._on_difference = differences.append
    assert (await harness.result(READ)).ok
    assert harness.policy.shadow(DENY).applied
    assert (await harness.result(READ)).ok
    assert [difference.shadow.rule_id for difference in differences] == ["never"]
    harness.policy.shadow(None)
    assert (await harness.result(READ)).ok
    assert len(differences) == 1


async def test_routes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "_ROUTES_MAX", 3)
    routes = a_pipeline_harness().pipeline.routes
    for number in range(10):
        call = a_call(READ)._replace(principal=Principal(f"p{number}"))
        assert routes.of(call).spec is READ
    assert len(routes) == 3
