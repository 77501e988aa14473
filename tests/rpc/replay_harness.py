"""Tools that make calls by the log of their job, and people who decide, for tests of durable inner calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.hub import RunningHub, running_hub
from toolhub.v1 import approval_pb2, approval_service_pb2, job_pb2, job_service_pb2, job_state_pb2
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.tool import Annotations, CostHints, ToolLimits
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

SCRIPT, EFFECT, ASKED, NAP, NOW = "held/script.run", "held/effect.do", "held/effect.asked", "held/nap.take", "held/now"
LENT = (SCRIPT, EFFECT, ASKED, NAP, NOW)
POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: ["*"]}
roles:
  - {principals: [judge], roles: [approver]}
rules:
  - {id: ask, effect: REQUIRE_APPROVAL, tools: [held/effect.asked], reason: It costs money.}
"""
AWAITING = job_state_pb2.JOB_STATE_AWAITING_APPROVAL
SUCCEEDED = job_state_pb2.JOB_STATE_SUCCEEDED
CANCELLED = job_state_pb2.JOB_STATE_CANCELLED


PEOPLE = ("robot", "judge", "other")
Keys = Mapping[str, tuple[tuple[str, str], ...]]


class Marked(ToolInput, frozen=True):
    marker: str


class TextOutput(ToolOutput, frozen=True):
    text: str


class Effect(Tool[Marked, TextOutput]):
    """Must not happen twice."""

    name = EFFECT
    description = "Have an effect."
    In, Out = Marked, TextOutput

    def __init__(self) -> None:
        self.done: list[str] = []

    async def run(self, args: Marked, context: ToolContext) -> TextOutput:
        self.done.append(args.marker)
        await asyncio.sleep(0)
        return TextOutput(text=f"{args.marker} {len(self.done)}")


class ApprovedEffect(Effect):
    name = ASKED


class ChangingAnswer(Effect):
    """Another answer each time."""

    name = NOW
    annotations = Annotations(read_only=True)


class NapJob(Tool[Marked, TextOutput]):
    """Always a job; ends when it may."""

    name = NAP
    description = "Take a nap."
    annotations = Annotations(idempotent=True)
    cost = CostHints(is_async=True)
    limits = ToolLimits(timeout_s=120.0)
    In, Out = Marked, TextOutput

    def __init__(self) -> None:
        self.begun, self.may_end, self.cut_off = asyncio.Event(), asyncio.Event(), 0
        self.job_ids: set[str] = set()

    async def run(self, args: Marked, context: ToolContext) -> TextOutput:
        assert context.call is not None
        self.job_ids.add(context.call.job_id)
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cut_off += 1
            raise
        return TextOutput(text="rested")


class Script(Tool["Script.In", "Script.Out"]):
    """Makes the calls it is given: those of one step at once, one step after the other."""

    name = SCRIPT
    description = "Make calls."
    limits = ToolLimits(timeout_s=120.0)
    replays = True

    class In(ToolInput, frozen=True):
        steps: tuple[tuple[tuple[str, dict[str, Any]], ...], ...]
        lent: tuple[str, ...] = LENT
        max_calls: int = 100

    class Out(ToolOutput, frozen=True):
        answers: tuple[str, ...]

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, args: In, context: ToolContext) -> Out:
        assert context.calls is not None
        self.runs += 1
        calls = context.calls().restrict_to(args.lent, args.max_calls).durable()
        answers: list[str] = []
        for step in args.steps:
            async with asyncio.TaskGroup() as group:
                asked = [
                    group.create_task(calls.invoke(tool, _referring(given), purpose="a script")) for tool, given in step
                ]
            answers += (text_of(each.result()) for each in asked)
        return self.Out(answers=tuple(answers))


def _referring(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments with references where artifacts are named, as a program would make them up."""
    return {name: {"$artifact": value} if str(value).startswith("art_") else value for name, value in given.items()}


def text_of(result: ToolResult) -> str:
    """What it says, as far as it is short, or its error."""
    if result.error is not None:
        return f"{result.error.kind.value}: {result.error.message}"
    return str(result.value["text"])[:500] if isinstance(result.value, Mapping) and "text" in result.value else "ok"


Actors = tuple[Script, Effect, ApprovedEffect, NapJob, ChangingAnswer]


class ReplayHarness:
    """A hub with these tools, robot who calls them, and judge who decides."""

    def __init__(self, running: RunningHub, actors: Actors, keys: Keys | None = None) -> None:
        self.running = running
        self.script, self.effect, self.asked, self.nap, self.now = actors
        file = Paths(running.hub.settings).key_file()
        self.keys = keys or {name: (("authorization", f"Bearer {file.create(name)}"),) for name in PEOPLE}
        reload_keys(running.hub, file)

    def by(self, name: str) -> tuple[tuple[str, str], ...]:
        return self.keys[name]

    @property
    def approvals(self) -> Any:
        return ApprovalServiceStub(self.running.channel)

    async def submit(self, *steps: Any, tool: str = SCRIPT, **args: Any) -> str:
        args = {"steps": [[[name, given] for name, given in step] for step in steps], **args}
        job = await self.running.submit(tool, args, request_id="work", metadata=self.by("robot"))
        return str(job.job_id)

    async def until(self, job_id: str, state: job_state_pb2.JobState.ValueType) -> job_pb2.JobStatus:
        """The first entry of its history with that state, from now on; its end where it never comes."""
        asked = job_service_pb2.WatchJobRequest(job_id=job_id)
        status: Any = None
        watch = self.running.jobs.WatchJob(asked, timeout=60, metadata=self.by("robot"))
        async for answer in watch:
            status = answer.status
            if status.state == state:
                watch.cancel()
                break
        return status  # type: ignore[no-any-return]

    async def ended(self, job_id: str) -> job_pb2.JobStatus:
        return (await self.running.watched(job_id, metadata=self.by("robot")))[-1]

    async def answers(self, job_id: str) -> list[str]:
        ended = await self.ended(job_id)
        assert ended.state == SUCCEEDED, ended
        found: list[str] = json.loads(ended.result.result_json)["answers"]
        return found

    async def forgotten(self, job_id: str) -> None:
        """Once nothing is left of the job's log: right after its end."""
        while await self.running.hub.stores.inner_log.of_job(job_id):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)

    async def pending(self) -> list[approval_pb2.Approval]:
        asked = approval_service_pb2.ListApprovalsRequest(states=[approval_pb2.APPROVAL_STATE_PENDING])
        page = await self.approvals.ListApprovals(asked, metadata=self.by("judge"), timeout=60)
        return list(page.approvals)

    async def decide(self, approval_id: str, *, yes: bool = True, answer: Any = None) -> None:
        decision = approval_pb2.DECISION_APPROVE if yes else approval_pb2.DECISION_REJECT
        asked = approval_service_pb2.DecideApprovalRequest(approval_id=approval_id, decision=decision)
        if answer is not None:
            asked.answer_json = json.dumps(answer).encode()
        await self.approvals.DecideApproval(asked, metadata=self.by("judge"), timeout=60)


@asynccontextmanager
async def replay_harness(
    home: Path,
    tools: Sequence[Tool[Any, Any, Any]] = (),
    policy: str = "",
    keys: Keys | None = None,
    grace_s: float = 2.0,
    **jobs: Any,
) -> AsyncIterator[ReplayHarness]:
    """`tools`: besides those above. `grace_s`: what runs has so long when the hub leaves."""
    actors: Actors = (Script(), Effect(), ApprovedEffect(), NapJob(), ChangingAnswer())
    settings = {
        "auth": {"modes": ["api-key"]},
        "server": {"drain_s": grace_s},
        "jobs": {"heartbeat_s": 0.1, "dead_after_s": 0.5, **jobs},
    }
    async with running_hub(home, policy=POLICY + policy, settings=settings, tools=[*actors, *tools]) as running:
        yield ReplayHarness(running, actors, keys)
