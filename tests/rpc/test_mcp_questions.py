"""Questions of a real MCP server (the SDK's, 2026-07-28) through a hub: a person answers, and the call goes on once."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.fakes.mcp_servers.asking import AskingServer, asking_server
from tests.hub import RunningHub, request
from tests.rpc.real_servers import sourced_hub
from tests.rpc.statuses import failed
from tests.rpc.test_approvals import API_KEYS, AWAITING, REJECT, ApprovalsHarness
from toolhub.v1 import approval_pb2, error_pb2, job_service_pb2, job_state_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub.v1 import tool_service_pb2 as calls_pb
from toolhub_service.cli.root import toolhub

ROOT = Path(__file__).parents[2]
POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: ["mcp:*"]}
roles:
  - {principals: [judge], roles: [approver]}
  - {principals: [boss], roles: [agent, approver]}
"""
RULE = """
rules:
  - {id: food-needs-a-yes, effect: REQUIRE_APPROVAL, tools: ["kitchen/*"], reason: Food costs money.}
"""
SOUP = {"dish": "soup"}
ANSWER = {"name": "Ann", "size": "large", "pieces": 3}
ORDERED = {"dish": "soup", "name": "Ann", "size": "large", "pieces": 3, "price": 4.5, "to_go": False}
REQUIRED = error_pb2.ERROR_KIND_APPROVAL_REQUIRED
REJECTED = error_pb2.ERROR_KIND_APPROVAL_REJECTED


class McpQuestionsHarness(ApprovalsHarness):
    """A hub with one MCP server whose tools ask questions."""

    server: AskingServer

    async def order(self, approval_id: str = "", tool: str = "order", **fields: Any) -> Any:
        asked = request(f"kitchen/{tool}", SOUP, request_id="dinner", **fields)
        asked.approval_id = approval_id
        return (await self.running.stub.Invoke(asked, metadata=self.by("robot"), timeout=60)).result

    async def asked(self, tool: str = "order", **fields: Any) -> str:
        return _approval_of(await self.order(tool=tool, **fields))

    async def answer(self, approval_id: str, answer: Any = ANSWER) -> None:
        await self.decide(approval_id, answer_json=json.dumps(answer).encode())

    async def shown(self, approval_id: str) -> approval_pb2.Approval:
        wanted = pb.GetApprovalRequest(approval_id=approval_id)
        return (await self.approvals.GetApproval(wanted, metadata=self.by("judge"), timeout=60)).approval  # type: ignore[no-any-return]

    async def submitted(self, tool: str = "order") -> str:
        asked = request(f"kitchen/{tool}", SOUP, request_id="dinner")
        submitted = job_service_pb2.SubmitJobRequest(intent=asked.intent, context=asked.context)
        return str((await self.jobs.SubmitJob(submitted, metadata=self.by("robot"), timeout=60)).job.job_id)

    async def waiting(self, job_id: str, but: str = "") -> str:
        """The approval that the job waits for, once it waits for one other than `but`; as a watcher of it sees it."""
        watched = job_service_pb2.WatchJobRequest(job_id=job_id)
        watch = self.jobs.WatchJob(watched, metadata=self.by("robot"), timeout=60)
        async for answer in watch:
            assert answer.status.state < job_state_pb2.JOB_STATE_SUCCEEDED or answer.status.state == AWAITING
            if answer.status.state == AWAITING and (approval_id := await self.approval_of(job_id)) != but:
                watch.cancel()
                return approval_id
        raise AssertionError("it ended without a question")

    async def approval_of(self, job_id: str) -> str:
        wanted = job_service_pb2.GetJobRequest(job_id=job_id)
        return str((await self.jobs.GetJob(wanted, metadata=self.by("robot"), timeout=60)).job.approval_id)

    async def cli(self, *words: str, by: str = "judge") -> Result:
        key = dict(self.by(by))["authorization"].removeprefix("Bearer ")
        env = {"TOOLHUB_ADDRESS": self.running.address, "TOOLHUB_API_KEY": key}
        return await asyncio.to_thread(CliRunner().invoke, toolhub, ["approvals", *words], env=env)


def _approval_of(result: Any) -> str:
    assert result.error.kind == REQUIRED, result
    return str(result.error.details["approval_id"])


@asynccontextmanager
async def mcp_questions_harness(
    home: Path,
    *,
    policy: str = POLICY,
    elicitation: str = "ask",
    is_modern: bool = True,
    names: tuple[str, ...] = ("robot", "judge", "boss"),
    server: AskingServer | None = None,
    **settings: Any,
) -> AsyncIterator[McpQuestionsHarness]:
    async with _asking_server(server, is_modern) as cooking:
        sources = {"kitchen": {"url": cooking.url, "elicitation": elicitation}}
        async with sourced_hub(home, sources, policy=policy, settings={**API_KEYS, **settings}) as running:
            harness = McpQuestionsHarness(running, names)
            harness.server = cooking
            yield harness


@asynccontextmanager
async def _asking_server(server: AskingServer | None, is_modern: bool) -> AsyncIterator[AskingServer]:
    if server is not None:
        yield server
        return
    async with asking_server(is_modern=is_modern) as opened:
        yield opened


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[McpQuestionsHarness]:
    async with mcp_questions_harness(tmp_path) as opened:
        yield opened


async def test_question_is_answered_on_the_command_line_and_reaches_the_server_once(
    harness: McpQuestionsHarness,
) -> None:
    approval_id = await harness.asked()
    listed = json.loads((await harness.cli("list", "--json")).stdout)["approvals"]
    assert [each["approvalId"] for each in listed] == [approval_id]
    shown = json.loads((await harness.cli("show", approval_id, "--json")).stdout)
    assert shown["question"]["message"] == "How do you want your soup?"
    assert set(shown["question"]["schema"]["properties"]) == {"name", "size", "pieces", "price", "to_go"}
    words = [word for name, value in ANSWER.items() for word in ("--answer", f"{name}={value}")]
    own = await harness.cli("approve", approval_id, "--yes", *words, by="robot")
    assert own.exit_code != 0, "not by the one who asks"
    done = await harness.cli("approve", approval_id, "--yes", *words)
    assert done.exit_code == 0, done.output
    assert harness.server.orders == []
    result = await harness.order(approval_id)
    assert json.loads(result.result_json) == {"result": "3 large soup for Ann"}
    again = await harness.order(approval_id)
    assert again.error.kind == REQUIRED
    assert "already been used" in again.error.message
    assert harness.server.orders == [ORDERED]


@pytest.mark.slow
async def test_program_asks_alike(tmp_path: Path) -> None:
    """On standard input and output."""
    program = {"command": sys.executable, "args": ["-m", "tests.fakes.mcp_servers.asking"], "cwd": str(ROOT)}
    sources = {"kitchen": {**program, "elicitation": "ask"}}
    async with sourced_hub(tmp_path, sources, policy=POLICY, settings=API_KEYS) as running:
        harness = McpQuestionsHarness(running)
        approval_id = await harness.asked()
        await harness.answer(approval_id)
        assert json.loads((await harness.order(approval_id)).result_json) == {"result": "3 large soup for Ann"}


async def test_one_of_many_calls_with_one_answer_goes_on(harness: McpQuestionsHarness) -> None:
    approval_id = await harness.asked()
    await harness.answer(approval_id)
    results = await asyncio.gather(*(harness.order(approval_id) for _ in range(10)))
    assert sum(result.ok for result in results) == 1
    assert harness.server.orders == [ORDERED]


async def test_a_refusal_ends_the_call_and_nothing_reaches_the_server(harness: McpQuestionsHarness) -> None:
    approval_id = await harness.asked()
    await harness.decide(approval_id, REJECT, comment="not today")
    result = await harness.order(approval_id)
    assert result.error.kind == REJECTED
    assert "not today" in result.error.message
    assert harness.server.orders == []


async def test_question_that_nobody_answers_lapses(harness: McpQuestionsHarness) -> None:
    approval_id = await harness.asked()
    in_a_day_ms = harness.running.hub.clock.unix_ms() + 86_400_000
    assert await harness.running.hub.long_work.approvals.expire_due(in_a_day_ms) == 1
    failure = await failed(harness.decide(approval_id, answer_json=json.dumps(ANSWER).encode()))
    assert failure.reason == "APPROVAL_EXPIRED"
    assert (await harness.order(approval_id)).error.kind == REJECTED
    assert harness.server.orders == []


@pytest.mark.parametrize(
    ("answer", "field"),
    [({}, "name"), ({"name": "Ann", "size": "huge"}, "size"), ({"name": "Ann", "pieces": 10}, "pieces")],
)
async def test_answer_that_does_not_fit_is_refused_with_its_place(
    harness: McpQuestionsHarness, answer: Any, field: str
) -> None:
    approval_id = await harness.asked()
    failure = await failed(harness.decide(approval_id, answer_json=json.dumps(answer).encode()))
    assert failure.reason == "ANSWER_UNFIT"
    assert field in " ".join(failure.fields) + failure.message
    await harness.answer(approval_id)
    assert (await harness.order(approval_id)).ok


async def test_two_questions_are_asked_one_after_the_other(harness: McpQuestionsHarness) -> None:
    first = await harness.asked("sure")
    await harness.answer(first, {"word": "aye"})
    second = _approval_of(await harness.order(first, "sure"))
    question = (await harness.shown(second)).question
    assert (question.message, question.round) == ("You said aye. How do you want your soup?", 2)
    await harness.answer(second)
    assert (await harness.order(second, "sure")).ok
    assert harness.server.orders == [{**ORDERED, "agreed": "aye"}]


async def test_job_waits_for_each_answer_and_goes_on_by_itself(harness: McpQuestionsHarness) -> None:
    job_id = await harness.submitted("sure")
    first = await harness.waiting(job_id)
    await harness.answer(first, {})
    second = await harness.waiting(job_id, first)
    ending = asyncio.create_task(harness.ended(job_id))
    await harness.answer(second)
    last = await ending
    assert last.state == job_state_pb2.JOB_STATE_SUCCEEDED, last
    assert harness.server.orders == [{**ORDERED, "agreed": "yes"}]


async def test_job_that_is_declined_fails(harness: McpQuestionsHarness) -> None:
    job_id = await harness.submitted()
    await harness.decide(await harness.waiting(job_id), REJECT)
    last = await harness.ended(job_id)
    assert last.state == job_state_pb2.JOB_STATE_FAILED
    assert last.result.error.kind == REJECTED
    assert harness.server.orders == []


async def test_session_asks_and_goes_on_alike(harness: McpQuestionsHarness) -> None:
    session = harness.running.stub.InvokeSession(metadata=harness.by("robot"), timeout=60)
    results = []
    approval_id = ""
    for call_id in ("before", "after"):
        call = request("kitchen/order", SOUP, request_id="dinner", message=calls_pb.SessionCall)
        call.call_id, call.approval_id = call_id, approval_id
        await session.write(calls_pb.InvokeSessionRequest(calls=[call]))
        while not (found := [e for e in (await session.read()).events if e.HasField("result")]):
            pass
        results.append(found[0].result)
        if not approval_id:
            approval_id = _approval_of(results[0])
            await harness.answer(approval_id)
    await session.done_writing()
    assert results[1].ok, results[1]
    assert harness.server.orders == [ORDERED]


async def test_key_that_goes_along_gives_the_one_result_again(harness: McpQuestionsHarness) -> None:
    approval_id = await harness.asked(idempotency_key="dinner-1")
    await harness.answer(approval_id)
    first = await harness.order(approval_id, idempotency_key="dinner-1")
    again = await harness.order(approval_id, idempotency_key="dinner-1")
    assert (first.ok, again.ok, again.replayed) == (True, True, True)
    assert harness.server.orders == [ORDERED]


async def test_rule_and_question_of_one_call_are_two_approvals(tmp_path: Path) -> None:
    async with mcp_questions_harness(tmp_path, policy=POLICY + RULE) as harness:
        rules = await harness.asked()
        assert not (await harness.shown(rules)).HasField("question")
        await harness.decide(rules)
        tools = _approval_of(await harness.order(rules))
        assert (await harness.shown(tools)).covers_rule_id == "food-needs-a-yes"
        await harness.answer(tools)
        assert (await harness.order(tools)).ok
        assert harness.server.orders == [ORDERED]


async def test_answer_outlives_a_hub(tmp_path: Path) -> None:
    async with asking_server() as server:
        async with mcp_questions_harness(tmp_path, server=server) as harness:
            approval_id = await harness.asked()
            job_id = await harness.submitted()
            waited = await harness.waiting(job_id)
            keys = harness._keys
        async with mcp_questions_harness(tmp_path, server=server, names=()) as harness:
            harness._keys = keys
            ending = asyncio.create_task(harness.ended(job_id))
            await harness.answer(approval_id)
            await harness.answer(waited)
            assert (await harness.order(approval_id)).ok
            assert (await ending).state == job_state_pb2.JOB_STATE_SUCCEEDED
        assert server.orders == [ORDERED, ORDERED]


@pytest.mark.parametrize("tool", ["order", "sure"])
async def test_answer_outlives_the_server_that_asked(harness: McpQuestionsHarness, tool: str) -> None:
    """Another process of it does not know what it has sealed; it asks again, and has its answer."""
    approval_id = await harness.asked(tool)
    if tool == "sure":
        await harness.answer(approval_id, {})
        approval_id = _approval_of(await harness.order(approval_id, tool))
    await harness.answer(approval_id)
    await harness.server.restarted()
    result = await harness.order(approval_id, tool)
    assert result.ok, result.error.message
    assert harness.server.orders == [ORDERED if tool == "order" else {**ORDERED, "agreed": "yes"}]


async def test_server_that_asks_otherwise_after_its_restart_is_answered_anew(harness: McpQuestionsHarness) -> None:
    approval_id = await harness.asked()
    await harness.answer(approval_id)
    harness.server.manner = "Today, how"
    await harness.server.restarted()
    again = _approval_of(await harness.order(approval_id))
    assert again != approval_id
    assert (await harness.shown(again)).question.message == "Today, how do you want your soup?"
    assert harness.server.orders == []


@pytest.mark.parametrize("is_modern", [True, False])
async def test_defaults_answer_at_once_where_they_are_enough(tmp_path: Path, *, is_modern: bool) -> None:
    async with mcp_questions_harness(tmp_path, elicitation="defaults", is_modern=is_modern) as harness:
        assert json.loads((await harness.order(tool="agree")).result_json) == {"result": "yes"}
        refused = await harness.order()
        assert refused.error.kind == error_pb2.ERROR_KIND_UPSTREAM_ERROR
        assert harness.server.orders == [{"dish": "soup", "agreed": "yes"}]


@pytest.mark.parametrize(("elicitation", "is_modern"), [("decline", True), ("decline", False), ("ask", False)])
async def test_no_approval_is_asked_for_where_nobody_can_decide(
    tmp_path: Path, elicitation: str, *, is_modern: bool
) -> None:
    """An older server holds the call open while it waits: it is answered with a refusal."""
    async with mcp_questions_harness(tmp_path, elicitation=elicitation, is_modern=is_modern) as harness:
        refused = await harness.order()
        assert refused.error.kind == error_pb2.ERROR_KIND_UPSTREAM_ERROR
        assert harness.server.orders == []
        assert await _pending(harness.running) == 0


async def _pending(running: RunningHub) -> int:
    from toolhub_service.domain.approval import ApprovalFilter

    _, total = await running.hub.stores.approvals.page(ApprovalFilter(), after=None, limit=1)
    return total
