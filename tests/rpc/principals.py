"""Principals at one or several hubs that share what they keep: who submits, follows, stops and decides."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hub import CALL_TIMEOUT_S, RunningHub, running_hub
from tests.rpc.sample_tools import TextIn, TextOut, Waits
from toolhub.v1 import approval_pb2, job_pb2, job_service_pb2, result_pb2
from toolhub.v1 import approval_service_pb2 as approvals_pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub.v1.job_state_pb2 import JobState
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys
from toolhub_service.domain.tool import Annotations
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool

POLICY = """
extends: none
grants:
  - principals: ["*"]
    capabilities: [read:fs, write:fs, execute:command, network, read:web, danger:destructive]
roles:
  - {principals: [judge], roles: [approver]}
  - {principals: [boss], roles: [operator, auditor]}
rules:
  - {id: writes-need-a-yes, effect: REQUIRE_APPROVAL, tools: [core/fs.writeText], reason: Files are shared.}
"""
"""Everybody may do everything, but writing files takes a yes of `check`."""
IMPATIENT: Mapping[str, Any] = {"jobs": {"heartbeat_s": 0.05, "dead_after_s": 0.5}}
"""A process that died is noticed within a second."""
BY_KEY: Mapping[str, Any] = {"auth": {"modes": ["api-key"]}}
WAIT, WRITE = "test/text.wait", "test/text.waitToWrite"

Status = job_pb2.JobStatus


class CountedWaits(Waits):
    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        self.runs += 1
        return await super().run(args, context)


class CountedWrites(CountedWaits):
    """The same, as a side effect."""

    name = WRITE
    annotations = Annotations()


@dataclass(frozen=True, slots=True)
class Client:
    """One principal at one hub. Calls raise grpc.aio.AioRpcError like every client."""

    running: RunningHub
    metadata: tuple[tuple[str, str], ...] = ()

    async def submit(self, tool: str, args: Mapping[str, Any] | None = None, **fields: Any) -> job_pb2.Job:
        return await self.running.submit(tool, args, metadata=self.metadata, **fields)

    async def call(self, tool: str, args: Mapping[str, Any] | None = None, **fields: Any) -> result_pb2.ToolResult:
        return await self.running.invoke(tool, args, metadata=self.metadata, **fields)

    @property
    def approvals(self) -> Any:
        return ApprovalServiceStub(self.running.channel)

    async def job(self, job_id: str) -> job_pb2.Job:
        asked = job_service_pb2.GetJobRequest(job_id=job_id)
        answer = await self.running.jobs.GetJob(asked, metadata=self.metadata, timeout=CALL_TIMEOUT_S)
        return answer.job  # type: ignore[no-any-return]

    async def page(self, **where: Any) -> job_service_pb2.ListJobsResponse:
        asked = job_service_pb2.ListJobsRequest(**where)
        page: job_service_pb2.ListJobsResponse = await self.running.jobs.ListJobs(
            asked, metadata=self.metadata, timeout=CALL_TIMEOUT_S
        )
        return page

    async def cancel(self, job_id: str, reason: str = "") -> str:
        asked = job_service_pb2.CancelJobRequest(job_id=job_id, reason=reason)
        answer = await self.running.jobs.CancelJob(asked, metadata=self.metadata, timeout=CALL_TIMEOUT_S)
        return state(answer.status)

    def watch(self, job_id: str, after_sequence: int = 0, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """The stream of answers."""
        asked = job_service_pb2.WatchJobRequest(job_id=job_id, after_sequence=after_sequence)
        return self.running.jobs.WatchJob(asked, metadata=self.metadata, timeout=timeout_s)

    def watch_many(self, *job_ids: str, **where: Any) -> Any:
        """The stream of answers of several jobs."""
        asked = job_service_pb2.WatchJobsRequest(job_ids=job_ids, **where)
        return self.running.jobs.WatchJobs(asked, metadata=self.metadata, timeout=CALL_TIMEOUT_S)

    async def seen(self, job_id: str, fits: Callable[[Status], bool], after_sequence: int = 0) -> list[Status]:
        """What a watch sends until an entry fits."""
        entries: list[Status] = []
        watch = self.watch(job_id, after_sequence)
        async for answer in watch:
            entries.append(answer.status)
            if fits(answer.status):
                watch.cancel()
                return entries
        raise AssertionError(f"it ended as {states(entries)}: {entries[-1].error.message if entries else ''}")

    async def reached(self, job_id: str, name: str, after_sequence: int = 0) -> list[Status]:
        """What a watch sends until the job is in the state."""
        return await self.seen(job_id, lambda status: state(status) == name, after_sequence)

    async def ended(self, job_id: str, after_sequence: int = 0) -> list[Status]:
        """What a watch sends until it ends by itself."""
        return [answer.status async for answer in self.watch(job_id, after_sequence)]

    async def decide(self, approval_id: str, *, yes: bool = True, comment: str = "") -> approval_pb2.Approval:
        decision = approval_pb2.DECISION_APPROVE if yes else approval_pb2.DECISION_REJECT
        asked = approvals_pb.DecideApprovalRequest(approval_id=approval_id, decision=decision, comment=comment)
        answer = await self.approvals.DecideApproval(asked, metadata=self.metadata, timeout=CALL_TIMEOUT_S)
        return answer.approval  # type: ignore[no-any-return]


def state(status: Status) -> str:
    return JobState.Name(status.state).removeprefix("JOB_STATE_")


def states(entries: Sequence[Status]) -> list[str]:
    """Without repeats: progress is sent under the same state."""
    names = [state(entry) for entry in entries]
    return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


def is_gapless(entries: Sequence[Status]) -> bool:
    """Whether the sequences follow one another, nothing missing and nothing twice."""
    first = entries[0].sequence if entries else 0
    return [entry.sequence for entry in entries] == list(range(first, first + len(entries)))


class Principals:
    """Principals with API keys that several hubs accept."""

    def __init__(self, *hubs: RunningHub, names: Sequence[str] = ("robot", "judge", "boss", "other")) -> None:
        self._metadata: dict[str, tuple[tuple[str, str], ...]] = {}
        for name in names:
            key = Paths(hubs[0].hub.settings).key_file().create(name)
            self._metadata[name] = (("authorization", f"Bearer {key}"),)
        for running in hubs:
            reload_keys(running.hub, Paths(running.hub.settings).key_file())

    def at(self, running: RunningHub, name: str = "robot") -> Client:
        return Client(running, self._metadata[name])


@asynccontextmanager
async def hubs_of(
    folder: Path, settings: Mapping[str, Any], *tools: Sequence[Tool[Any, Any, Any]], policy: str = POLICY
) -> AsyncIterator[list[RunningHub]]:
    """A hub for each set of tools; each has a folder of its own below `folder` and the same settings besides."""
    shared = {"auth": {**BY_KEY["auth"], "api_keys_file": str(folder / "keys.yaml")}, **settings}
    async with AsyncExitStack() as hubs:
        yield [
            await hubs.enter_async_context(
                running_hub(folder / f"hub-{number}", policy=policy, settings=shared, tools=own)
            )
            for number, own in enumerate(tools)
        ]


def hurry_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that wait for a Redis which is away are refused soon."""
    defaults: Any = RedisLink.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "patience_s", 2.0)


def merged(*settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings joined section by section; the later ones win."""
    together: dict[str, Any] = {}
    for each in settings:
        for section, fields in each.items():
            together[section] = {**together.get(section, {}), **fields}
    return together
