"""A source over one or two fake ComfyUIs, as an adapter sees it: servers, templates, artifacts, marks in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.fakes import comfyui_templates
from tests.fakes.artifacts import ArtifactsHarness, kept_in, pieces
from tests.fakes.clock import FixedRandomness
from tests.fakes.comfyui import FakeComfy, fake_comfyui
from tests.fakes.outcomes import outcome_of
from tests.fakes.remote_harness import SOON, LoopClock, RecordingSink
from tests.fakes.running_jobs import FakeRunningJobs, KeptMarks
from tests.ports.adapter_suite import granted
from toolhub_service.adapters.comfyui.adapter import ComfyAdapter, Opened, open_parts
from toolhub_service.adapters.comfyui.client import BackendTerms, ComfyTerms
from toolhub_service.adapters.comfyui.kind import ComfyUiSource
from toolhub_service.adapters.comfyui.source import ComfyToolSource
from toolhub_service.adapters.upstream import RefCounted
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ToolError
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.source import Definition
from toolhub_service.egress.resolver import SystemResolver
from toolhub_service.schema.tool_schemas import ToolSchemas

WITHIN_S = 60.0
SECRET = "canary-secret-1"


def redact(text: str) -> str:
    return text.replace(SECRET, "***")


@dataclass
class ComfyHarness:
    """One process. `successor` is another one over the same marks and artifacts."""

    servers: list[FakeComfy]
    folder: Path
    terms: ComfyTerms
    artifacts: ArtifactsHarness
    kept: KeptMarks = field(default_factory=KeptMarks)

    def __post_init__(self) -> None:
        self.clock = LoopClock()
        self.running = FakeRunningJobs(self.kept)
        self.resolver = SystemResolver()
        randomness = FixedRandomness()
        self.parts: Opened = open_parts(
            self.terms,
            self.resolver,
            self.artifacts.artifacts,
            self.clock,
            randomness,
            redact,
            self.running.keep_mark,
            polls=SOON,
        )
        connections = RefCounted(self.parts.close)
        self.source = ComfyToolSource(
            self.terms,
            self.parts.backends,
            self.parts.templates,
            redact,
            connections.close,
        )
        self.adapter = ComfyAdapter(self.running, self.clock, randomness)
        self.adapter.put(self.terms, self.parts.job, connections)
        self.definitions: dict[str, Definition] = {}

    @property
    def comfy(self) -> FakeComfy:
        return self.servers[0]

    async def read(self) -> dict[str, Definition]:
        """What the source offers now, by own names."""
        found = (await self.source.discover()).definitions
        self.definitions = {definition.spec.name.partition("/")[2]: definition for definition in found}
        return self.definitions

    def call(
        self, tool: str, args: JsonObject | None = None, *, job_id: str = "job-1", deadline_s: float = float("inf")
    ) -> GrantedCall:
        spec = self.definitions[tool].spec
        complete, _ = ToolSchemas(spec).complete(args or {})
        call = granted(spec, complete, deadline_s=deadline_s, principal="agent-a")
        return call._replace(planned=call.planned._replace(call=call.call._replace(job_id=job_id)))

    def begin(
        self, tool: str, args: JsonObject | None = None, sink: RecordingSink | None = None, **options: Any
    ) -> asyncio.Task[Outcome]:
        call = self.call(tool, args, **options)
        return asyncio.create_task(self.adapter.execute(call, sink or RecordingSink()))

    async def run(self, tool: str, args: JsonObject | None = None, **options: Any) -> Outcome:
        """What it brings. Raises ToolFailure."""
        async with asyncio.timeout(WITHIN_S):
            return await self.begin(tool, args, **options)

    async def error(self, tool: str, args: JsonObject | None = None, **options: Any) -> ToolError:
        """What it fails with."""
        return await failure_of(self.begin(tool, args, **options))

    async def upload(self, data: bytes) -> str:
        """An artifact of the caller's."""
        call = self.call("blur").call
        kept = await self.artifacts.artifacts.keep(pieces(data), call=call, media_type="image/png")
        return kept.artifact_id

    async def bytes_of(self, artifact_id: str) -> bytes:
        desk = self.artifacts.artifacts
        artifact = await desk.open("agent-a", artifact_id)
        return b"".join([chunk async for chunk in desk.read(artifact)])

    async def successor(self) -> ComfyHarness:
        """Another process, which knows what was kept; this one is closed."""
        await self.close()
        harness = ComfyHarness(self.servers, self.folder, self.terms, self.artifacts, self.kept)
        await harness.read()
        return harness

    async def close(self) -> None:
        await self.source.close()
        self.resolver.close()


async def failure_of(task: asyncio.Task[Outcome]) -> ToolError:
    async with asyncio.timeout(WITHIN_S):
        error = await outcome_of(task)
    assert isinstance(error, ToolError), error
    return error


@asynccontextmanager
async def comfy_harness(
    folder: Path, *versions: str, templates: tuple[dict[str, Any], ...] = (), **terms: Any
) -> AsyncIterator[ComfyHarness]:
    """Over servers of these versions (one of 0.33.0 when none is named), its templates read."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(fake_comfyui(version)) for version in versions or ("0.33.0",)]
        places = comfyui_templates.write(folder / "templates", *templates)
        backends = tuple(BackendTerms(f"gpu-{at}", server.url) for at, server in enumerate(servers, 1))
        chosen: dict[str, Any] = {"lost_after_s": 0.05, "connect_timeout_s": 30.0, "read_timeout_s": 30.0, **terms}
        harness = ComfyHarness(
            servers,
            folder,
            ComfyTerms("studio", ComfyUiSource(templates=(str(places),), **chosen), backends),
            kept_in(folder / "artifacts"),
        )
        await harness.read()
        try:
            yield harness
        finally:
            await harness.close()


async def submitted_elsewhere(harness: ComfyHarness) -> str:
    """The id of a prompt that somebody else has sent to the same server."""
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"{harness.comfy.url}/prompt", json={"prompt": comfyui_templates.BLUR["graph"]})
    return str(answer.json()["prompt_id"])
