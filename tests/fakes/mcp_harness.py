"""A hub's side of one scripted MCP server: link, record, adapter and source, in either generation, on either
transport."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.clock import FixedRandomness
from tests.fakes.mcp_servers import scripted
from tests.fakes.mcp_servers.scripted import Script, serving
from tests.fakes.remote_harness import LoopClock, RecordingSink
from tests.fakes.running_jobs import FakeRunningJobs, KeptMarks, Life
from tests.ports.adapter_suite import granted
from toolhub_service.adapters.definitions import Overrides, SourceTerms
from toolhub_service.adapters.mcp.adapter import McpAdapter
from toolhub_service.adapters.mcp.calling import ToolCaller
from toolhub_service.adapters.mcp.kind import Elicitation, HttpTerms, McpTerms, StdioTerms
from toolhub_service.adapters.mcp.link import McpLink, McpServer
from toolhub_service.adapters.mcp.source import McpToolSource
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.call import GrantedCall, Reply
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.tool import Annotations, CostHints, ToolKind, ToolSpec
from toolhub_service.guards.secrets import Redactor
from toolhub_service.schema.relaxing import repair_schema
from toolhub_service.sections.source_config import ToolTerms

WITHIN_S = 60.0
"""Longer than anything here takes: what hangs fails by name."""


@dataclass
class McpHarness:
    link: McpLink
    server: McpServer
    adapter: McpAdapter
    source: McpToolSource
    kept: KeptMarks
    script: Script
    """The server itself where it runs in this process (HTTP), else a stand-in that sees nothing."""
    sink: RecordingSink = field(default_factory=RecordingSink)

    def call(
        self,
        name: str,
        args: dict[str, Any] | None = None,
        *,
        job_id: str = "",
        reply: Reply | None = None,
        timeout_s: float = WITHIN_S,
        key: str = "",
        **spec: Any,
    ) -> GrantedCall:
        """A granted call of the remote tool of that name."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        call = granted(mcp_tool(name, **spec), args, deadline_s=deadline_s)
        planned = call.planned._replace(call=call.call._replace(job_id=job_id))
        side_effects = planned.spec.has_side_effects
        return call._replace(planned=planned, reply=reply, idempotency_key=key, has_side_effects=side_effects)

    async def run(self, name: str, args: dict[str, Any] | None = None, **options: Any) -> Outcome:
        async with asyncio.timeout(WITHIN_S):
            return await self.adapter.execute(self.call(name, args, **options), self.sink)

    async def value(self, name: str, args: dict[str, Any] | None = None, **options: Any) -> Any:
        return (await self.run(name, args, **options)).value


def mcp_tool(name: str, **more: Any) -> ToolSpec:
    """As the hub knows a tool of the source `fake`; `is_async` and `read_only` are shorthands."""
    more.setdefault("cost", CostHints(is_async=more.pop("is_async", False)))
    more.setdefault("annotations", Annotations(read_only=more.pop("read_only", False)))
    schemas = {"input_schema": more.pop("input_schema", {"type": "object"}), "output_schema": more.pop("output", {})}
    return ToolSpec(
        name=f"fake/{name}",
        kind=ToolKind.MCP,
        description="",
        source="fake",
        resource_id=name,
        upstream="mcp:fake",
        **schemas,
        **more,
    )


def stage_of(
    where: StdioTerms | HttpTerms,
    *,
    script: Script | None = None,
    elicitation: Elicitation = "decline",
    overrides: dict[str, ToolTerms] | None = None,
    artifacts: ArtifactService | None = None,
    kept: KeptMarks | None = None,
    keep_raw: bool = False,
) -> McpHarness:
    """Not started yet."""
    terms = McpTerms(name="fake", where=where, elicitation=elicitation)
    link = McpLink(terms, FixedRandomness(0.5))
    server = McpServer(link, Overrides(overrides))
    marks = kept or KeptMarks()
    redact = Redactor().text
    calling = ToolCaller(redact, artifacts=artifacts, keep_raw=keep_raw)
    adapter = McpAdapter(calling, FakeRunningJobs(marks, Life()), LoopClock(), FixedRandomness())
    adapter.put(server)
    source = McpToolSource(server, SourceTerms(ToolKind.MCP, "fake", endpoint=terms.endpoint), repair_schema, redact)
    return McpHarness(link, server, adapter, source, marks, script or Script())


@asynccontextmanager
async def over_http(script: Script, **options: Any) -> AsyncIterator[McpHarness]:
    """With the server in this process."""
    async with serving(script) as url:
        harness = stage_of(HttpTerms(url=url), script=script, **options)
        async with started(harness):
            yield harness


@asynccontextmanager
async def over_stdio(generation: str, **options: Any) -> AsyncIterator[McpHarness]:
    """With the server as a child."""
    program = StdioTerms(sys.executable, (str(Path(scripted.__file__)), generation))
    async with started(stage_of(program, **options)) as harness:
        yield harness


@asynccontextmanager
async def started(harness: McpHarness) -> AsyncIterator[McpHarness]:
    await harness.source.start()
    try:
        yield harness
    finally:
        await harness.source.close()
