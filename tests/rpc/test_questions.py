"""Questions of tools through a whole hub: asked by a call, answered by a person, and then the rest of that call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes.asking_adapter import CANARY, COLOUR, AskingAdapter, an_asking_tool
from tests.hub import request, running_hub
from tests.rpc.statuses import failed
from tests.rpc.test_approvals import API_KEYS, AWAITING, REJECT, ApprovalsHarness
from tests.unit.runtime.approvals.approval_harness import ANN, APPROVED
from toolhub.v1 import approval_pb2, error_pb2, job_service_pb2, job_state_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub.v1 import tool_service_pb2 as calls_pb
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.domain.tool import ToolKind

POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [write:fs]}
roles:
  - {principals: [judge], roles: [approver]}
  - {principals: [boss], roles: [agent, approver]}
"""
PAINT = an_asking_tool()
WALL = {"wall": "north"}
ANSWER = {"colour": "green", "password": "answer-canary"}
REQUIRED = error_pb2.ERROR_KIND_APPROVAL_REQUIRED


class QuestionsHarness(ApprovalsHarness):
    """A hub with one tool that asks a question before it has its effect."""

    adapter: AskingAdapter

    async def paint(self, approval_id: str = "", **fields: Any) -> Any:
        asked = request(PAINT.name, WALL, request_id="work", **fields)
        asked.approval_id = approval_id
        return (await self.running.stub.Invoke(asked, metadata=self.by("robot"), timeout=60)).result

    async def asked(self) -> str:
        result = await self.paint()
        assert result.error.kind == REQUIRED
        return str(result.error.details["approval_id"])

    async def submitted(self) -> Any:
        asked = request(PAINT.name, WALL, request_id="work")
        submitted = job_service_pb2.SubmitJobRequest(intent=asked.intent, context=asked.context)
        return (await self.jobs.SubmitJob(submitted, metadata=self.by("robot"), timeout=60)).job

    async def waiting(self, job_id: str) -> Any:
        """The job, once it waits for a person."""
        watch = self.jobs.WatchJob(
            job_service_pb2.WatchJobRequest(job_id=job_id), metadata=self.by("robot"), timeout=60
        )
        async for answer in watch:
            if answer.status.state == AWAITING:
                break
        watch.cancel()
        wanted = job_service_pb2.GetJobRequest(job_id=job_id)
        return (await self.jobs.GetJob(wanted, metadata=self.by("robot"), timeout=60)).job

    async def answer(self, approval_id: str, answer: Any = ANSWER, **fields: Any) -> approval_pb2.Approval:
        answer_json = b"" if answer is None else json.dumps(answer).encode()
        return (await self.decide(approval_id, answer_json=answer_json, **fields)).approval  # type: ignore[no-any-return]

    async def shown(self, approval_id: str, by: str = "judge") -> approval_pb2.Approval:
        wanted = pb.GetApprovalRequest(approval_id=approval_id)
        return (await self.approvals.GetApproval(wanted, metadata=self.by(by), timeout=60)).approval  # type: ignore[no-any-return]


@asynccontextmanager
async def questions_harness(
    tmp_path: Path, names: tuple[str, ...] = ("robot", "judge")
) -> AsyncIterator[QuestionsHarness]:
    async with running_hub(tmp_path, policy=POLICY, settings=API_KEYS) as running:
        pipeline: Any = running.hub.long_work.runs.invoker
        pipeline.adapters[ToolKind.MCP] = adapter = AskingAdapter()
        running.hub.toolbox.catalog.register(PAINT)
        harness = QuestionsHarness(running, names)
        harness.adapter = adapter
        yield harness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[QuestionsHarness]:
    async with questions_harness(tmp_path) as opened:
        yield opened


@pytest.mark.promise("approval.question-resumes-once")
async def test_person_sees_the_question_and_the_answer_lets_the_call_go_on_once(harness: QuestionsHarness) -> None:
    approval_id = await harness.asked()
    approval = await harness.shown(approval_id)
    assert (approval.question.message, approval.question.round) == ("Which colour?", 1)
    assert json.loads(approval.question.schema_json) == COLOUR
    assert not approval.covers_rule_id
    decided = await harness.answer(approval_id)
    assert decided.state == approval_pb2.APPROVAL_STATE_APPROVED
    done = await harness.paint(approval_id)
    assert json.loads(done.result_json) == {"said": [ANSWER]}
    again = await harness.paint(approval_id)
    assert again.error.kind == REQUIRED
    assert harness.adapter.done == [ANSWER]


@pytest.mark.parametrize(
    ("answer_json", "field"),
    [
        (b"", "answer_json"),
        (b'{"colour":"blue"}', "answer_json/colour"),
        (b"[1]", "answer_json"),
        (b"{", "answer_json"),
        (b'{"colour":"red","colour":"red"}', "answer_json"),
    ],
)
async def test_answer_that_does_not_fit_is_refused_with_the_place(
    harness: QuestionsHarness, answer_json: bytes, field: str
) -> None:
    approval_id = await harness.asked()
    failure = await failed(harness.decide(approval_id, answer_json=answer_json))
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "ANSWER_UNFIT")
    assert list(failure.fields) == [field]
    assert (await harness.shown(approval_id)).state == approval_pb2.APPROVAL_STATE_PENDING


async def test_answer_with_a_no_is_refused(harness: QuestionsHarness) -> None:
    failure = await failed(harness.decide(await harness.asked(), REJECT, answer_json=b"{}"))
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "NOTHING_TO_ANSWER")


async def test_streams_and_sessions_ask_alike(harness: QuestionsHarness) -> None:
    approval_id = await harness.asked()
    streamed = request(PAINT.name, WALL, request_id="work", message=calls_pb.InvokeStreamRequest)
    stream = harness.running.stub.InvokeStream(streamed, metadata=harness.by("robot"), timeout=60)
    *_, last = [answer async for answer in stream]
    assert last.result.error.details["approval_id"] == approval_id
    await harness.answer(approval_id)
    call = request(PAINT.name, WALL, request_id="work", message=calls_pb.SessionCall)
    call.call_id, call.approval_id = "mine", approval_id
    session = harness.running.stub.InvokeSession(metadata=harness.by("robot"), timeout=60)
    await session.write(calls_pb.InvokeSessionRequest(calls=[call]))
    await session.done_writing()
    results = [event async for answer in session for event in answer.events if event.HasField("result")]
    assert [json.loads(event.result.result_json) for event in results] == [{"said": [ANSWER]}]


@pytest.mark.promise("approval.job-goes-on")
async def test_job_waits_for_the_answer_and_goes_on_by_itself(harness: QuestionsHarness) -> None:
    job = await harness.submitted()
    waiting = await harness.waiting(job.job_id)
    assert (await harness.shown(waiting.approval_id)).job_id == job.job_id
    ending = asyncio.create_task(harness.ended(job.job_id))
    await harness.answer(waiting.approval_id)
    last = await ending
    assert last.state == job_state_pb2.JOB_STATE_SUCCEEDED
    assert harness.adapter.done == [ANSWER]
    assert len(harness.adapter.calls) == 2


@pytest.mark.promise("approval.job-goes-on")
async def test_job_that_waits_survives_a_restart_with_its_question(tmp_path: Path) -> None:
    async with questions_harness(tmp_path) as harness:
        job = await harness.submitted()
        approval_id = (await harness.waiting(job.job_id)).approval_id
    async with questions_harness(tmp_path, ("robot-2", "judge-2")) as harness:
        approvals, jobs = harness.running.hub.stores.approvals, harness.running.hub.stores.jobs
        kept, waiting = await approvals.get(approval_id), await jobs.get(job.job_id)
        assert kept is not None
        assert kept.question is not None
        assert waiting is not None
        assert waiting.state.value == "AWAITING_APPROVAL"
        await harness.running.hub.long_work.approvals.decide(ANN, approval_id, APPROVED, answer={"colour": "red"})
        async with asyncio.timeout(60):
            watch = harness.running.hub.long_work.watch.watch(waiting, 0)
            *_, last = [status async for status in watch]
        assert last.state.value == "SUCCEEDED"
        assert harness.adapter.done == [{"colour": "red", "password": "none"}]


@pytest.mark.promise("secrets.nowhere")
async def test_continuation_and_answer_are_shown_to_nobody(harness: QuestionsHarness, capfd: Any) -> None:
    result = await harness.paint()
    approval_id = str(result.error.details["approval_id"])
    decided = await harness.answer(approval_id)
    page = await harness.approvals.ListApprovals(pb.ListApprovalsRequest(), metadata=harness.by("judge"), timeout=60)
    watch = harness.approvals.WatchApprovals(pb.WatchApprovalsRequest(), metadata=harness.by("judge"), timeout=60)
    job = await harness.submitted()
    notified = (await anext(aiter(watch))).approval
    watch.cancel()
    await harness.paint(approval_id)
    waiting = await harness.waiting(job.job_id)
    events = await harness.running.events()
    seen = [result, decided, page, notified, waiting, await harness.shown(approval_id, "robot"), events]
    text = " ".join(repr(each) for each in seen) + "".join(capfd.readouterr())
    assert CANARY not in text
    assert "answer-canary" not in text
    assert harness.adapter.done == [ANSWER]
    data_dir = Paths(harness.running.hub.settings).data_dir
    audited = b"".join(path.read_bytes() for path in data_dir.rglob("*audit*") if path.is_file())
    assert audited
    assert CANARY.encode() not in audited
