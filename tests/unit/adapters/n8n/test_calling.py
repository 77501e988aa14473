"""Workflows that answer with their results, and outcomes of calls without a clear answer."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.fakes.artifacts import kept_in
from tests.fakes.http_server import always, response, serving
from tests.fakes.n8n import FOREVER, How
from tests.fakes.remote_harness import RecordingSink
from tests.overtaken import overtaken
from tests.unit.adapters.n8n.flows import FLOWS, code, dedupes, flow, responds, sets
from tests.unit.adapters.n8n.n8n_harness import KEY_HEADER, SYNC, N8nHarness, against, before, n8n_harness
from toolhub_service.adapters.n8n.kind import BusinessError, N8nWorkflow
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.result import Outcome
from toolhub_service.sections.source_config import ToolTerms

NAMES = [made["name"] for made in FLOWS if made["name"] != "asks"]
GAVE_UP = [408, 499, 502, 504, 520, 522, 524]
ALL = {**dict.fromkeys(NAMES, SYNC), "asks": N8nWorkflow(method="GET")}


@pytest.fixture
async def harness() -> AsyncIterator[N8nHarness]:
    async with n8n_harness(ALL) as harness:
        yield harness


@pytest.fixture
async def blind() -> AsyncIterator[N8nHarness]:
    """Without an API key."""
    async with n8n_harness(ALL, with_api=False) as harness:
        yield harness


def _facts(outcome: Outcome | ToolError) -> dict[str, str]:
    assert isinstance(outcome, Outcome), outcome.message
    return dict(outcome.evidence[0].attributes)


async def test_arguments_are_the_body_and_the_answer_is_the_result(blind: N8nHarness) -> None:
    assert await blind.value("echo", {"a": [1, {"b": "ü"}]}) == {"echo": {"a": [1, {"b": "ü"}]}}
    (asked,) = blind.n8n.asked("POST", "/webhook/echo")
    assert asked.headers["content-type"] == "application/json"


async def test_an_integer_of_any_size_arrives_as_it_was_sent(blind: N8nHarness) -> None:
    assert await blind.value("echo", {"n": 2**80}) == {"echo": {"n": 2**80}}


async def test_arguments_of_get_are_the_query(blind: N8nHarness) -> None:
    value = await blind.value("asks", {"q": "a&b=c", "n": 1.5, "yes": True, "none": None})
    assert value == {"query": {"q": "a&b=c", "n": "1.5", "yes": "true"}}


async def test_nested_arguments_of_get_are_refused_before_anything_is_sent(blind: N8nHarness) -> None:
    error = await blind.failure("asks", {"q": {"nested": 1}})
    assert (error.kind, error.details["field"]) == (ErrorKind.INVALID_INPUT, "q")
    assert not blind.n8n.asked("GET", "/webhook/*")


@pytest.mark.parametrize("how", [How.WRONG_TYPE, How.DRIP])
async def test_json_is_recognised_by_its_content_under_any_media_type(blind: N8nHarness, how: How) -> None:
    blind.n8n.fails("/webhook/echo", how, every_s=0.0)
    assert await blind.value("echo", {"a": 1}) == {"echo": {"a": 1}}


@pytest.mark.promise("n8n.webhook-secret")
async def test_evidence_states_what_ran_where(harness: N8nHarness) -> None:
    flow_of = harness.n8n.workflows["echo"]
    facts = _facts(await harness.run("echo", {"a": 1}))
    assert "/webhook" not in repr(facts)
    assert (facts["workflow_id"], facts["workflow_version"]) == ("echo", flow_of.version_id)
    assert facts["http_status"] == "200"
    assert facts["duration_ms"].isdecimal()


async def test_an_execution_that_the_answer_names_is_in_the_evidence() -> None:
    flows = [flow("named", "lastNode", sets("{ executionId: $execution.id }"))]
    async with n8n_harness({"named": SYNC}, flows=flows, with_api=False) as harness:
        assert _facts(await harness.run("named"))["execution_id"] == "1"


class TestKeys:
    async def _keys(self, harness: N8nHarness) -> list[str]:
        return [asked.headers[KEY_HEADER] for asked in harness.n8n.asked("POST", "/webhook/echo")]

    async def test_the_same_call_is_sent_under_the_same_key(self, blind: N8nHarness) -> None:
        for _ in range(2):
            await blind.value("echo", key="k-1")
        first, second = await self._keys(blind)
        assert first == second

    async def test_another_principal_or_another_call_has_another_key(self, blind: N8nHarness) -> None:
        await blind.value("echo", key="k-1")
        await blind.value("echo", key="k-1", principal="somebody else")
        await blind.value("echo", call_id="call-1")
        await blind.value("echo", call_id="call-2")
        keys = await self._keys(blind)
        assert len(set(keys)) == 4

    async def test_a_key_that_would_break_a_header_is_harmless(self, blind: N8nHarness) -> None:
        await blind.value("echo", key="k\r\nx-evil: 1\x00ü")
        (asked,) = blind.n8n.asked("POST", "/webhook/echo")
        assert "x-evil" not in asked.headers

    async def test_the_key_stands_in_the_body_where_it_is_wanted(self) -> None:
        terms = N8nWorkflow(idempotency_field="requestId")
        async with n8n_harness({"echo": terms}, with_api=False) as harness:
            value = await harness.value("echo", {"a": 1}, key="k-1")
            (asked,) = harness.n8n.asked("POST", "/webhook/echo")
            assert value["echo"] == {"a": 1, "requestId": asked.headers[KEY_HEADER]}

    async def test_an_argument_in_the_keys_place_is_refused(self) -> None:
        terms = N8nWorkflow(idempotency_field="requestId")
        async with n8n_harness({"echo": terms}, with_api=False) as harness:
            error = await harness.failure("echo", {"requestId": "mine"})
            assert error.kind is ErrorKind.INVALID_INPUT
            assert harness.n8n.starts("echo") == 0


class TestAnswers:
    @pytest.mark.parametrize("name", ["nobody", "off"])
    async def test_an_unknown_webhook_is_not_retried_and_states_the_remedy(self, name: str) -> None:
        async with n8n_harness({name: SYNC}, with_api=False) as harness:
            harness.n8n.add(flow("off", "lastNode"), active=False)
            error = await harness.failure(name)
        assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, False)
        assert error.details["reason"] == "WEBHOOK_UNKNOWN"
        assert "activate" in error.message
        assert "/opt/" not in repr(error)
        assert "hint" not in repr(error)

    async def test_a_wrong_method_is_distinguished(self) -> None:
        async with n8n_harness({"echo": N8nWorkflow(method="PUT")}, with_api=False) as harness:
            error = await harness.failure("echo")
        assert (error.kind, error.details["reason"]) == (ErrorKind.TOOL_UNAVAILABLE, "WEBHOOK_METHOD")

    async def test_a_wrong_credential_is_the_operators_to_correct(self) -> None:
        guarded = flow("guarded", "lastNode", webhook={"authentication": "headerAuth"})
        guarded["nodes"][0]["credentials"] = {"httpHeaderAuth": {"id": "cred", "name": "x"}}
        async with n8n_harness({"guarded": SYNC}, flows=[guarded], with_api=False) as harness:
            harness.n8n.world.credentials["cred"] = ("X-Hub-Token", "s3cret")
            error = await harness.failure("guarded")
            assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, False)
            assert error.details["setting"] == "headers"
            right = replace(SYNC, headers={"x-hub-token": "s3cret"})
            async with before(harness.n8n, {"guarded": right}, with_api=False) as trusted:
                assert isinstance(await trusted.run("guarded"), Outcome)

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (403, ErrorKind.UPSTREAM_ERROR),
            (404, ErrorKind.UPSTREAM_ERROR),
            (409, ErrorKind.UPSTREAM_ERROR),
            (413, ErrorKind.UPSTREAM_ERROR),
            (422, ErrorKind.UPSTREAM_ERROR),
            (302, ErrorKind.UPSTREAM_ERROR),
            (500, ErrorKind.EXECUTION_ERROR),
        ],
    )
    async def test_an_error_answer_of_a_workflow_is_quoted(self, status: int, kind: ErrorKind) -> None:
        flows = [flow("says", "responseNode", responds('{"why":"s3cret reasons","stack":"at /opt/x"}', status))]
        async with n8n_harness({"says": SYNC}, flows=flows, with_api=False) as harness:
            error = await harness.failure("says")
        assert (error.kind, error.is_retryable) == (kind, False)
        assert error.upstream is not None
        assert error.upstream.status == status
        assert "*** reasons" in error.message
        assert "/opt" not in repr(error)

    @pytest.mark.parametrize("how", [How.BUSY, How.LIMITED])
    async def test_a_busy_server_may_be_asked_again_later(self, blind: N8nHarness, how: How) -> None:
        blind.n8n.fails("/webhook/*", how, retry_after="7")
        error = await blind.failure("echo")
        assert (error.kind, error.is_retryable, error.retry_after_s) == (ErrorKind.TOOL_UNAVAILABLE, True, 7.0)
        assert blind.n8n.starts("echo") == 0

    async def test_a_server_that_is_down_has_run_nothing(self, blind: N8nHarness) -> None:
        call = await blind.call("echo")
        await blind.n8n.down()
        error = await blind.ended(blind.adapter.execute(call, RecordingSink()))
        await blind.n8n.up()
        assert isinstance(error, ToolError)
        assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True)

    async def test_a_page_of_html_is_text(self, blind: N8nHarness) -> None:
        blind.n8n.fails("/webhook/*", How.GARBAGE)
        assert "It works!" in (await blind.value("echo"))["text"]

    async def test_json_that_is_cut_is_no_result(self, blind: N8nHarness) -> None:
        blind.n8n.fails("/webhook/*", How.TRUNCATED)
        error = await blind.failure("echo", {"a": 1})
        assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, False)
        assert "ran" in error.message

    async def test_an_endless_answer_is_cut_and_states_that_the_call_ran(self) -> None:
        async with n8n_harness({"echo": SYNC}, with_api=False, max_response_bytes=1_000) as harness:
            harness.n8n.fails("/webhook/*", How.HUGE, size_bytes=1_000_000)
            error = await harness.failure("echo")
        assert (error.kind, error.details["max_bytes"]) == (ErrorKind.HTTP_TOO_LARGE, 1_000)
        assert "Its effect is done" in error.message

    async def test_a_workflow_that_only_started_is_never_reported_as_done(self, harness: N8nHarness) -> None:
        outcome = await harness.run("fires")
        assert _facts(outcome)["started_only"] == "true"
        assert isinstance(outcome, Outcome)
        assert outcome.value == {"message": "Workflow was started"}
        assert "only started" in outcome.evidence[0].summary


class TestErrorsInWorkflows:
    async def test_the_cause_is_looked_up(self, harness: N8nHarness) -> None:
        error = await harness.failure("breaks")
        assert error.kind is ErrorKind.EXECUTION_ERROR
        assert "boom from workflow" in error.message
        assert "`Boom`" in error.message
        assert error.details["execution_id"] == "1"
        assert "/opt/" not in repr(error)

    async def test_without_an_api_the_cause_stays_unknown(self, blind: N8nHarness) -> None:
        error = await blind.failure("breaks")
        assert (error.kind, error.is_retryable) == (ErrorKind.EXECUTION_ERROR, False)
        assert "no cause" in error.message

    async def test_an_empty_success_of_a_failed_workflow_is_a_failure(self, harness: N8nHarness) -> None:
        error = await harness.failure("breaks-before")
        assert error.kind is ErrorKind.EXECUTION_ERROR
        assert "boom before the answer" in error.message

    async def test_an_empty_success_counts_once_its_execution_confirms_it(self, harness: N8nHarness) -> None:
        outcome = await harness.run("silent")
        assert isinstance(outcome, Outcome)
        assert outcome.value is None
        assert _facts(outcome)["execution_status"] == "success"

    @pytest.mark.promise("workflow.never-false-done")
    @pytest.mark.parametrize("name", ["breaks-before", "silent"])
    async def test_an_empty_success_that_cannot_be_looked_up_is_no_success(self, blind: N8nHarness, name: str) -> None:
        error = await blind.failure(name)
        assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, False)
        assert "answered nothing" in error.message

    async def test_an_execution_that_a_list_misses_at_first_is_found(self, harness: N8nHarness) -> None:
        call = await harness.call("breaks-before")
        held = harness.n8n.fails("/webhook/*", How.HOLD)
        running = asyncio.ensure_future(harness.ended(harness.adapter.execute(call, RecordingSink())))
        began = await harness.n8n.began("breaks-before")
        await harness.n8n.ended(began.id)
        harness.n8n.executions.hide(began.id, 3)
        held.let_go()
        error = await running
        assert isinstance(error, ToolError)
        assert error.kind is ErrorKind.EXECUTION_ERROR


class TestNoAnswer:
    """The request was sent, and the answer leaves the outcome open."""

    @pytest.mark.parametrize("how", [How.LOSE_ANSWER, How.CUT])
    async def test_an_execution_that_is_found_is_the_answer(self, harness: N8nHarness, how: How) -> None:
        harness.n8n.fails("/webhook/*", how)
        outcome = await harness.run("echo", {"a": 1})
        assert isinstance(outcome, Outcome), outcome.message
        assert outcome.value == {"echo": {"a": 1}}
        assert _facts(outcome)["looked_up"] == "true"
        assert harness.n8n.starts("echo") == 1

    @pytest.mark.parametrize("kind", ["firstEntryJson", "allEntries"])
    @pytest.mark.parametrize("count", [1, 3])
    async def test_a_looked_up_result_has_the_shape_of_the_answer(self, kind: str, count: int) -> None:
        many = flow("many", "lastNode", code("Many"), webhook={"responseData": kind})
        async with n8n_harness({"many": SYNC}, flows=[many]) as harness:
            harness.n8n.code("Many", lambda items, _: [{"json": {"n": n}} for n in range(count)])
            harness.n8n.fails("/webhook/*", How.LOSE_ANSWER)
            value = await harness.value("many")
        assert value == ({"n": 0} if kind == "firstEntryJson" else [{"n": n} for n in range(count)])

    async def test_a_failure_that_is_found_is_the_answer(self, harness: N8nHarness) -> None:
        harness.n8n.fails("/webhook/*", How.LOSE_ANSWER)
        error = await harness.failure("breaks")
        assert "boom from workflow" in error.message

    async def test_a_running_execution_is_followed_to_its_end(self) -> None:
        async with n8n_harness(ALL, time_scale=None) as harness:
            call = await harness.call("slow", {"a": 1})
            running = asyncio.ensure_future(harness.ended(harness.adapter.execute(call, RecordingSink())))
            began = await harness.n8n.began("slow")
            await harness.n8n.down()
            await harness.n8n.up()
            await harness.n8n.was_asked("GET", f"/api/v1/executions/{began.id}", 2)
            harness.n8n.release(began.id)
            outcome = await running
        assert isinstance(outcome, Outcome), outcome.message
        assert outcome.value == {"echo": {"a": 1}}

    @pytest.mark.promise("workflow.never-twice")
    @pytest.mark.parametrize("how", [How.DROP, How.BAD_GATEWAY])
    async def test_an_execution_that_is_not_found_may_still_have_run(self, how: How) -> None:
        async with n8n_harness(ALL, lookup_timeout_s=0.05) as harness:
            harness.n8n.fails("/webhook/*", how)
            error = await harness.failure("echo")
        assert (error.kind, error.is_retryable) == (ErrorKind.OUTCOME_UNKNOWN, False)
        assert "may have run all the same" in error.message
        assert len(harness.n8n.asked("POST", "/webhook/*")) == 1

    @pytest.mark.promise("effects.one-table")
    @pytest.mark.parametrize("status", GAVE_UP)
    async def test_a_workflow_that_goes_on_after_a_proxy_gave_up_is_followed_to_its_end(
        self, harness: N8nHarness, status: int
    ) -> None:
        harness.n8n.fails("/webhook/*", How.GAVE_UP, status=status)
        outcome = await harness.ended(harness.adapter.execute(await harness.call("echo", {"a": 1}), RecordingSink()))
        assert isinstance(outcome, Outcome), outcome.message
        assert (outcome.value, harness.n8n.starts("echo")) == ({"echo": {"a": 1}}, 1)

    @pytest.mark.promise("effects.one-table")
    @pytest.mark.parametrize("status", GAVE_UP)
    async def test_a_proxy_that_gave_up_leaves_the_outcome_unknown_where_nothing_can_be_looked_up(
        self, blind: N8nHarness, status: int
    ) -> None:
        blind.n8n.fails("/webhook/*", How.GAVE_UP, status=status)
        error = await blind.failure("echo")
        assert (error.kind, error.is_retryable) == (ErrorKind.OUTCOME_UNKNOWN, False)
        assert f"status {status}" in error.message

    @pytest.mark.promise("effects.one-table")
    @pytest.mark.parametrize("status", [521, 523, 525, 526, 530])
    async def test_a_proxy_that_did_not_reach_n8n_has_run_nothing(self, harness: N8nHarness, status: int) -> None:
        harness.n8n.fails("/webhook/*", How.BAD_GATEWAY, status=status)
        error = await harness.failure("echo")
        assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True)
        assert "It has not run." in error.message
        assert harness.n8n.starts("echo") == 0

    async def test_without_an_api_the_outcome_is_unknown(self, blind: N8nHarness) -> None:
        blind.n8n.fails("/webhook/*", How.LOSE_ANSWER)
        error = await blind.failure("echo")
        assert (error.kind, error.is_retryable) == (ErrorKind.OUTCOME_UNKNOWN, False)
        assert "api_key" in error.message
        assert blind.n8n.starts("echo") == 1

    async def test_an_api_that_is_away_leaves_it_unknown(self, harness: N8nHarness) -> None:
        call = await harness.call("echo")
        harness.n8n.fails("/webhook/*", How.LOSE_ANSWER)
        harness.n8n.fails("/api/*", How.BAD_GATEWAY, times=FOREVER)
        error = await harness.ended(harness.adapter.execute(call, RecordingSink()))
        assert isinstance(error, ToolError)
        assert error.kind is ErrorKind.OUTCOME_UNKNOWN
        assert "502" in error.message

    async def test_a_call_that_is_safe_to_repeat_may_be_called_again(self) -> None:
        tools = {"echo": ToolTerms(read_only=True)}
        async with n8n_harness({"echo": SYNC}, with_api=False, tools=tools) as harness:
            harness.n8n.fails("/webhook/*", How.LOSE_ANSWER)
            call = await harness.call("echo")
            error = await harness.ended(harness.adapter.execute(call._replace(has_side_effects=False), RecordingSink()))
        assert isinstance(error, ToolError)
        assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, True)

    async def test_time_that_runs_out_is_an_unknown_outcome_and_n8n_is_asked_to_stop(self) -> None:
        async with n8n_harness(ALL, time_scale=None) as harness:

            async def late(timeout_s: float) -> Outcome | ToolError:
                call = await harness.call("slow", timeout_s=timeout_s)
                running = asyncio.ensure_future(harness.ended(harness.adapter.execute(call, RecordingSink())))
                beginning = asyncio.ensure_future(harness.n8n.began("slow", harness.n8n.starts("slow") + 1))
                await asyncio.wait({running, beginning}, return_when=asyncio.FIRST_COMPLETED)
                beginning.cancel()
                await harness.n8n.down()
                await harness.n8n.up()
                return await running

            def is_canceled(_: object) -> bool:
                return any(execution.status == "canceled" for execution in harness.n8n.executions.began)

            error = await overtaken(late, is_canceled, first_s=1.0)
            assert isinstance(error, ToolError)
            assert error.kind is ErrorKind.OUTCOME_UNKNOWN
            assert error.details["execution_id"] == str(harness.n8n.starts("slow"))

    async def test_a_caller_that_leaves_has_the_execution_stopped(self) -> None:
        async with n8n_harness(ALL, time_scale=None) as harness:
            call = await harness.call("slow")
            running = asyncio.create_task(harness.adapter.execute(call, RecordingSink()))
            began = await harness.n8n.began("slow")
            running.cancel()
            await asyncio.wait({running})
            assert running.cancelled()
            assert began.status == "canceled"

    @pytest.mark.promise("workflow.never-twice")
    async def test_a_request_that_was_doubled_on_its_way_is_answered_by_the_first(self, harness: N8nHarness) -> None:
        harness.n8n.fails("/webhook/*", How.TWICE)
        assert await harness.value("echo", {"a": 1}) == {"echo": {"a": 1}}
        await harness.n8n.began("echo", 2)
        error = await harness.failure("breaks-before")
        assert error.kind is ErrorKind.EXECUTION_ERROR

    async def test_a_workflow_that_knows_its_keys_answers_with_its_first_run(self) -> None:
        terms = N8nWorkflow(deduplicates=True)
        async with n8n_harness({"once": terms}, flows=[dedupes("once")]) as harness:
            first = await harness.value("once", {"a": 1}, key="k-1")
            assert first == {"executionId": "1"}
            assert await harness.value("once", {"a": 1}, key="k-1") == {"echo": {"a": 1}}


class TestBusinessErrors:
    TERMS = N8nWorkflow(
        fails_when=(
            BusinessError(at="/echo/ok", equals=False, message="/echo/reason/0"),
            BusinessError(at="/echo/errors"),
        )
    )

    @pytest.fixture
    async def harness(self) -> AsyncIterator[N8nHarness]:
        async with n8n_harness({"echo": self.TERMS}, with_api=False) as harness:
            yield harness

    async def test_the_first_matching_sign_gives_the_reason(self, harness: N8nHarness) -> None:
        error = await harness.failure("echo", {"ok": False, "reason": ["no s3cret stock"], "errors": ["x"]})
        assert (error.kind, error.is_retryable) == (ErrorKind.EXECUTION_ERROR, False)
        assert "no *** stock" in error.message

    async def test_any_non_empty_value_fits_where_no_value_is_named(self, harness: N8nHarness) -> None:
        assert (await harness.failure("echo", {"errors": ["x"]})).kind is ErrorKind.EXECUTION_ERROR

    @pytest.mark.parametrize("args", [{}, {"ok": 0}, {"ok": None, "errors": []}, {"ok": True, "errors": False}])
    async def test_an_answer_without_the_error_field_is_a_result(
        self, harness: N8nHarness, args: dict[str, Any]
    ) -> None:
        assert await harness.value("echo", args) == {"echo": args}


class TestCallById:
    async def test_the_webhook_is_looked_up(self) -> None:
        async with n8n_harness({"tool": N8nWorkflow(workflow_id="echo")}) as harness:
            assert await harness.value("tool", {"a": 1}) == {"echo": {"a": 1}}

    async def test_a_webhook_that_has_moved_is_found_again_at_once(self) -> None:
        async with n8n_harness({"tool": N8nWorkflow(workflow_id="echo")}) as harness:
            call = await harness.call("tool", {"a": 1})
            harness.n8n.workflows["echo"].node("Webhook")["parameters"]["path"] = "moved"
            outcome = await harness.ended(harness.adapter.execute(call, RecordingSink()))
            assert isinstance(outcome, Outcome), outcome.message
            assert harness.n8n.starts("echo") == 1

    async def test_a_workflow_that_was_never_read_is_looked_up_when_it_is_called(self) -> None:
        async with n8n_harness({"tool": N8nWorkflow(workflow_id="echo")}) as harness:
            call = await harness.call("tool")
            harness.server.workflows["tool"] = dataclasses.replace(harness.server.workflows["tool"], webhook=None)
            assert isinstance(await harness.ended(harness.adapter.execute(call, RecordingSink())), Outcome)

    async def test_a_call_that_cannot_be_looked_up_has_not_run(self) -> None:
        async with n8n_harness({"tool": N8nWorkflow(workflow_id="echo")}) as harness:
            call = await harness.call("tool")
            harness.server.workflows["tool"] = dataclasses.replace(harness.server.workflows["tool"], webhook=None)
            harness.n8n.fails("/api/*", How.BAD_GATEWAY, times=FOREVER)
            error = await harness.ended(harness.adapter.execute(call, RecordingSink()))
        assert isinstance(error, ToolError)
        assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True)


async def test_bytes_become_an_artifact(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    picture = always(response(b"\x89PNG\xff\x00", content_type="image/png"))
    async with (
        serving(picture) as raw,
        against(raw.url("").rstrip("/"), {"echo": SYNC}, artifacts=kept.artifacts) as harness,
    ):
        outcome = await harness.run("echo")
    assert isinstance(outcome, Outcome), outcome.message
    assert [artifact.media_type for artifact in kept.records.found.values()] == ["image/png"]
    assert isinstance(outcome.value, dict)
    assert (outcome.value["bytes"], outcome.value["artifact"]) == (6, outcome.artifacts[0].artifact_id)


async def test_a_source_that_is_gone_is_reported(harness: N8nHarness) -> None:
    call = await harness.call("echo")
    harness.adapter.remove("flows")
    error = await harness.ended(harness.adapter.execute(call, RecordingSink()))
    assert isinstance(error, ToolError)
    assert error.kind is ErrorKind.TOOL_UNAVAILABLE
