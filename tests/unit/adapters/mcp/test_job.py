"""Tasks of MCP servers as jobs, in both generations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, REQUEST_TIMEOUT

from tests.fakes.mcp_harness import WITHIN_S, McpHarness, mcp_tool, over_http, over_stdio, stage_of, started
from tests.fakes.mcp_servers.scripted import Script, Send, question, text
from tests.fakes.outcomes import outcome_of
from tests.fakes.running_jobs import KeptMarks
from tests.ports.adapter_suite import AdapterSuite, Prepared, granted
from toolhub_service.adapters.definitions import FindsError, Overrides
from toolhub_service.adapters.mcp.kind import Elicitation, HttpTerms
from toolhub_service.adapters.mcp.questions.relay import Relayed, Running
from toolhub_service.domain.call import CallingClient, QuestionAsked, Reply
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.result import Outcome

JOB = "job-1"


@asynccontextmanager
async def tasks(generation: str, kept: KeptMarks | None = None, **options: Any) -> AsyncIterator[McpHarness]:
    """A server that takes tasks, whose list has been read."""
    script = Script(generation=generation, has_extension=True)
    async with over_http(script, kept=kept, **options) as harness:
        await harness.source.discover()
        yield harness


async def ends(
    harness: McpHarness, name: str, args: dict[str, Any] | None = None, **options: Any
) -> Outcome | ToolError:
    return await outcome_of(asyncio.create_task(harness.run(name, args, job_id=JOB, **options)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("generation", "name"), [("legacy", "long"), ("legacy", "perhaps"), ("modern", "perhaps")])
async def test_a_job_runs_as_a_task_and_brings_its_result(generation: str, name: str) -> None:
    async with tasks(generation) as harness:
        outcome = await ends(harness, name, {"text": "done well"}, is_async=name == "long")
        assert isinstance(outcome, Outcome)
        assert outcome.value == {"text": "done well"}
        assert harness.kept.marks[JOB].remote_id == "t-1"
        assert [each.message for each in harness.sink.progresses] == ["working: 1 to go", "completed: 0 to go"]
        assert any(proof.ref == "t-1" for proof in outcome.evidence)
        assert harness.script.asked.count("tools/call") == 1


@pytest.mark.parametrize(("generation", "times"), [("legacy", 0), ("modern", 0)])
async def test_a_call_at_once_of_a_tool_that_may_run_as_a_task_does_not(generation: str, times: int) -> None:
    async with tasks(generation) as harness:
        assert (await harness.run("perhaps")).value == {"text": "at once"}
        assert len(harness.script.tasks) == times


async def test_an_immediate_answer_of_a_modern_server_is_no_task() -> None:
    async with tasks("modern") as harness:
        outcome = await ends(harness, "echo", {"text": "quick"})
        assert isinstance(outcome, Outcome)
        assert outcome.value == {"text": "quick"}


async def test_progress_of_what_is_answered_at_once_is_the_jobs() -> None:
    async with tasks("modern") as harness:
        assert isinstance(await ends(harness, "reports", {"times": 3}), Outcome)
        assert harness.sink.progresses[-1].step == 3


@pytest.mark.parametrize(("read_only", "kind"), [(False, ErrorKind.OUTCOME_UNKNOWN), (True, None)])
async def test_an_answer_that_died_with_its_hub_is_asked_for_again_only_where_that_is_safe(
    read_only: bool, kind: ErrorKind | None
) -> None:
    answered = RemoteMark(key="k", accepted=True, details={"sent_at_unix_ms": "1"})
    async with tasks("modern", KeptMarks({JOB: answered})) as harness:
        ended = await ends(harness, "echo", {"text": "x"}, read_only=read_only)
        assert (ended.kind if isinstance(ended, ToolError) else None) is kind
        assert harness.script.asked.count("tools/call") == (1 if read_only else 0)


@pytest.mark.parametrize(("generation", "name"), [("legacy", "long"), ("modern", "perhaps")])
async def test_another_run_attaches_to_the_task_before_it_has_read_the_tools(generation: str, name: str) -> None:
    kept = KeptMarks()
    script = Script(generation=generation, has_extension=True)
    async with over_http(script, kept=kept) as harness:
        await harness.source.discover()
        first = asyncio.create_task(harness.run(name, {"polls": 1_000_000}, job_id=JOB))
        await harness.sink.until_reported("working")
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        script.tasks["t-1"].polls_left = 2
        url = harness.link.terms.where.url  # type: ignore[union-attr]
        second = stage_of(HttpTerms(url=url), kept=kept, script=script)
        async with started(second):
            outcome = await ends(second, name)
    assert isinstance(outcome, Outcome)
    assert outcome.value == {"text": "made"}
    assert script.asked.count("tools/call") == 1
    assert script.cancelled == []


@pytest.mark.parametrize(("generation", "name"), [("legacy", "long"), ("modern", "perhaps")])
async def test_cancelling_the_job_cancels_the_task(generation: str, name: str) -> None:
    async with tasks(generation) as harness:
        running = asyncio.create_task(ends(harness, name, {"polls": 1_000_000}))
        await harness.sink.until_reported("working")
        harness.kept.cancelled.set()
        error = await running
        assert isinstance(error, ToolError)
        assert error.kind is ErrorKind.CANCELLED
        assert harness.script.cancelled == ["t-1"]


async def test_while_a_task_is_followed_what_its_server_asks_is_put_to_no_other_calls_client() -> None:
    async with tasks("legacy") as harness:
        other = relayed_call("bob")
        running = asyncio.create_task(ends(harness, "long", {"polls": 1_000_000}))
        await harness.sink.until_reported("working")
        with harness.link.running.enter(other, "bob"):
            assert harness.link.running.only is None
        harness.kept.cancelled.set()
        await running


async def test_a_servers_question_after_a_call_was_given_up_reaches_no_other_client() -> None:
    async with tasks("legacy") as harness:
        running = harness.link.running
        with pytest.raises(MCPError), running.enter(relayed_call("alice"), "alice"):
            raise MCPError(INTERNAL_ERROR, "answered")
        bob, alice = relayed_call("bob"), relayed_call("alice")
        with running.enter(bob, "bob"):
            assert asked_of(running) is bob
        for given_up in (asyncio.CancelledError(), MCPError(REQUEST_TIMEOUT, "silent")):
            with pytest.raises((asyncio.CancelledError, MCPError)), running.enter(None, "alice"):
                raise given_up
            with running.enter(bob, "bob"):
                assert asked_of(running) is None
            with running.enter(alice, "alice"):
                assert asked_of(running) is alice


def asked_of(running: Running) -> Relayed | None:
    return running.only


def relayed_call(who: str) -> Relayed:
    call = granted(mcp_tool("echo"), principal=who)
    return Relayed(call, cast(CallingClient, None), frozenset(), str)


@pytest.mark.parametrize("generation", ["legacy", "modern"])
async def test_a_task_that_needs_input_is_reported_and_cancelled(generation: str) -> None:
    async with tasks(generation) as harness:
        error = await ends(harness, "long" if generation == "legacy" else "perhaps", {"polls": -99})
        assert isinstance(error, ToolError)
        assert error.kind is ErrorKind.UPSTREAM_ERROR
        assert "input" in error.message
        assert harness.script.cancelled == ["t-1"]
        assert any("input required" in each.message for each in harness.sink.progresses)


_NAMED = {"type": "object", "properties": {"name": {"type": "string", "default": "Ann"}}, "required": ["name"]}
_NAMELESS = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_NO = {"action": "decline"}


@pytest.mark.parametrize(
    ("elicitation", "form", "given"),
    [
        ("defaults", _NAMED, {"action": "accept", "content": {"name": "Ann"}}),
        ("defaults", _NAMELESS, _NO),
        ("decline", _NAMED, _NO),
    ],
)
async def test_a_task_that_asks_is_answered_at_once_and_goes_on(
    elicitation: Elicitation, form: dict[str, Any], given: dict[str, Any]
) -> None:
    async with tasks("modern", elicitation=elicitation) as harness:
        outcome = await ends(harness, "perhaps", {"wants": {"who": question("Who?", form)}})
        assert isinstance(outcome, Outcome)
        assert harness.script.tasks["t-1"].given == [{"who": given}]
        assert harness.script.cancelled == []
        assert any("input required" in each.message for each in harness.sink.progresses)


async def test_a_task_that_asks_a_person_is_found_again_with_the_reply() -> None:
    async with tasks("modern", elicitation="ask") as harness:
        with pytest.raises(QuestionAsked) as caught:
            await harness.run("perhaps", {"wants": {"who": question("Who?", _NAMED)}}, job_id=JOB)
        assert harness.kept.marks[JOB].remote_id == "t-1"
        outcome = await ends(harness, "perhaps", reply=Reply({"name": "Bob"}, caught.value.question.continuation))
        assert isinstance(outcome, Outcome)
        assert harness.script.tasks["t-1"].given == [{"who": {"action": "accept", "content": {"name": "Bob"}}}]
        assert harness.script.asked.count("tools/call") == 1


async def test_a_task_that_is_to_be_stopped_asks_nobody() -> None:
    async with tasks("modern", elicitation="ask") as harness:
        with pytest.raises(QuestionAsked):
            await harness.run("perhaps", {"wants": {"who": question("Who?", _NAMED)}}, job_id=JOB)
        harness.kept.cancelled.set()
        error = await ends(harness, "perhaps")
        assert isinstance(error, ToolError)
        assert error.kind is ErrorKind.CANCELLED
        assert harness.script.cancelled == ["t-1"]


async def test_a_task_that_asks_for_a_model_is_cancelled() -> None:
    async with tasks("modern", elicitation="defaults") as harness:
        wants = {"think": {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 10}}}
        error = await ends(harness, "perhaps", {"wants": wants})
        assert isinstance(error, ToolError)
        assert error.kind is ErrorKind.UPSTREAM_ERROR
        assert harness.script.cancelled == ["t-1"]


@pytest.mark.parametrize("generation", ["legacy", "modern"])
async def test_a_task_that_fails_returns_the_tools_own_message(generation: str) -> None:
    async with tasks(generation) as harness:
        name = "long" if generation == "legacy" else "perhaps"
        error = await ends(harness, name, {"fails": True, "text": "no paper"})
        assert isinstance(error, ToolError)
        assert error.kind is ErrorKind.UPSTREAM_ERROR
        assert "no paper" in error.message


@pytest.mark.parametrize(("generation", "name"), [("legacy", "long"), ("modern", "perhaps")])
async def test_a_task_that_the_server_forgot_is_lost(generation: str, name: str) -> None:
    async with tasks(generation) as harness:
        running = asyncio.create_task(ends(harness, name, {"polls": 1_000_000}))
        await harness.sink.until_reported("working")
        harness.script.tasks.clear()
        error = await running
        assert isinstance(error, ToolError)
        assert error.kind is ErrorKind.OUTCOME_UNKNOWN
        assert error.details["cause"] == "END_UNCLEAR"


@pytest.mark.parametrize(("read_only", "kind"), [(False, ErrorKind.OUTCOME_UNKNOWN), (True, None)])
async def test_a_start_of_unknown_end_is_sent_again_only_where_that_is_safe(
    read_only: bool, kind: ErrorKind | None
) -> None:
    sent = RemoteMark(key="k", details={"sent_at_unix_ms": "1"})
    async with tasks("legacy", KeptMarks({JOB: sent})) as harness:
        async with asyncio.timeout(WITHIN_S):
            ended = await ends(harness, "long", read_only=read_only)
        assert harness.script.asked.count("tools/call") == (1 if read_only else 0)
        assert (ended.kind if isinstance(ended, ToolError) else None) is kind


async def test_a_refused_start_runs_nothing() -> None:
    async with tasks("modern") as harness:
        error = await ends(harness, "refuses", {"message": "not today"})
        assert isinstance(error, ToolError)
        assert error.kind is ErrorKind.UPSTREAM_ERROR
        assert harness.kept.marks[JOB].details["refused"] == "true"


async def test_a_job_that_asks_a_person_goes_on_with_the_reply() -> None:
    async with tasks("modern", elicitation="ask") as harness:
        with pytest.raises(QuestionAsked) as caught:
            await harness.run("ask", job_id=JOB)
        reply = Reply({"colour": "red"}, caught.value.question.continuation)
        outcome = await ends(harness, "ask", reply=reply)
        assert isinstance(outcome, Outcome)
        assert "red" in str(outcome.value)


async def test_a_server_that_dies_takes_its_tasks_with_it() -> None:
    async with over_stdio("legacy") as harness:
        await harness.source.discover()
        running = asyncio.create_task(ends(harness, "long", {"polls": 1_000_000}, is_async=True))
        await harness.sink.until_reported("working")
        await outcome_of(asyncio.create_task(harness.run("dies")))
        error = await running
        assert isinstance(error, ToolError)
        assert error.kind is ErrorKind.OUTCOME_UNKNOWN


class WaitingServer(Script):
    """Its tool `waits` until it is let go."""

    let_go: asyncio.Event

    async def _tool_waits(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        self.started.set()
        try:
            await self.let_go.wait()
        finally:
            self.stopped.set()
        return text("let go")

    async def _tool_crashes(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        return text(args["text"])


class CrashingOverrides(Overrides):
    """Breaks over what the tool `crashes` says."""

    def finds_error(self, own_name: str) -> FindsError | None:
        return _break if own_name == "crashes" else super().finds_error(own_name)


def _break(text: str) -> bool:
    raise RuntimeError(text)


class TestMcpAdapter(AdapterSuite):
    @pytest.fixture
    async def prepared(self) -> AsyncIterator[Prepared]:
        script = WaitingServer()
        script.let_go = asyncio.Event()
        async with over_http(script) as harness:
            harness.server.overrides = CrashingOverrides()
            await harness.run("echo", {"text": "warm"})
            echo, refuses, crashes, waits = (mcp_tool(name) for name in ("echo", "refuses", "crashes", "waits"))
            events = (script.started, script.let_go, script.stopped)
            yield Prepared(harness.adapter, echo, refuses, crashes, waits, *events)
