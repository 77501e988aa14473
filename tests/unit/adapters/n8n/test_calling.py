"""Workflows that answer with their results, and what is known of those whose answers do not tell."""

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
from tests.fakes.remote_stage import ToldSink
from tests.overtaken import overtaken
from tests.unit.adapters.n8n.flows import FLOWS, code, dedupes, flow, responds, sets
from tests.unit.adapters.n8n.stage import KEY_HEADER, SYNC, Stage, against, before, staged
from toolhub_service.adapters.n8n.kind import BusinessError, N8nWorkflow
from toolhub_service.adapters.source_config import ToolTerms
from toolhub_service.domain.errors import ErrorKind, ToolError
from toolhub_service.domain.result import Outcome

NAMES = [made["name"] for made in FLOWS if made["name"] != "asks"]
ALL = {**dict.fromkeys(NAMES, SYNC), "asks": N8nWorkflow(method="GET")}


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged(ALL) as stage:
        yield stage


@pytest.fixture
async def blind() -> AsyncIterator[Stage]:
    """Without an API key."""
    async with staged(ALL, with_api=False) as stage:
        yield stage


def _facts(outcome: Outcome | ToolError) -> dict[str, str]:
    assert isinstance(outcome, Outcome), outcome.message
    return dict(outcome.evidence[0].attributes)


async def test_arguments_are_the_body_and_the_answer_is_the_result(blind: Stage) -> None:
    assert await blind.value("echo", {"a": [1, {"b": "ü"}]}) == {"echo": {"a": [1, {"b": "ü"}]}}
    (asked,) = blind.n8n.asked("POST", "/webhook/echo")
    assert asked.headers["content-type"] == "application/json"


async def test_an_integer_of_any_size_arrives_as_it_was_sent(blind: Stage) -> None:
    assert await blind.value("echo", {"n": 2**80}) == {"echo": {"n": 2**80}}


async def test_arguments_of_get_are_the_query(blind: Stage) -> None:
    value = await blind.value("asks", {"q": "a&b=c", "n": 1.5, "yes": True, "none": None})
    assert value == {"query": {"q": "a&b=c", "n": "1.5", "yes": "true"}}


async def test_nested_arguments_of_get_are_refused_before_anything_is_sent(blind: Stage) -> None:
    error = await blind.failure("asks", {"q": {"nested": 1}})
    assert (error.kind, error.details["field"]) == (ErrorKind.INVALID_INPUT, "q")
    assert not blind.n8n.asked("GET", "/webhook/*")


@pytest.mark.parametrize("how", [How.WRONG_TYPE, How.DRIP])
async def test_json_is_known_by_its_content_however_it_comes(blind: Stage, how: How) -> None:
    blind.n8n.fails("/webhook/echo", how, every_s=0.0)
    assert await blind.value("echo", {"a": 1}) == {"echo": {"a": 1}}


@pytest.mark.promise("n8n.webhook-untold")
async def test_evidence_tells_what_ran_where(stage: Stage) -> None:
    flow_of = stage.n8n.workflows["echo"]
    facts = _facts(await stage.run("echo", {"a": 1}))
    assert "/webhook" not in repr(facts)
    assert (facts["workflow_id"], facts["workflow_version"]) == ("echo", flow_of.version_id)
    assert facts["http_status"] == "200"
    assert facts["duration_ms"].isdecimal()


async def test_an_execution_that_the_answer_names_stands_in_evidence() -> None:
    flows = [flow("named", "lastNode", sets("{ executionId: $execution.id }"))]
    async with staged({"named": SYNC}, flows=flows, with_api=False) as stage:
        assert _facts(await stage.run("named"))["execution_id"] == "1"


class TestKeys:
    async def _keys(self, stage: Stage) -> list[str]:
        return [asked.headers[KEY_HEADER] for asked in stage.n8n.asked("POST", "/webhook/echo")]

    async def test_the_same_call_is_sent_under_the_same_key(self, blind: Stage) -> None:
        for _ in range(2):
            await blind.value("echo", key="k-1")
        first, second = await self._keys(blind)
        assert first == second

    async def test_another_principal_or_another_call_has_another_key(self, blind: Stage) -> None:
        await blind.value("echo", key="k-1")
        await blind.value("echo", key="k-1", principal="somebody else")
        await blind.value("echo", call_id="call-1")
        await blind.value("echo", call_id="call-2")
        keys = await self._keys(blind)
        assert len(set(keys)) == 4

    async def test_a_key_that_would_break_a_header_does_no_harm(self, blind: Stage) -> None:
        await blind.value("echo", key="k\r\nx-evil: 1\x00ü")
        (asked,) = blind.n8n.asked("POST", "/webhook/echo")
        assert "x-evil" not in asked.headers

    async def test_the_key_stands_in_the_body_where_it_is_wanted(self) -> None:
        terms = N8nWorkflow(idempotency_field="requestId")
        async with staged({"echo": terms}, with_api=False) as stage:
            value = await stage.value("echo", {"a": 1}, key="k-1")
            (asked,) = stage.n8n.asked("POST", "/webhook/echo")
            assert value["echo"] == {"a": 1, "requestId": asked.headers[KEY_HEADER]}

    async def test_an_argument_in_the_keys_place_is_refused(self) -> None:
        terms = N8nWorkflow(idempotency_field="requestId")
        async with staged({"echo": terms}, with_api=False) as stage:
            error = await stage.failure("echo", {"requestId": "mine"})
            assert error.kind is ErrorKind.INVALID_INPUT
            assert stage.n8n.starts("echo") == 0


class TestAnswers:
    @pytest.mark.parametrize("name", ["nobody", "off"])
    async def test_an_unknown_webhook_is_no_retry_and_says_what_to_do(self, name: str) -> None:
        async with staged({name: SYNC}, with_api=False) as stage:
            stage.n8n.add(flow("off", "lastNode"), active=False)
            error = await stage.failure(name)
        assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, False)
        assert error.details["reason"] == "WEBHOOK_UNKNOWN"
        assert "activate" in error.message
        assert "/opt/" not in repr(error)
        assert "hint" not in repr(error)

    async def test_a_wrong_method_is_told_apart(self) -> None:
        async with staged({"echo": N8nWorkflow(method="PUT")}, with_api=False) as stage:
            error = await stage.failure("echo")
        assert (error.kind, error.details["reason"]) == (ErrorKind.TOOL_UNAVAILABLE, "WEBHOOK_METHOD")

    async def test_a_wrong_credential_is_the_operators_to_correct(self) -> None:
        guarded = flow("guarded", "lastNode", webhook={"authentication": "headerAuth"})
        guarded["nodes"][0]["credentials"] = {"httpHeaderAuth": {"id": "cred", "name": "x"}}
        async with staged({"guarded": SYNC}, flows=[guarded], with_api=False) as stage:
            stage.n8n.world.credentials["cred"] = ("X-Hub-Token", "s3cret")
            error = await stage.failure("guarded")
            assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, False)
            assert error.details["setting"] == "headers"
            right = replace(SYNC, headers={"x-hub-token": "s3cret"})
            async with before(stage.n8n, {"guarded": right}, with_api=False) as trusted:
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
    async def test_what_a_workflow_itself_answers_is_quoted(self, status: int, kind: ErrorKind) -> None:
        flows = [flow("says", "responseNode", responds('{"why":"s3cret reasons","stack":"at /opt/x"}', status))]
        async with staged({"says": SYNC}, flows=flows, with_api=False) as stage:
            error = await stage.failure("says")
        assert (error.kind, error.is_retryable) == (kind, False)
        assert error.upstream is not None
        assert error.upstream.status == status
        assert "*** reasons" in error.message
        assert "/opt" not in repr(error)

    @pytest.mark.parametrize("how", [How.BUSY, How.LIMITED])
    async def test_a_busy_server_may_be_asked_again_later(self, blind: Stage, how: How) -> None:
        blind.n8n.fails("/webhook/*", how, retry_after="7")
        error = await blind.failure("echo")
        assert (error.kind, error.is_retryable, error.retry_after_s) == (ErrorKind.TOOL_UNAVAILABLE, True, 7.0)
        assert blind.n8n.starts("echo") == 0

    async def test_a_server_that_is_down_has_run_nothing(self, blind: Stage) -> None:
        call = await blind.call("echo")
        await blind.n8n.down()
        error = await blind.ended(blind.adapter.execute(call, ToldSink()))
        await blind.n8n.up()
        assert isinstance(error, ToolError)
        assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True)

    async def test_a_page_of_html_is_text(self, blind: Stage) -> None:
        blind.n8n.fails("/webhook/*", How.GARBAGE)
        assert "It works!" in (await blind.value("echo"))["text"]

    async def test_json_that_is_cut_is_no_result(self, blind: Stage) -> None:
        blind.n8n.fails("/webhook/*", How.TRUNCATED)
        error = await blind.failure("echo", {"a": 1})
        assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, False)
        assert "ran" in error.message

    async def test_an_answer_without_end_is_cut_and_says_that_it_ran(self) -> None:
        async with staged({"echo": SYNC}, with_api=False, max_response_bytes=1_000) as stage:
            stage.n8n.fails("/webhook/*", How.HUGE, size_bytes=1_000_000)
            error = await stage.failure("echo")
        assert (error.kind, error.details["max_bytes"]) == (ErrorKind.HTTP_TOO_LARGE, 1_000)
        assert "What it did is done" in error.message

    async def test_started_only_is_never_told_as_done(self, stage: Stage) -> None:
        outcome = await stage.run("fires")
        assert _facts(outcome)["started_only"] == "true"
        assert isinstance(outcome, Outcome)
        assert outcome.value == {"message": "Workflow was started"}
        assert "only started" in outcome.evidence[0].summary


class TestErrorsInWorkflows:
    async def test_the_cause_is_looked_up(self, stage: Stage) -> None:
        error = await stage.failure("breaks")
        assert error.kind is ErrorKind.EXECUTION_ERROR
        assert "boom from workflow" in error.message
        assert "`Boom`" in error.message
        assert error.details["execution_id"] == "1"
        assert "/opt/" not in repr(error)

    async def test_without_an_api_the_cause_stays_unknown(self, blind: Stage) -> None:
        error = await blind.failure("breaks")
        assert (error.kind, error.is_retryable) == (ErrorKind.EXECUTION_ERROR, False)
        assert "no cause" in error.message

    async def test_an_empty_success_of_a_failed_workflow_is_a_failure(self, stage: Stage) -> None:
        error = await stage.failure("breaks-before")
        assert error.kind is ErrorKind.EXECUTION_ERROR
        assert "boom before the answer" in error.message

    async def test_an_empty_success_is_one_once_its_execution_says_so(self, stage: Stage) -> None:
        outcome = await stage.run("silent")
        assert isinstance(outcome, Outcome)
        assert outcome.value is None
        assert _facts(outcome)["execution_status"] == "success"

    @pytest.mark.promise("workflow.never-false-done")
    @pytest.mark.parametrize("name", ["breaks-before", "silent"])
    async def test_an_empty_success_that_nobody_can_look_up_is_no_success(self, blind: Stage, name: str) -> None:
        error = await blind.failure(name)
        assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, False)
        assert "answered nothing" in error.message

    async def test_an_execution_that_a_list_misses_at_first_is_found(self, stage: Stage) -> None:
        call = await stage.call("breaks-before")
        held = stage.n8n.fails("/webhook/*", How.HOLD)
        running = asyncio.ensure_future(stage.ended(stage.adapter.execute(call, ToldSink())))
        began = await stage.n8n.began("breaks-before")
        await stage.n8n.ended(began.id)
        stage.n8n.executions.hide(began.id, 3)
        held.let_go()
        error = await running
        assert isinstance(error, ToolError)
        assert error.kind is ErrorKind.EXECUTION_ERROR


class TestNoAnswer:
    """The request was sent, and what came back tells nothing."""

    @pytest.mark.parametrize("how", [How.LOSE_ANSWER, How.CUT])
    async def test_an_execution_that_is_found_is_the_answer(self, stage: Stage, how: How) -> None:
        stage.n8n.fails("/webhook/*", how)
        outcome = await stage.run("echo", {"a": 1})
        assert isinstance(outcome, Outcome), outcome.message
        assert outcome.value == {"echo": {"a": 1}}
        assert _facts(outcome)["looked_up"] == "true"
        assert stage.n8n.starts("echo") == 1

    @pytest.mark.parametrize("kind", ["firstEntryJson", "allEntries"])
    @pytest.mark.parametrize("count", [1, 3])
    async def test_what_is_found_has_the_shape_of_the_answer(self, kind: str, count: int) -> None:
        many = flow("many", "lastNode", code("Many"), webhook={"responseData": kind})
        async with staged({"many": SYNC}, flows=[many]) as stage:
            stage.n8n.code("Many", lambda items, _: [{"json": {"n": n}} for n in range(count)])
            stage.n8n.fails("/webhook/*", How.LOSE_ANSWER)
            value = await stage.value("many")
        assert value == ({"n": 0} if kind == "firstEntryJson" else [{"n": n} for n in range(count)])

    async def test_a_failure_that_is_found_is_the_answer(self, stage: Stage) -> None:
        stage.n8n.fails("/webhook/*", How.LOSE_ANSWER)
        error = await stage.failure("breaks")
        assert "boom from workflow" in error.message

    async def test_one_that_goes_on_is_followed_to_its_end(self) -> None:
        async with staged(ALL, time_scale=None) as stage:
            call = await stage.call("slow", {"a": 1})
            running = asyncio.ensure_future(stage.ended(stage.adapter.execute(call, ToldSink())))
            began = await stage.n8n.began("slow")
            await stage.n8n.down()
            await stage.n8n.up()
            await stage.n8n.was_asked("GET", f"/api/v1/executions/{began.id}", 2)
            stage.n8n.release(began.id)
            outcome = await running
        assert isinstance(outcome, Outcome), outcome.message
        assert outcome.value == {"echo": {"a": 1}}

    @pytest.mark.promise("workflow.never-twice")
    @pytest.mark.parametrize("how", [How.DROP, How.BAD_GATEWAY])
    async def test_one_that_is_not_found_may_still_have_run(self, how: How) -> None:
        async with staged(ALL, lookup_timeout_s=0.05) as stage:
            stage.n8n.fails("/webhook/*", how)
            error = await stage.failure("echo")
        assert (error.kind, error.is_retryable) == (ErrorKind.OUTCOME_UNKNOWN, False)
        assert "proves nothing" in error.message
        assert len(stage.n8n.asked("POST", "/webhook/*")) == 1

    async def test_without_an_api_nobody_can_tell(self, blind: Stage) -> None:
        blind.n8n.fails("/webhook/*", How.LOSE_ANSWER)
        error = await blind.failure("echo")
        assert (error.kind, error.is_retryable) == (ErrorKind.OUTCOME_UNKNOWN, False)
        assert "api_key" in error.message
        assert blind.n8n.starts("echo") == 1

    async def test_an_api_that_is_away_leaves_it_unknown(self, stage: Stage) -> None:
        call = await stage.call("echo")
        stage.n8n.fails("/webhook/*", How.LOSE_ANSWER)
        stage.n8n.fails("/api/*", How.BAD_GATEWAY, times=FOREVER)
        error = await stage.ended(stage.adapter.execute(call, ToldSink()))
        assert isinstance(error, ToolError)
        assert error.kind is ErrorKind.OUTCOME_UNKNOWN
        assert "502" in error.message

    async def test_what_is_safe_to_repeat_may_be_called_again(self) -> None:
        tools = {"echo": ToolTerms(read_only=True)}
        async with staged({"echo": SYNC}, with_api=False, tools=tools) as stage:
            stage.n8n.fails("/webhook/*", How.LOSE_ANSWER)
            call = await stage.call("echo")
            error = await stage.ended(stage.adapter.execute(call._replace(has_side_effects=False), ToldSink()))
        assert isinstance(error, ToolError)
        assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, True)

    async def test_time_that_runs_out_is_an_unknown_outcome_and_n8n_is_asked_to_stop(self) -> None:
        async with staged(ALL, time_scale=None) as stage:

            async def late(timeout_s: float) -> Outcome | ToolError:
                call = await stage.call("slow", timeout_s=timeout_s)
                running = asyncio.ensure_future(stage.ended(stage.adapter.execute(call, ToldSink())))
                beginning = asyncio.ensure_future(stage.n8n.began("slow", stage.n8n.starts("slow") + 1))
                await asyncio.wait({running, beginning}, return_when=asyncio.FIRST_COMPLETED)
                beginning.cancel()
                await stage.n8n.down()
                await stage.n8n.up()
                return await running

            def is_canceled(_: object) -> bool:
                return any(execution.status == "canceled" for execution in stage.n8n.executions.began)

            error = await overtaken(late, is_canceled, first_s=1.0)
            assert isinstance(error, ToolError)
            assert error.kind is ErrorKind.OUTCOME_UNKNOWN
            assert error.details["execution_id"] == str(stage.n8n.starts("slow"))

    async def test_a_caller_that_leaves_has_the_execution_stopped(self) -> None:
        async with staged(ALL, time_scale=None) as stage:
            call = await stage.call("slow")
            running = asyncio.create_task(stage.adapter.execute(call, ToldSink()))
            began = await stage.n8n.began("slow")
            running.cancel()
            await asyncio.wait({running})
            assert running.cancelled()
            assert began.status == "canceled"

    @pytest.mark.promise("workflow.never-twice")
    async def test_a_request_that_was_doubled_on_its_way_is_answered_by_the_first(self, stage: Stage) -> None:
        stage.n8n.fails("/webhook/*", How.TWICE)
        assert await stage.value("echo", {"a": 1}) == {"echo": {"a": 1}}
        await stage.n8n.began("echo", 2)
        error = await stage.failure("breaks-before")
        assert error.kind is ErrorKind.EXECUTION_ERROR

    async def test_a_workflow_that_knows_its_keys_answers_with_its_first_run(self) -> None:
        terms = N8nWorkflow(deduplicates=True)
        async with staged({"once": terms}, flows=[dedupes("once")]) as stage:
            first = await stage.value("once", {"a": 1}, key="k-1")
            assert first == {"executionId": "1"}
            assert await stage.value("once", {"a": 1}, key="k-1") == {"echo": {"a": 1}}


class TestBusinessErrors:
    TERMS = N8nWorkflow(
        fails_when=(
            BusinessError(at="/echo/ok", equals=False, message="/echo/reason/0"),
            BusinessError(at="/echo/errors"),
        )
    )

    @pytest.fixture
    async def stage(self) -> AsyncIterator[Stage]:
        async with staged({"echo": self.TERMS}, with_api=False) as stage:
            yield stage

    async def test_the_first_sign_that_fits_tells_why(self, stage: Stage) -> None:
        error = await stage.failure("echo", {"ok": False, "reason": ["no s3cret stock"], "errors": ["x"]})
        assert (error.kind, error.is_retryable) == (ErrorKind.EXECUTION_ERROR, False)
        assert "no *** stock" in error.message

    async def test_anything_but_nothing_fits_where_no_value_is_named(self, stage: Stage) -> None:
        assert (await stage.failure("echo", {"errors": ["x"]})).kind is ErrorKind.EXECUTION_ERROR

    @pytest.mark.parametrize("args", [{}, {"ok": 0}, {"ok": None, "errors": []}, {"ok": True, "errors": False}])
    async def test_anything_else_is_a_result(self, stage: Stage, args: dict[str, Any]) -> None:
        assert await stage.value("echo", args) == {"echo": args}


class TestById:
    async def test_the_webhook_is_looked_up(self) -> None:
        async with staged({"tool": N8nWorkflow(workflow_id="echo")}) as stage:
            assert await stage.value("tool", {"a": 1}) == {"echo": {"a": 1}}

    async def test_a_webhook_that_has_moved_is_found_again_at_once(self) -> None:
        async with staged({"tool": N8nWorkflow(workflow_id="echo")}) as stage:
            call = await stage.call("tool", {"a": 1})
            stage.n8n.workflows["echo"].node("Webhook")["parameters"]["path"] = "moved"
            outcome = await stage.ended(stage.adapter.execute(call, ToldSink()))
            assert isinstance(outcome, Outcome), outcome.message
            assert stage.n8n.starts("echo") == 1

    async def test_one_that_was_never_read_is_looked_up_when_it_is_called(self) -> None:
        async with staged({"tool": N8nWorkflow(workflow_id="echo")}) as stage:
            call = await stage.call("tool")
            stage.server.workflows["tool"] = dataclasses.replace(stage.server.workflows["tool"], webhook=None)
            assert isinstance(await stage.ended(stage.adapter.execute(call, ToldSink())), Outcome)

    async def test_what_cannot_be_looked_up_has_not_run(self) -> None:
        async with staged({"tool": N8nWorkflow(workflow_id="echo")}) as stage:
            call = await stage.call("tool")
            stage.server.workflows["tool"] = dataclasses.replace(stage.server.workflows["tool"], webhook=None)
            stage.n8n.fails("/api/*", How.BAD_GATEWAY, times=FOREVER)
            error = await stage.ended(stage.adapter.execute(call, ToldSink()))
        assert isinstance(error, ToolError)
        assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True)


async def test_bytes_become_an_artifact(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    picture = always(response(b"\x89PNG\xff\x00", content_type="image/png"))
    async with (
        serving(picture) as raw,
        against(raw.url("").rstrip("/"), {"echo": SYNC}, artifacts=kept.artifacts) as stage,
    ):
        outcome = await stage.run("echo")
    assert isinstance(outcome, Outcome), outcome.message
    assert [artifact.media_type for artifact in kept.records.found.values()] == ["image/png"]
    assert isinstance(outcome.value, dict)
    assert (outcome.value["bytes"], outcome.value["artifact"]) == (6, outcome.artifacts[0].artifact_id)


async def test_a_source_that_is_gone_is_told(stage: Stage) -> None:
    call = await stage.call("echo")
    stage.adapter.remove("flows")
    error = await stage.ended(stage.adapter.execute(call, ToldSink()))
    assert isinstance(error, ToolError)
    assert error.kind is ErrorKind.TOOL_UNAVAILABLE
