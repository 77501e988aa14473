"""A hub over a fake n8n, and a client of it; in this process or in one that can be killed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.fakes.n8n import FakeN8n, fake_n8n
from tests.hub import RunningHub, request, running_hub
from tests.rpc.job_client import JobClient
from tests.rpc.real_servers import write_sources
from tests.unit.adapters.n8n.flows import FLOWS
from toolhub.v1 import job_pb2
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub

WITHIN_S: Final = 60.0
"""Longer than anything here takes: what hangs fails by name."""
SOURCE: Final = "flows"
POLICY: Final = """
extends: none
grants:
  - {principals: ["*"], capabilities: ["n8n:*"]}
roles:
  - {principals: [local], roles: [agent, operator, approver, auditor]}
"""
ASYNC: Final[Mapping[str, Any]] = {"mode": "async"}


def entry(n8n: FakeN8n, workflows: Mapping[str, Mapping[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    """A source of sources.yaml; each workflow is called by the name it is given unless it says otherwise."""
    named = {
        name: {**({} if "webhook" in fields or "workflow_id" in fields else {"webhook": name}), **fields}
        for name, fields in (workflows or {}).items()
    }
    return {"kind": "n8n", "url": n8n.url, "api_key": n8n.api_key, "workflows": named, **more}


@dataclass
class Agent(JobClient):
    """A client."""

    async def begin(self, tool: str, args: Mapping[str, Any] | None = None, **fields: Any) -> str:
        """Invoke it like any tool; the id of the job that it becomes."""
        tools: Any = ToolServiceStub(self.channel)
        answer = await tools.Invoke(request(f"{SOURCE}/{tool}", args or {}, **fields), timeout=WITHIN_S)
        assert answer.result.ok, answer.result.error.message
        return str(answer.result.job.job_id)

    async def reported(self, job_id: str, words: str) -> list[job_pb2.JobStatus]:
        return await self.seen(job_id, lambda status: words in status.progress.message)


def facts(status: job_pb2.JobStatus) -> dict[str, str]:
    """All attributes of the evidence of its end."""
    return {name: value for proof in status.result.evidence for name, value in proof.attributes.items()}


@asynccontextmanager
async def n8n_hub(
    home: Path, source: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> AsyncIterator[tuple[RunningHub, Agent]]:
    """A hub whose source has been read."""
    write_sources(home, {SOURCE: source})
    async with running_hub(home, policy=POLICY, settings=settings) as running:
        assert await running.hub.sourcing.sources.wait_until_tried(timeout_s=WITHIN_S)
        yield running, Agent(running.channel)


@asynccontextmanager
async def flows_hub(
    home: Path, workflows: Mapping[str, Mapping[str, Any]], *, version: str = "2.10.0", **more: Any
) -> AsyncIterator[tuple[FakeN8n, RunningHub, Agent]]:
    """The same, over an n8n of its own that holds every wait until it is released."""
    async with (
        fake_n8n(workflows=FLOWS, version=version, time_scale=None) as n8n,
        n8n_hub(home, entry(n8n, workflows, **more)) as (running, agent),
    ):
        yield n8n, running, agent
