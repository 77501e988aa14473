"""Hostile programs: what they try through calls of their own, each with the refusal that it meets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub import request
from tests.rpc.replaying import ASKED, AWAITING, EFFECT, SCRIPT, Stage, TextOutput, a_stage, text_of
from toolhub.v1 import error_pb2
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.tool import Annotations
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput

LOOP, BIG = "held/loop.turn", "held/big.read"
MIB = 1024 * 1024


class Loop(Tool["Loop.In", TextOutput]):
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
            handle = handle.narrowed([LOOP], 10_000)
        asked = {"count": args.count + args.step, "step": args.step}
        return TextOutput(text=f"> {text_of(await handle.invoke(LOOP, asked, purpose='for ever'))}")


class Big(Tool["Big.In", TextOutput]):
    name = BIG
    description = "Say much."
    annotations = Annotations(read_only=True)
    Out = TextOutput

    class In(ToolInput, frozen=True):
        pass

    async def run(self, args: In, context: ToolContext) -> TextOutput:
        return TextOutput(text="x" * (MIB - 100))


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with a_stage(tmp_path, [Loop(), Big()]) as opened:
        yield opened


def script(*steps: Any, **args: Any) -> dict[str, Any]:
    return {"steps": [[[tool, given] for tool, given in step] for step in steps], **args}


async def results_of(stage: Stage, *steps: Any, context: dict[str, Any] | None = None, **args: Any) -> list[str]:
    value = await stage.running.value(SCRIPT, script(*steps, **args), metadata=stage.by("robot"), **(context or {}))
    found: list[str] = value["answers"]
    return found


@pytest.mark.promise("inner.bounded", "agent.narrowed-by-the-hub")
async def test_rights_are_no_more_than_the_running_calls(stage: Stage) -> None:
    one = (EFFECT, {"marker": "m"})
    (refused,) = await results_of(stage, [one], lent=["core/util.time.now"])
    assert refused.startswith("POLICY_DENIED")
    within = script([one], lent=[EFFECT, SCRIPT])
    (inner,) = await results_of(stage, [(SCRIPT, within)], lent=[SCRIPT])
    assert inner == "ok", "the inner script runs, and what it lends itself it has not got"
    (copied,) = await results_of(
        stage, [("core/fs.writeText", {"path": "a", "text": "b"})], lent=["*"], context={"permissions": ["read:*"]}
    )
    assert copied.startswith("POLICY_DENIED")
    assert stage.effect.done == []


@pytest.mark.promise("inner.bounded")
async def test_the_whole_budget_is_one_for_all_calls_within_calls(stage: Stage) -> None:
    effects = [[(EFFECT, {"marker": f"m{number}"})] for number in range(5)]
    answers = await results_of(stage, *effects, maxCalls=3)
    assert [answer.split(":")[0] for answer in answers[3:]] == ["BUDGET_EXCEEDED"] * 2
    stage.effect.done.clear()
    within = (SCRIPT, script(*effects, maxCalls=100))
    answers = await results_of(stage, [within], [(EFFECT, {"marker": "last"})], maxCalls=4)
    assert (answers[0], answers[1].split(":")[0]) == ("ok", "BUDGET_EXCEEDED"), "what is within was taken for good"
    assert stage.effect.done == ["m0", "m1", "m2"]
    stage.effect.done.clear()
    answers = await results_of(stage, [within, within], [within], maxCalls=9)
    assert len(stage.effect.done) == 7, "two at once have the same remainder, and not each one of its own"

    answers = await results_of(stage, *[[(BIG, {})]] * 10, [(EFFECT, {"marker": "after"})], lent=[BIG, EFFECT])
    kinds = [answer.split(":")[0][:15] for answer in answers]
    assert kinds == ["x" * 15] * 8 + ["BUDGET_EXCEEDED"] * 3
    assert "the call was made, and its answer is" in answers[8].lower()
    assert "after" not in stage.effect.done


@pytest.mark.promise("inner.bounded")
async def test_a_call_that_calls_itself_comes_to_an_end(stage: Stage) -> None:
    value = await stage.running.value(LOOP, {"count": 0, "step": 0}, metadata=stage.by("robot"))
    assert value["text"].count(">") < 5
    assert f"BUDGET_EXCEEDED: {LOOP} > {LOOP}" in value["text"]
    value = await stage.running.value(LOOP, {"count": 0, "step": 1}, metadata=stage.by("robot"))
    assert value["text"].startswith("> > > > > BUDGET_EXCEEDED: Calls are nested 4 deep")


async def test_artifacts_of_others_are_not_there(stage: Stage) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"a secret of another"

    owner = Call("call-1", "t", {}, Principal("other"))
    artifact = await stage.running.hub.artifacts.keep(chunks(), call=owner, media_type="text/plain")
    (refused,) = await results_of(stage, [(EFFECT, {"marker": artifact.artifact_id})])
    assert refused.startswith("NOT_FOUND")
    assert stage.effect.done == []


@pytest.mark.promise("inner.approval-suspends")
async def test_an_approval_is_for_the_one_call_of_the_one_job(stage: Stage) -> None:
    args = {"marker": "a"}
    job_id = await stage.submit([(ASKED, args)])
    await stage.until(job_id, AWAITING)
    (approval,) = await stage.pending()
    asked = request(ASKED, args, request_id="work")
    asked.approval_id = approval.approval_id
    for by in ("robot", "other"):
        result = (await stage.running.stub.Invoke(asked, metadata=stage.by(by), timeout=60)).result
        assert result.error.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED
    waiting = {one.approval_id for one in await stage.pending()} - {approval.approval_id}
    second = await stage.submit([(ASKED, args)])
    await stage.until(second, AWAITING)
    (own,) = {one.approval_id for one in await stage.pending()} - waiting - {approval.approval_id}
    await stage.decide(own)
    assert await stage.answers(second) == ["a 1"]
    assert (await stage.until(job_id, AWAITING)).state == AWAITING, "that decision was not for it"
    await stage.decide(approval.approval_id)
    assert await stage.answers(job_id) == ["a 2"]
