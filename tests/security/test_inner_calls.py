"""Hostile programs: what they try through calls of their own, each with the refusal that it meets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub import request
from tests.rpc.replay_harness import ASKED, AWAITING, EFFECT, SCRIPT, ReplayHarness, TextOutput, replay_harness, text_of
from toolhub.v1 import error_pb2
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.tool import Annotations
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput

LOOP, BIG = "held/loop.turn", "held/big.read"
MIB = 1024 * 1024


class CallsItself(Tool["CallsItself.In", TextOutput]):
    """Calls itself, with other arguments each time where it counts."""

    name = LOOP
    description = "Turn."
    annotations = Annotations(read_only=True)
    Out = TextOutput

    class In(ToolInput, frozen=True):
        count: int = 0
        step: int = 0

    async def run(self, args: In, context: ToolContext) -> TextOutput:
        assert context.calls is not None
        handle = context.calls()
        if handle.depth < 4:
            handle = handle.restrict_to([LOOP], 10_000)
        asked = {"count": args.count + args.step, "step": args.step}
        return TextOutput(text=f"> {text_of(await handle.invoke(LOOP, asked, purpose='for ever'))}")


class BigOutput(Tool["BigOutput.In", TextOutput]):
    name = BIG
    description = "Say much."
    annotations = Annotations(read_only=True)
    Out = TextOutput

    class In(ToolInput, frozen=True):
        pass

    async def run(self, args: In, context: ToolContext) -> TextOutput:
        return TextOutput(text="x" * (MIB - 100))


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ReplayHarness]:
    async with replay_harness(tmp_path, [CallsItself(), BigOutput()]) as opened:
        yield opened


def script(*steps: Any, **args: Any) -> dict[str, Any]:
    return {"steps": [[[tool, given] for tool, given in step] for step in steps], **args}


async def results_of(
    harness: ReplayHarness, *steps: Any, context: dict[str, Any] | None = None, **args: Any
) -> list[str]:
    value = await harness.running.value(SCRIPT, script(*steps, **args), metadata=harness.by("robot"), **(context or {}))
    found: list[str] = value["answers"]
    return found


@pytest.mark.promise("inner.bounded", "agent.narrowed-by-the-hub")
async def test_rights_are_no_more_than_the_running_calls(harness: ReplayHarness) -> None:
    one = (EFFECT, {"marker": "m"})
    (refused,) = await results_of(harness, [one], lent=["core/util.time.now"])
    assert refused.startswith("POLICY_DENIED")
    within = script([one], lent=[EFFECT, SCRIPT])
    (inner,) = await results_of(harness, [(SCRIPT, within)], lent=[SCRIPT])
    assert inner == "ok", "the inner script runs, and what it lends itself it has not got"
    (copied,) = await results_of(
        harness, [("core/fs.writeText", {"path": "a", "text": "b"})], lent=["*"], context={"permissions": ["read:*"]}
    )
    assert copied.startswith("POLICY_DENIED")
    assert harness.effect.done == []


@pytest.mark.promise("inner.bounded")
async def test_the_whole_budget_is_one_for_all_calls_within_calls(harness: ReplayHarness) -> None:
    effects = [[(EFFECT, {"marker": f"m{number}"})] for number in range(5)]
    answers = await results_of(harness, *effects, maxCalls=3)
    assert [answer.split(":")[0] for answer in answers[3:]] == ["BUDGET_EXCEEDED"] * 2
    harness.effect.done.clear()
    within = (SCRIPT, script(*effects, maxCalls=100))
    answers = await results_of(harness, [within], [(EFFECT, {"marker": "last"})], maxCalls=4)
    assert (answers[0], answers[1].split(":")[0]) == ("ok", "BUDGET_EXCEEDED"), "what is within was taken for good"
    assert harness.effect.done == ["m0", "m1", "m2"]
    harness.effect.done.clear()
    answers = await results_of(harness, [within, within], [within], maxCalls=9)
    assert len(harness.effect.done) == 7, "two at once have the same remainder, and not each one of its own"

    answers = await results_of(harness, *[[(BIG, {})]] * 10, [(EFFECT, {"marker": "after"})], lent=[BIG, EFFECT])
    kinds = [answer.split(":")[0][:15] for answer in answers]
    assert kinds == ["x" * 15] * 8 + ["BUDGET_EXCEEDED"] * 3
    assert "the call was made, and its answer is" in answers[8].lower()
    assert "after" not in harness.effect.done


@pytest.mark.promise("inner.bounded")
async def test_a_call_that_calls_itself_comes_to_an_end(harness: ReplayHarness) -> None:
    value = await harness.running.value(LOOP, {"count": 0, "step": 0}, metadata=harness.by("robot"))
    assert value["text"].count(">") < 5
    assert f"BUDGET_EXCEEDED: {LOOP} > {LOOP}" in value["text"]
    value = await harness.running.value(LOOP, {"count": 0, "step": 1}, metadata=harness.by("robot"))
    assert value["text"].startswith("> > > > > BUDGET_EXCEEDED: Calls are nested 4 deep")


async def test_artifacts_of_others_are_not_there(harness: ReplayHarness) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"a secret of another"

    owner = Call("call-1", "t", {}, Principal("other"))
    artifact = await harness.running.hub.artifacts.keep(chunks(), call=owner, media_type="text/plain")
    (refused,) = await results_of(harness, [(EFFECT, {"marker": artifact.artifact_id})])
    assert refused.startswith("NOT_FOUND")
    assert harness.effect.done == []


@pytest.mark.promise("inner.approval-suspends")
async def test_an_approval_is_for_the_one_call_of_the_one_job(harness: ReplayHarness) -> None:
    args = {"marker": "a"}
    job_id = await harness.submit([(ASKED, args)])
    await harness.until(job_id, AWAITING)
    (approval,) = await harness.pending()
    asked = request(ASKED, args, request_id="work")
    asked.approval_id = approval.approval_id
    for by in ("robot", "other"):
        result = (await harness.running.stub.Invoke(asked, metadata=harness.by(by), timeout=60)).result
        assert result.error.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED
    waiting = {one.approval_id for one in await harness.pending()} - {approval.approval_id}
    second = await harness.submit([(ASKED, args)])
    await harness.until(second, AWAITING)
    (own,) = {one.approval_id for one in await harness.pending()} - waiting - {approval.approval_id}
    await harness.decide(own)
    assert await harness.answers(second) == ["a 1"]
    assert (await harness.until(job_id, AWAITING)).state == AWAITING, "that decision was not for it"
    await harness.decide(approval.approval_id)
    assert await harness.answers(job_id) == ["a 2"]
