"""A hub with a ComfyUI source in its sources.yaml, in this process or in one that can be killed, and a client of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.fakes import comfyui_templates
from tests.hub import RunningHub, running_hub
from tests.rpc.job_client import WITHIN_S, JobClient, state
from toolhub.v1 import artifact_service_pb2, job_pb2
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub.v1.registry_service_pb2 import RefreshSourcesRequest
from toolhub.v1.registry_service_pb2_grpc import RegistryServiceStub

POLICY: Final = """
extends: none
grants:
  - principals: ["*"]
    capabilities: ["comfyui:*"]
roles:
  - {principals: [local], roles: [agent, operator, approver, auditor]}
"""
IMPATIENT: Final[Mapping[str, Any]] = {"jobs": {"heartbeat_s": 0.05, "dead_after_s": 0.5}}


def write_sources(home: Path, *urls: str, graphs: tuple[dict[str, Any], ...] = (), **terms: Any) -> Path:
    """sources.yaml, templates and policy where a hub over `home` finds them; its data folder."""
    folder = home / "hub"
    folder.mkdir(parents=True, exist_ok=True)
    templates = comfyui_templates.write(home / "templates", *graphs)
    backends = {f"gpu-{at}": {"url": url} for at, url in enumerate(urls, 1)}
    source = {"kind": "comfyui", "backends": backends, "templates": [str(templates)], "lost_after_s": 0.3, **terms}
    (folder / "sources.yaml").write_text(yaml.safe_dump({"sources": {"studio": source}}))
    (folder / "policy.yaml").write_text(POLICY)
    return folder


class ComfyClient(JobClient):
    """A client of a hub."""

    async def refresh(self) -> Any:
        """Have the source read; how it fares."""
        stub: Any = RegistryServiceStub(self.channel)
        answer = await stub.RefreshSources(RefreshSourcesRequest(sources=["studio"]), timeout=WITHIN_S)
        return answer.sources[0]

    async def submit(self, tool: str, args: Mapping[str, Any] | None = None, **fields: Any) -> str:
        return await self.submitted(f"studio/{tool}", args, **fields)

    async def read(self, artifact_id: str) -> bytes:
        stub: Any = ArtifactServiceStub(self.channel)
        asked = artifact_service_pb2.ReadArtifactRequest(artifact_id=artifact_id)
        return b"".join([part.chunk async for part in stub.ReadArtifact(asked, timeout=WITHIN_S)])

    async def pictures(self, end: job_pb2.JobStatus) -> list[bytes]:
        """What a finished job has made."""
        assert state(end) == "SUCCEEDED", end.error.message
        named = [file["artifact"] for file in json.loads(end.result.result_json)["image"]]
        assert named == [artifact.artifact_id for artifact in end.artifacts]
        return list(await asyncio.gather(*map(self.read, named)))


@asynccontextmanager
async def comfy_hub(
    home: Path, *urls: str, settings: Mapping[str, Any] | None = None, **terms: Any
) -> AsyncIterator[tuple[ComfyClient, RunningHub]]:
    """Serving, its source read."""
    write_sources(home, *urls, **terms)
    async with running_hub(home, policy=POLICY, settings={**IMPATIENT, **(settings or {})}) as hub:
        agent = ComfyClient(hub.channel)
        await agent.refresh()
        yield agent, hub
