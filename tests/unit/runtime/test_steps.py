"""The steps one by one: what each refuses, and with which error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.runtime.pipeline_harness import POLICY, READ, WRITE, a_pipeline_harness, a_tool
from toolhub_service.domain.call import BudgetRequest, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.tool import ToolKind, ToolSpec, ToolState
from toolhub_service.runtime.route import UnreadTool

ADMIN_ONLY = """
extends: none
grants:
  - {principals: [admin], capabilities: [read:fs, write:fs]}
  - {principals: [local], capabilities: [read:fs]}
"""


class TestResolve:
    async def test_unknown_tool_names_its_neighbours(self) -> None:
        error = await a_pipeline_harness().error("test/text.reed")
        assert error.kind is ErrorKind.TOOL_NOT_FOUND
        assert error.details["did_you_mean"] == ["test/text.read", "test/text.write"]

    @pytest.mark.promise("registry.hidden-is-hidden")
    async def test_neighbours_the_caller_may_not_call_are_not_named(self) -> None:
        error = await a_pipeline_harness(policy=ADMIN_ONLY).error("test/text.writ")
        assert error.details["did_you_mean"] == ["test/text.read"]
        assert "text.write" not in error.message

    async def test_an_unknown_name_is_answered_with_how_to_search(self) -> None:
        error = await a_pipeline_harness().error("crm/zzz")
        assert error.details["did_you_mean"] == []
        assert "`toolhub tools search`" in error.message

    @pytest.mark.promise("registry.hidden-is-hidden")
    @pytest.mark.parametrize("asked", ["test/text.reed", "read_text"], ids=["a near name", "the same words"])
    async def test_quarantined_neighbours_are_not_named(self, asked: str) -> None:
        quarantined = a_tool("test/text.read", state=ToolState.QUARANTINED, state_reason="changed")
        error = await a_pipeline_harness(tools=(quarantined, WRITE)).error(asked)
        assert "test/text.read" not in str(error.details["did_you_mean"])
        assert "test/text.read" not in error.message

    async def test_an_unknown_name_without_neighbours_points_to_the_search(self) -> None:
        error = await a_pipeline_harness().error("zzz")
        assert "SearchTools" in error.message

    async def test_names_beyond_many_hidden_ones_are_named_and_few_tools_are_judged(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Judging each of 20,000 tools took a second of the event loop."""
        hidden = [a_tool(f"test/text.reed{number:03}", capability="write:fs") for number in range(300)]
        more = [a_tool(f"test/zzz{number:04}", capability="write:fs") for number in range(3_000)]
        harness = a_pipeline_harness(tools=(READ, *hidden, *more), policy=ADMIN_ONLY)
        judged: list[str] = []
        could_allow = harness.policy.could_allow

        def count_judged(principal: Principal, spec: ToolSpec) -> bool:
            judged.append(spec.name)
            return could_allow(principal, spec)

        monkeypatch.setattr(harness.policy, "could_allow", count_judged)
        error = await harness.error("test/text.reed")
        assert error.details["did_you_mean"] == [READ.name]
        assert 300 < len(judged) <= 500

    async def test_tool_whose_source_nobody_has_read_yet_may_be_called_later(self) -> None:
        harness = a_pipeline_harness()
        missing = UnreadTool("no answer yet.", (a_tool("slow/read", state=ToolState.UNAVAILABLE),))
        pipeline = replace(harness.pipeline, unread=lambda tool: missing if tool.startswith("slow/") else None)
        error = await replace(harness, pipeline=pipeline).error("slow/read")
        assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True)
        assert error.message.endswith("because its source cannot: no answer yet.")
        assert (await replace(harness, pipeline=pipeline).error("zzz")).kind is ErrorKind.TOOL_NOT_FOUND
        exported = await replace(harness, pipeline=pipeline).error("slow__read")
        assert (exported.kind, exported.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True)

    @pytest.mark.parametrize(
        ("state", "kind", "retryable"),
        [
            (ToolState.QUARANTINED, ErrorKind.TOOL_QUARANTINED, False),
            (ToolState.UNAVAILABLE, ErrorKind.TOOL_UNAVAILABLE, True),
            (ToolState.DISABLED, ErrorKind.TOOL_UNAVAILABLE, False),
        ],
    )
    async def test_a_tool_that_is_not_active_states_why(
        self, state: ToolState, kind: ErrorKind, retryable: bool
    ) -> None:
        spec = replace(a_tool("test/off", state=state, state_reason="no key is configured"), kind=ToolKind.MCP)
        error = await a_pipeline_harness(tools=(spec,)).error(spec)
        assert error.kind is kind
        assert error.details["reason"] == "no key is configured"
        assert error.is_retryable is retryable

    async def test_a_built_in_tool_that_lacks_a_package_is_not_retryable(self) -> None:
        spec = a_tool("test/off", state=ToolState.UNAVAILABLE, state_reason="toolhub extras install browser")
        error = await a_pipeline_harness(tools=(spec,)).error(spec)
        assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, False)


class TestValidateInput:
    @pytest.mark.promise("errors.repairable-arguments")
    async def test_each_broken_rule_is_a_violation_a_model_can_repair(self) -> None:
        error = await a_pipeline_harness().error(READ, {"text": 5, "tims": 2})
        assert error.kind is ErrorKind.INPUT_SCHEMA_INVALID
        by_keyword = {violation.keyword: violation for violation in error.violations}
        assert by_keyword["type"].path == "/text"
        assert by_keyword["type"].expected == "string"
        assert "times" in by_keyword["additionalProperties"].hint

    @pytest.mark.promise("defaults.by-the-hub")
    async def test_arguments_are_checked_as_they_were_sent(self) -> None:
        """A default never repairs what the model got wrong."""
        error = await a_pipeline_harness().error(READ, {"times": "1"})
        assert error.violations[0].path == "/times"

    async def test_arguments_that_could_not_be_read_are_refused_with_that_error(self) -> None:
        unreadable = ToolError(ErrorKind.INVALID_INPUT, "Not JSON.")
        assert await a_pipeline_harness().error(READ, args_error=unreadable) == unreadable

    @pytest.mark.promise("purpose.required")
    @pytest.mark.parametrize("purpose", ["", "  \n"])
    async def test_side_effect_without_a_purpose_is_refused(self, purpose: str) -> None:
        error = await a_pipeline_harness().error(WRITE, purpose=purpose)
        assert error.kind is ErrorKind.INVALID_INPUT
        assert error.details["field"] == "purpose"

    async def test_read_needs_no_purpose(self) -> None:
        assert (await a_pipeline_harness().result(READ, purpose="")).ok


class TestApplyDefaults:
    @pytest.mark.promise("defaults.by-the-hub")
    async def test_the_hub_fills_in_defaults_and_lists_them(self) -> None:
        harness = a_pipeline_harness()
        result = await harness.result(READ, {"text": "hi"})
        assert harness.adapter.calls[0].args == {"text": "hi", "times": 1}
        assert result.defaults_applied == ("/times",)

    async def test_sent_arguments_stay_as_they_were_sent(self) -> None:
        harness = a_pipeline_harness()
        await harness.result(READ, {"times": 3})
        assert harness.adapter.calls[0].call.args == {"times": 3}
        assert harness.adapter.calls[0].args == {"times": 3}


class TestCheckPolicy:
    @pytest.mark.promise("policy.explained")
    async def test_a_missing_capability_is_named_with_whom_to_ask(self) -> None:
        error = await a_pipeline_harness(policy=ADMIN_ONLY).error(WRITE)
        assert error.kind is ErrorKind.POLICY_DENIED
        assert error.details["missing_capabilities"] == ["write:fs"]
        assert error.details["remedy"] == "Ask an operator to allow it, and name rule_id capabilities."

    async def test_a_caller_without_a_grant_is_denied(self) -> None:
        error = await a_pipeline_harness(policy=ADMIN_ONLY).error(READ, principal="stranger")
        assert error.details["rule_id"] == "default"

    @pytest.mark.promise("policy.permissions-narrow")
    async def test_permissions_of_the_message_only_narrow(self) -> None:
        harness = a_pipeline_harness(policy=ADMIN_ONLY)
        assert (await harness.result(READ, permissions=frozenset({"read:fs", "write:fs"}))).ok
        assert (
            await harness.error(WRITE, permissions=frozenset({"read:fs", "write:fs"}))
        ).kind is ErrorKind.POLICY_DENIED
        error = await harness.error(READ, permissions=frozenset({"write:fs"}))
        assert error.details["rule_id"] == "permissions"

    async def test_approval_is_asked_for_by_its_own_kind(self) -> None:
        rule = "rules: [{id: ask, effect: REQUIRE_APPROVAL, tools: [test/text.write]}]\n"
        error = await a_pipeline_harness(policy=POLICY + rule).error(WRITE)
        assert error.kind is ErrorKind.APPROVAL_REQUIRED
        assert error.details["rule_id"] == "ask"

    @pytest.mark.parametrize("field", ["agent_id", "user_id"])
    async def test_acting_for_another_needs_the_right_to(self, field: str) -> None:
        other: dict[str, Any] = {field: "somebody-else"}
        own: dict[str, Any] = {field: "local"}
        error = await a_pipeline_harness().error(READ, **other)
        assert error.kind is ErrorKind.PERMISSION_DENIED
        assert (await a_pipeline_harness().result(READ, **own)).ok
        assert (await a_pipeline_harness(policy=POLICY + "impersonate: [local]\n").result(READ, **other)).ok


class TestTakeBudget:
    @pytest.mark.promise("budget.rate-and-quota")
    async def test_a_rate_states_when_to_retry(self) -> None:
        harness = a_pipeline_harness(policy=POLICY + "limits: [{id: slow, rate_per_s: 0.5, burst: 1}]\n")
        assert (await harness.result(READ)).ok
        error = await harness.error(READ)
        assert error.kind is ErrorKind.RATE_LIMITED
        assert error.retry_after_s == pytest.approx(2.0, abs=0.1)

    @pytest.mark.promise("budget.calls-of-a-request")
    async def test_calls_of_a_request_are_counted(self) -> None:
        harness = a_pipeline_harness()
        two = BudgetRequest(max_tool_calls=2)
        assert [(await harness.result(READ, budget=two)).ok for _ in range(2)] == [True, True]
        error = await harness.error(READ, budget=two)
        assert error.kind is ErrorKind.BUDGET_EXCEEDED
        assert error.details["used_tool_calls"] == 2

    async def test_a_failing_upstream_is_given_a_rest(self) -> None:
        far = replace(a_tool("test/far.read"), upstream="https://far.example")
        harness = a_pipeline_harness(ToolError(ErrorKind.UPSTREAM_ERROR, "It failed."), tools=(far,))
        for _ in range(10):
            await harness.error(far)
        error = await harness.error(far)
        assert error.kind is ErrorKind.CIRCUIT_OPEN
        assert error.retry_after_s is not None
        assert len(harness.adapter.calls) == 10

    @pytest.mark.promise("breaker.per-upstream")
    async def test_one_failing_upstream_does_not_close_the_others(self) -> None:
        harness = a_pipeline_harness(
            *[ToolError(ErrorKind.UPSTREAM_ERROR, "It failed.")] * 10, Outcome(value={"text": "x"})
        )
        for _ in range(10):
            await harness.error(READ)
        assert (await harness.result(WRITE)).ok


class TestValidateOutput:
    @pytest.mark.promise("output.validated")
    @pytest.mark.parametrize("is_large", [False, True])
    async def test_answer_that_breaks_its_schema_is_not_passed_on(self, is_large: bool) -> None:
        result = await a_pipeline_harness(Outcome(value={"text": 5}, is_large=is_large)).result(READ)
        assert result.error is not None
        assert result.error.kind is ErrorKind.OUTPUT_SCHEMA_INVALID
        assert result.error.violations[0].path == "/text"
        assert result.value is None

    async def test_after_a_side_effect_it_warns_against_repeating(self) -> None:
        error = await a_pipeline_harness(Outcome(value={"text": 5})).error(WRITE)
        assert "do not repeat it blindly" in error.message

    async def test_errors_are_never_held_to_the_output_schema(self) -> None:
        error = await a_pipeline_harness(ToolError(ErrorKind.NOT_FOUND, "None.")).error(READ)
        assert error.kind is ErrorKind.NOT_FOUND
