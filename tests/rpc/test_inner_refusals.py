"""Inner calls that need a person or a plan and cannot wait: the refusal says what can be done, and nobody is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hub import RunningHub, running_hub
from tests.missing import need_extra
from tests.rpc.replay_harness import AWAITING, ReplayHarness, replay_harness
from toolhub.v1 import error_pb2, result_pb2
from toolhub_service.domain.event import EventType
from toolhub_service.domain.tool import Annotations
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

need_extra("pydantic_monty", "programs")

RUN = "core/program.run"
AS_A_JOB = (
    "A call within core/program.run cannot wait for a person. Submit core/program.run as a job with the same arguments "
    "(SubmitJob; over MCP `job_start`; on the command line `--job`): a job waits for each approval, and goes on by "
    "itself."
)
ASKS = 'import held\nawait held.effect_do(marker="before")\n(await call("held/effect.asked", {"marker": "m"}))["text"]'
CATCHES = """
import held
try:
    await call("held/effect.asked", {"marker": "m"})
except RuntimeError as error:
    found = error_of(error)
[found["kind"], found["message"], "approval_id" in found["details"], (await held.effect_do(marker="after"))["text"]]
"""


async def ran(harness: ReplayHarness, code: str) -> result_pb2.ToolResult:
    return await harness.running.invoke(RUN, {"code": code}, metadata=harness.by("robot"))


@pytest.mark.promise("programs.refusals-say-how")
async def test_a_program_that_meets_an_approval_is_told_to_run_as_a_job_and_does_as_one(tmp_path: Path) -> None:
    async with replay_harness(tmp_path) as harness:
        for _ in range(2):
            refused = await ran(harness, ASKS)
            assert refused.error.kind == error_pb2.ERROR_KIND_EXECUTION_ERROR
            assert "APPROVAL_REQUIRED" in refused.error.message
            assert refused.error.message.endswith(AS_A_JOB)
        assert harness.asked.done == []
        assert await harness.pending() == [], "nobody decides about a call that is never made"
        assert not await harness.running.events(types=frozenset({EventType.APPROVAL_ASKED}))
        job = await harness.running.submit(RUN, {"code": ASKS}, metadata=harness.by("robot"))
        await harness.until(job.job_id, AWAITING)
        (approval,) = await harness.pending()
        await harness.decide(approval.approval_id)
        ended = await harness.ended(job.job_id)
        assert json.loads(ended.result.result_json)["value"].startswith("m ")


async def test_a_program_can_catch_the_refusal_and_goes_on(tmp_path: Path) -> None:
    async with replay_harness(tmp_path) as harness:
        result = await ran(harness, CATCHES)
        kind, message, names_approval, text = json.loads(result.result_json)["value"]
        assert (kind, names_approval) == ("APPROVAL_REQUIRED", False)
        assert message.endswith(AS_A_JOB)
        assert text.startswith("after ")


class Questioner(Tool["Questioner.In", "Questioner.Out"]):
    """Makes one call, without a log in which it could wait."""

    name = "held/call.make"
    description = "Call a tool."
    annotations = Annotations(open_world=True)

    class In(ToolInput, frozen=True):
        tool: str
        args: dict[str, Any]

    class Out(ToolOutput, frozen=True):
        kind: str
        message: str

    async def run(self, args: In, context: ToolContext) -> Out:
        assert context.calls is not None
        result = await context.calls().restrict_to([args.tool], 1).invoke(args.tool, args.args, purpose="a test")
        assert result.error is not None
        return self.Out(kind=result.error.kind.value, message=result.error.message)


POLICY = """
grants: [{principals: [local], capabilities: ["*", "danger:destructive"]}]
rules:
  - {id: copies, effect: REQUIRE_APPROVAL, tools: [core/fs.copy], reason: "A person sees copies."}
  - {id: writes, effect: REQUIRE_PLAN, tools: [core/fs.writeText]}
"""


async def made(hub: RunningHub, tool: str, args: dict[str, Any], *, as_job: bool) -> dict[str, Any]:
    given = {"tool": tool, "args": args}
    if as_job:
        job = await hub.submit(Questioner.name, given)
        answer = (await hub.watched(job.job_id))[-1].result.result_json
    else:
        answer = (await hub.invoke(Questioner.name, given)).result_json
    value: dict[str, Any] = json.loads(answer)
    return value


@pytest.mark.parametrize("as_job", [False, True])
@pytest.mark.parametrize(
    ("tool", "args", "kind", "advice"),
    [
        (
            "core/fs.copy",
            {"source": "a", "destination": "b"},
            "APPROVAL_REQUIRED",
            "cannot wait for a person. Make this call yourself, not within held/call.make, and wait for its approval.",
        ),
        (
            "core/fs.writeText",
            {"path": "a", "text": "b"},
            "PLAN_REQUIRED",
            "cannot show a plan first. Make this call yourself, not within held/call.make: with mode DRY_RUN",
        ),
        (
            "core/fs.deletePath",
            {"path": "a", "confirm": True},
            "PLAN_REQUIRED",
            "not within held/call.make: with mode DRY_RUN",
        ),
    ],
)
async def test_a_tool_that_cannot_wait_is_told_that_its_caller_must_make_the_call(
    tmp_path: Path, tool: str, args: dict[str, Any], kind: str, advice: str, *, as_job: bool
) -> None:
    async with running_hub(tmp_path, policy=POLICY, tools=[Questioner()]) as hub:
        found = await made(hub, tool, args, as_job=as_job)
        assert found["kind"] == kind
        assert advice in found["message"]
        assert not await hub.events(types=frozenset({EventType.APPROVAL_ASKED}))
