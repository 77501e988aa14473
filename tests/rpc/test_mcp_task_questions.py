"""Tasks that ask a person (2026-07-28, `input_required`): job and task wait, and go on with the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.mcp_servers.scripted import Script, question, serving
from tests.hub import request
from tests.rpc.real_servers import sourced_hub
from tests.rpc.test_approvals import API_KEYS, REJECT
from tests.rpc.test_mcp_questions import POLICY, McpQuestionsHarness
from toolhub.v1 import error_pb2, job_service_pb2
from toolhub.v1.job_state_pb2 import JobState

FORM = {"type": "object", "properties": {"name": {"type": "string", "default": "Ann"}}, "required": ["name"]}
WHO = {"who": question("Who?", FORM)}
BOTH = {"a": question("First?", FORM), "b": question("Second?", FORM)}
BOB = {"action": "accept", "content": {"name": "Bob"}}


class TaskQuestionsHarness(McpQuestionsHarness):
    """A hub with one MCP server whose tool runs as a task that asks."""

    script: Script

    async def begun(self, wants: dict[str, Any] = WHO, **fields: Any) -> str:
        asked = request("work/perhaps", {"text": "made", "wants": wants}, request_id="work", **fields)
        submitted = job_service_pb2.SubmitJobRequest(intent=asked.intent, context=asked.context)
        return str((await self.jobs.SubmitJob(submitted, metadata=self.by("robot"), timeout=60)).job.job_id)

    async def end(self, job_id: str) -> tuple[str, Any]:
        last = await self.ended(job_id)
        return JobState.Name(last.state).removeprefix("JOB_STATE_"), last.result

    @property
    def given(self) -> list[dict[str, Any]]:
        (task,) = self.script.tasks.values()
        return task.given


@asynccontextmanager
async def works(
    home: Path, script: Script, url: str, names: tuple[str, ...] = ("robot", "judge")
) -> AsyncIterator[TaskQuestionsHarness]:
    sources = {"work": {"url": url, "elicitation": "ask"}}
    async with sourced_hub(home, sources, policy=POLICY, settings=API_KEYS) as running:
        harness = TaskQuestionsHarness(running, names)
        harness.script = script
        yield harness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[TaskQuestionsHarness]:
    script = Script(generation="modern", has_extension=True)
    async with serving(script) as url, works(tmp_path, script, url) as opened:
        yield opened


async def test_task_waits_for_a_person_and_goes_on_with_the_answer(harness: TaskQuestionsHarness) -> None:
    job_id = await harness.begun()
    approval_id = await harness.waiting(job_id)
    assert (await harness.shown(approval_id)).question.message == "Who?"
    ending = asyncio.create_task(harness.end(job_id))
    await harness.answer(approval_id, {"name": "Bob"})
    state, result = await ending
    assert (state, json.loads(result.result_json)) == ("SUCCEEDED", {"text": "made"})
    assert harness.given == [{"who": BOB}]
    assert harness.script.asked.count("tools/call") == 1
    assert harness.script.cancelled == []


async def test_two_questions_of_a_task_are_put_one_after_the_other_and_answered_together(
    harness: TaskQuestionsHarness,
) -> None:
    job_id = await harness.begun(BOTH)
    first = await harness.waiting(job_id)
    await harness.answer(first, {"name": "Bob"})
    second = await harness.waiting(job_id, first)
    await harness.answer(second, {})
    assert (await harness.end(job_id))[0] == "SUCCEEDED"
    assert harness.given == [{"a": BOB, "b": {"action": "accept", "content": {"name": "Ann"}}}]


async def test_a_rejection_stops_the_task(harness: TaskQuestionsHarness) -> None:
    job_id = await harness.begun()
    await harness.decide(await harness.waiting(job_id), REJECT, comment="not today")
    state, result = await harness.end(job_id)
    assert (state, result.error.kind) == ("CANCELLED", error_pb2.ERROR_KIND_CANCELLED)
    job = await harness.running.hub.stores.jobs.get(job_id)
    assert job is not None
    assert job.cancel_reason == "it was not approved: judge denied it: not today"
    assert (harness.given, harness.script.cancelled) == ([], ["t-1"])


async def test_cancelling_the_job_that_waits_stops_the_task(harness: TaskQuestionsHarness) -> None:
    job_id = await harness.begun()
    await harness.waiting(job_id)
    cancel = job_service_pb2.CancelJobRequest(job_id=job_id)
    await harness.jobs.CancelJob(cancel, metadata=harness.by("robot"), timeout=60)
    assert (await harness.end(job_id))[0] == "CANCELLED"
    assert (harness.given, harness.script.cancelled) == ([], ["t-1"])


async def test_key_is_not_free_while_the_task_waits(harness: TaskQuestionsHarness) -> None:
    job_id = await harness.begun(idempotency_key="once")
    approval_id = await harness.waiting(job_id)
    assert await harness.begun(idempotency_key="once") == job_id
    await harness.answer(approval_id, {})
    assert (await harness.end(job_id))[0] == "SUCCEEDED"
    assert await harness.begun(idempotency_key="once") == job_id
    assert harness.script.asked.count("tools/call") == 1


async def test_task_that_waits_is_found_again_by_another_hub(tmp_path: Path) -> None:
    script = Script(generation="modern", has_extension=True)
    async with serving(script) as url:
        async with works(tmp_path, script, url) as harness:
            job_id = await harness.begun()
            approval_id = await harness.waiting(job_id)
            keys = harness._keys
        async with works(tmp_path, script, url, ()) as harness:
            harness._keys = keys
            await harness.answer(approval_id, {"name": "Bob"})
            assert (await harness.end(job_id))[0] == "SUCCEEDED"
            assert harness.given == [{"who": BOB}]
        assert script.asked.count("tools/call") == 1
