"""Jobs that make calls by their log, a person who decides, and what must hold of them after any number of kills."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio

from tests.chaos.fleet import AWAY, IMPATIENT, OPEN
from toolhub.v1 import approval_pb2, call_pb2, error_pb2, job_pb2, job_service_pb2, job_state_pb2, tool_service_pb2
from toolhub.v1 import approval_service_pb2 as approvals_pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_client import FINAL_STATES
from toolhub_client.channel import OPTIONS
from toolhub_service.app.config_files.key_file import KeyFile

POLICY = """
extends: none
grants:
  - {principals: [robot], capabilities: ["*"]}
roles:
  - {principals: [judge], roles: [approver]}
rules:
  - {id: ask, effect: REQUIRE_APPROVAL, tools: [chaos/effect.asked]}
"""
TOOLS = ("EffectOnce", "AskedEffect", "NapJob", "QuickRead", "CallsMade")
CALLS, PROGRAM, PLAN, NAP = "chaos/calls.make", "core/program.run", "skill/storm", "chaos/nap.job"
EFFECTS = frozenset({"chaos/effect.once", "chaos/effect.asked"})
LOST = job_state_pb2.JOB_STATE_LOST
SUCCEEDED = job_state_pb2.JOB_STATE_SUCCEEDED
_LOOK_S = 0.1
_RPC_S = 10.0
_TEXT = """
import asyncio
async def made(tool, args):
    try:
        await call(tool, args)
        return 'ok'
    except RuntimeError as e:
        return error_of(e)['kind']
answers = []
for tool, args in inputs['calls'][:-2]:
    answers.append(await made(tool, args))
answers += await asyncio.gather(*[made(tool, args) for tool, args in inputs['calls'][-2:]])
{'answers': answers}
"""


OBJECT = {"type": "object"}
_STEPS = [
    {
        "id": name,
        "tool": tool,
        "for_each": f"/input/{name}",
        "parallel": 2,
        "args": {"marker": {"$from": "/item"}},
        "after": after,
    }
    for name, tool, after in (
        ("once", "chaos/effect.once", []),
        ("naps", NAP, ["once"]),
        ("asked", "chaos/effect.asked", ["naps"]),
    )
]
_SKILL_MD = "---\nname: storm\ndescription: Make calls. Use it in a storm.\n---\n\nMake calls.\n"


def write_plan(folder: Path) -> Path:
    """A skill whose plan makes the same kinds of calls; the file that names its source."""
    (folder / "skills" / "storm").mkdir(parents=True)
    (folder / "skills" / "storm" / "SKILL.md").write_text(_SKILL_MD)
    plan = {"steps": _STEPS, "output": {"done": True}}
    sidecar = {"mode": "plan", "input_schema": OBJECT, "output_schema": OBJECT, "tools": ["chaos/*"], "plan": plan}
    (folder / "skills" / "storm" / "toolhub.json").write_text(json.dumps(sidecar))
    sources = {"skill": {"kind": "skill", "skills": [{"path": str(folder / "skills")}]}}
    (folder / "sources.yaml").write_text(json.dumps({"sources": sources}))
    return folder / "sources.yaml"


@dataclass(slots=True)
class SubmittedProgram:
    marker: str
    tool: str
    calls: Sequence[tuple[str, Mapping[str, Any]]]
    job_id: str = ""


@dataclass(slots=True)
class ProgramsLoad:
    """Robot, who submits, and judge, who decides, on one channel to all replicas."""

    channel: grpc.aio.Channel
    keys: Mapping[str, tuple[tuple[str, str], ...]]
    random: Random
    tools: Sequence[str]
    made: list[SubmittedProgram] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    busy: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep_open(self, count: int) -> None:
        """Submit until so many are open, whenever fewer are, until it is over."""
        while not self.over.is_set():
            for _ in range(count - await self._open()):
                await self.submit()
            self.busy.set()
            await asyncio.sleep(_LOOK_S)

    async def submit(self) -> None:
        marker = f"m{len(self.made):04d}"
        tool = self.random.choice(self.tools)
        calls = [(name, {"marker": f"{marker}.{at}", **more}) for at, (name, more) in enumerate(self._calls())]
        mine = SubmittedProgram(marker, tool, calls)
        self.made.append(mine)
        args: dict[str, Any] = {"marker": marker, "calls": calls}
        if tool == PROGRAM:
            args = {"code": _TEXT, "inputs": {"calls": calls}, "tools": ["chaos/*"]}
        if tool == PLAN:
            by_step = {step["id"]: step["tool"] for step in _STEPS}
            args = {str(step): [given["marker"] for name, given in calls if name == by_step[step]] for step in by_step}
        intent = call_pb2.ToolIntent(
            tool=tool, args_json=json.dumps(args).encode(), purpose="chaos", idempotency_key=f"key-{marker}"
        )
        asked = job_service_pb2.SubmitJobRequest(intent=intent)
        answer = await self.patient(lambda: self._jobs.SubmitJob(asked, metadata=self.keys["robot"], timeout=_RPC_S))
        mine.job_id = answer.job.job_id

    async def until_offered(self) -> None:
        """Once what is called can be found: sources are read beside the start."""
        stub: Any = ToolServiceStub(self.channel)
        for tool in self.tools:
            asked = tool_service_pb2.GetToolRequest(name=tool)
            while True:
                with suppress(grpc.aio.AioRpcError):
                    await stub.GetTool(asked, metadata=self.keys["robot"], timeout=_RPC_S)
                    break
                await asyncio.sleep(_LOOK_S)

    async def decide(self) -> None:
        """Say yes to most, until cancelled."""
        asked = approvals_pb.ListApprovalsRequest(states=[approval_pb2.APPROVAL_STATE_PENDING])
        stub: Any = ApprovalServiceStub(self.channel)
        by = {"metadata": self.keys["judge"], "timeout": _RPC_S}
        while True:
            with suppress(grpc.aio.AioRpcError):
                for approval in (await stub.ListApprovals(asked, **by)).approvals:
                    yes = self.random.random() < 0.8
                    decision = approval_pb2.DECISION_APPROVE if yes else approval_pb2.DECISION_REJECT
                    await stub.DecideApproval(
                        approvals_pb.DecideApprovalRequest(approval_id=approval.approval_id, decision=decision), **by
                    )
            await asyncio.sleep(_LOOK_S)

    async def until_none_is_open(self) -> None:
        while await self._open():  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(_LOOK_S)

    async def jobs(self) -> list[job_pb2.Job]:
        """Every job, inner ones too."""
        asked = job_service_pb2.ListJobsRequest(page_size=1_000)
        found: list[job_pb2.Job] = []
        while True:
            page = await self.patient(lambda: self._jobs.ListJobs(asked, metadata=self.keys["robot"], timeout=_RPC_S))
            for job in page.jobs:
                wanted = job_service_pb2.GetJobRequest(job_id=job.job_id)
                found.append((await self._jobs.GetJob(wanted, metadata=self.keys["robot"], timeout=_RPC_S)).job)
            if not page.next_page_token:
                return found
            asked.page_token = page.next_page_token

    async def patient(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """What an RPC that may be repeated answers, once a replica does."""
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                if error.code() not in AWAY:
                    raise
            await asyncio.sleep(self.random.uniform(0, 0.2))

    @property
    def _jobs(self) -> Any:
        return JobServiceStub(self.channel)

    async def _open(self) -> int:
        asked = job_service_pb2.ListJobsRequest(states=OPEN, page_size=1)
        page = await self.patient(lambda: self._jobs.ListJobs(asked, metadata=self.keys["robot"], timeout=_RPC_S))
        return int(page.total_size)

    def _calls(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for _ in range(self.random.randint(3, 7)):
            kind, random = self.random.random(), self.random
            if kind < 0.45:
                yield "chaos/effect.once", {"beforeS": random.uniform(0, 0.2), "afterS": random.uniform(0, 0.2)}
            elif kind < 0.65:
                yield "chaos/effect.asked", {"beforeS": random.uniform(0, 0.1)}
            elif kind < 0.8:
                yield NAP, {"sleepS": random.uniform(0, 0.4)}
            else:
                yield "chaos/quick.read", {}


def keys_of(file: Path) -> Mapping[str, tuple[tuple[str, str], ...]]:
    return {name: (("authorization", f"Bearer {KeyFile(file).create(name)}"),) for name in ("robot", "judge")}


def channel_of(ports: Sequence[int]) -> grpc.aio.Channel:
    address = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
    return grpc.aio.insecure_channel(address, options=(*OPTIONS, *IMPATIENT))


def broken_promises(made: Sequence[SubmittedProgram], jobs: Sequence[job_pb2.Job], effects: Counter[str]) -> list[str]:
    """Empty when all were kept."""
    by_id = {job.job_id: job for job in jobs}
    found = [f"{marker} had its effect {count} times" for marker, count in effects.items() if count > 1]
    for mine in made:
        job = by_id.get(mine.job_id)
        found += (
            [f"{mine.marker} was lost"] if job is None else [f"{mine.marker}: {w}" for w in _of(mine, job, effects)]
        )
    naps = Counter(json.loads(job.status.result.result_json)["marker"] for job in jobs if _is_done_nap(job))
    found += [f"{marker} became {count} jobs" for marker, count in naps.items() if count > 1]
    return found + [f"{job.job_id} is open" for job in jobs if job.status.state not in FINAL_STATES]


def _is_done_nap(job: job_pb2.Job) -> bool:
    return job.tool == NAP and job.status.state == SUCCEEDED


def _of(mine: SubmittedProgram, job: job_pb2.Job, effects: Counter[str]) -> Iterator[str]:
    status = job.status
    if status.state == LOST and status.error.message:
        return
    if mine.tool == PLAN:
        yield from _of_a_plan(mine, job, effects)
        return
    if status.state != SUCCEEDED:
        yield f"is {job_state_pb2.JobState.Name(status.state)}: {status.error.message}"
        return
    value = json.loads(status.result.result_json)
    answers = (value["value"] if mine.tool == PROGRAM else value)["answers"]
    for (tool, args), answer in zip(mine.calls, answers, strict=True):
        count, allowed = effects[str(args["marker"])], {"ok"}
        if tool in EFFECTS:
            allowed |= {"OUTCOME_UNKNOWN"} | ({"APPROVAL_REJECTED"} if tool == "chaos/effect.asked" else set())
        if answer not in allowed:
            yield f"{tool} was answered with {answer}"
        if tool in EFFECTS and answer != "OUTCOME_UNKNOWN" and count != (answer == "ok"):
            yield f"{tool} was answered with {answer}, and had its effect {count} times"


def _of_a_plan(mine: SubmittedProgram, job: job_pb2.Job, effects: Counter[str]) -> Iterator[str]:
    """It stops at the first call that fails: one that was denied."""
    status, markers = job.status, [str(args["marker"]) for tool, args in mine.calls if tool in EFFECTS]
    if status.state == SUCCEEDED:
        yield from (f"succeeded without the effect of {marker}" for marker in markers if effects[marker] != 1)
    elif status.error.kind != error_pb2.ERROR_KIND_APPROVAL_REJECTED:
        yield f"is {job_state_pb2.JobState.Name(status.state)}: {status.error.message}"


def unclear(jobs: Sequence[job_pb2.Job]) -> int:
    """How many calls ended with an unknown outcome."""
    kind = error_pb2.ErrorKind.Name(error_pb2.ERROR_KIND_OUTCOME_UNKNOWN).removeprefix("ERROR_KIND_").encode()
    return sum(job.status.result.result_json.count(b'"' + kind + b'"') for job in jobs)


def slowest_s(jobs: Sequence[job_pb2.Job]) -> float:
    """From submission to end."""
    return max((job.status.at.ToMilliseconds() - job.created_at.ToMilliseconds()) / 1_000 for job in jobs)
