"""What all calls within a running call must do. Inherit `InnerCallsSuite` and give the handle of one.

Fixture of the subclass: `calls`, of a call of `HandleProbe` (tests/rpc/replay_harness.py), held until the test ends.
"""

from __future__ import annotations

import asyncio

from tests.rpc.replay_harness import ASKED, EFFECT, NAP, NOW, ReplayHarness, TextOutput, text_of
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.ports import InnerCalls
from toolhub_service.domain.result import Plan, ToolResult
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput

PROBE = "held/probe.hold"
WHY = "a test"


class HandleProbe(Tool["HandleProbe.In", TextOutput]):
    """Lends its handle to the test."""

    name = PROBE
    description = "Hold."
    replays = True
    Out = TextOutput

    class In(ToolInput, frozen=True):
        pass

    def __init__(self) -> None:
        self.lent: asyncio.Queue[InnerCalls] = asyncio.Queue()
        self.may_end = asyncio.Event()

    async def run(self, args: In, context: ToolContext) -> TextOutput:
        assert context.calls is not None
        assert context.calls() is context.calls(), "one handle, or what was used would be forgotten"
        self.lent.put_nowait(context.calls())
        await self.may_end.wait()
        return TextOutput(text="done")


def kind(answer: ToolResult | Plan) -> ErrorKind | None:
    assert isinstance(answer, ToolResult)
    return None if answer.error is None else answer.error.kind


class InnerCallsSuite:
    async def test_any_kind_of_answer_comes_back(self, harness: ReplayHarness, calls: InnerCalls) -> None:
        lent = calls.restrict_to([EFFECT, NOW], 10)
        assert text_of(await lent.invoke(EFFECT, {"marker": "a"}, purpose=WHY)) == "a 1"
        assert kind(await lent.invoke(EFFECT, {"marker": 1}, purpose=WHY)) is ErrorKind.INPUT_SCHEMA_INVALID
        assert kind(await lent.invoke(ASKED, {"marker": "b"}, purpose=WHY)) is ErrorKind.POLICY_DENIED
        assert kind(await lent.invoke("held/none", {}, purpose=WHY)) is ErrorKind.TOOL_NOT_FOUND
        both = await asyncio.gather(*(lent.invoke(EFFECT, {"marker": name}, purpose=WHY) for name in "cd"))
        assert [text_of(each)[0] for each in both] == ["c", "d"]
        assert harness.effect.done == ["a", "c", "d"]

    async def test_offered_tools_can_be_called(self, calls: InnerCalls) -> None:
        names = [spec.name for spec in await calls.offered_tools(lambda spec: spec.name.startswith("held/"))]
        assert names == sorted(names)
        assert {EFFECT, NOW, ASKED, NAP} < set(names)
        assert (calls.depth, calls.durable().depth) == (0, 0)
        lent = calls.restrict_to([NOW, "held/none"], 10)
        only = await lent.offered_tools(lambda _: True)
        assert [spec.name for spec in only] == [NOW]

    async def test_a_narrower_handle_is_part_of_the_wider_one(self, harness: ReplayHarness, calls: InnerCalls) -> None:
        lent = calls.restrict_to([EFFECT, NOW], 3)
        within = lent.restrict_to([EFFECT, ASKED], 100)
        assert [spec.name for spec in await within.offered_tools(lambda _: True)] == [EFFECT]
        answers = [await within.invoke(EFFECT, {"marker": "m"}, purpose=WHY) for _ in range(4)]
        assert [kind(answer) for answer in answers] == [None, None, None, ErrorKind.BUDGET_EXCEEDED]
        assert kind(await lent.invoke(NOW, {"marker": "m"}, purpose=WHY)) is ErrorKind.BUDGET_EXCEEDED
        assert kind(await calls.restrict_to([NOW], 1).invoke(NOW, {"marker": "m"}, purpose=WHY)) is None
        assert len(harness.effect.done) == 3

    async def test_plans_show_what_would_happen_and_change_nothing(
        self, harness: ReplayHarness, calls: InnerCalls
    ) -> None:
        lent = calls.restrict_to([EFFECT, ASKED], 4)
        for tool in (EFFECT, ASKED):
            plan = await lent.plan(tool, {"marker": "a"}, purpose=WHY)
            assert isinstance(plan, Plan)
            assert (plan.tool, plan.args) == (tool, {"marker": "a"})
        assert kind(await lent.plan(NOW, {"marker": "a"}, purpose=WHY)) is ErrorKind.POLICY_DENIED
        assert kind(await lent.plan(EFFECT, {}, purpose=WHY)) is ErrorKind.INPUT_SCHEMA_INVALID
        assert kind(await lent.plan(EFFECT, {"marker": "a"}, purpose=WHY)) is ErrorKind.BUDGET_EXCEEDED
        assert (harness.effect.done, await harness.pending()) == ([], [])

    async def test_a_job_is_awaited(self, harness: ReplayHarness, calls: InnerCalls) -> None:
        harness.nap.may_end.set()
        assert text_of(await calls.restrict_to([NAP], 2).invoke(NAP, {"marker": "n"}, purpose=WHY)) == "rested"
