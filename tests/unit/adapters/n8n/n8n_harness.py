"""A fake n8n, a source and an adapter before it: what tests of the n8n adapter begin with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from msgspec.structs import replace

from tests.fakes.clock import FixedRandomness
from tests.fakes.n8n import FakeN8n, fake_n8n
from tests.fakes.outcomes import outcome_of
from tests.fakes.remote_harness import BRISK, SOON, RecordingSink
from tests.fakes.running_jobs import FakeRunningJobs
from tests.ports.adapter_suite import granted
from tests.unit.adapters.n8n.flows import FLOWS, Flow
from toolhub_service.adapters.n8n.adapter import N8nAdapter
from toolhub_service.adapters.n8n.calling import WorkflowCaller
from toolhub_service.adapters.n8n.job import MissingTerms
from toolhub_service.adapters.n8n.kind import N8nDiscovery, N8nSource, N8nWorkflow
from toolhub_service.adapters.n8n.server import N8nServer, N8nTerms
from toolhub_service.adapters.n8n.source import N8nToolSource
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.adapters.upstream import RefCounted
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ToolError
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.source import Definition, Discovery
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.egress.resolver import SystemResolver
from toolhub_service.sections.source_config import ToolTerms, request_headers

WITHIN_S = 60.0
"""Longer than anything here takes: what hangs fails by name."""
KEY_HEADER = "x-idempotency-key"
JOB_ID = "job-1"
QUICK_MISSING = MissingTerms(polls=3, timeout_s=0.01)
SYNC = N8nWorkflow()
ASYNC = N8nWorkflow(mode="async")


class LoopClock:
    """The loop's own time, and the wall's."""

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def unix_ms(self) -> int:
        return _now_ms()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def redact(text: str) -> str:
    return text.replace("s3cret", "***")


@dataclass
class N8nHarness:
    n8n: FakeN8n
    server: N8nServer
    source: N8nToolSource
    adapter: N8nAdapter
    running: FakeRunningJobs

    async def discover(self) -> Discovery:
        async with asyncio.timeout(WITHIN_S):
            return await self.source.discover()

    async def definitions(self) -> dict[str, Definition]:
        """By their own names."""
        return {made.spec.resource_id: made for made in (await self.discover()).definitions}

    async def spec(self, own_name: str) -> ToolSpec:
        return (await self.definitions())[own_name].spec

    async def call(
        self,
        own_name: str,
        args: Mapping[str, Any] | None = None,
        *,
        job_id: str = "",
        key: str = "",
        timeout_s: float = WITHIN_S,
        **more: Any,
    ) -> GrantedCall:
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        made = granted(await self.spec(own_name), args, deadline_s=deadline_s, **more)
        planned = made.planned._replace(call=made.call._replace(job_id=job_id))
        return made._replace(planned=planned, idempotency_key=key)

    async def run(self, own_name: str, args: Mapping[str, Any] | None = None, **more: Any) -> Outcome | ToolError:
        """What a call came to."""
        return await self.ended(self.adapter.execute(await self.call(own_name, args, **more), RecordingSink()))

    async def value(self, own_name: str, args: Mapping[str, Any] | None = None, **more: Any) -> Any:
        outcome = await self.run(own_name, args, **more)
        assert isinstance(outcome, Outcome), outcome.message
        return outcome.value

    async def failure(self, own_name: str, args: Mapping[str, Any] | None = None, **more: Any) -> ToolError:
        error = await self.run(own_name, args, **more)
        assert isinstance(error, ToolError), error.value
        return error

    async def ended(self, work: Any) -> Outcome | ToolError:
        async with asyncio.timeout(WITHIN_S):
            return await outcome_of(work)  # type: ignore[no-any-return]


@asynccontextmanager
async def before(
    n8n: FakeN8n, workflows: Mapping[str, N8nWorkflow] | None = None, *, with_api: bool = True, **more: Any
) -> AsyncIterator[N8nHarness]:
    """A source before it; keywords as those of `against`."""
    async with against(n8n.url, workflows, api_key=n8n.api_key if with_api else "", **more) as harness:
        harness.n8n = n8n
        yield harness


@asynccontextmanager
async def against(
    url: str,
    workflows: Mapping[str, N8nWorkflow] | None = None,
    *,
    api_key: str = "",
    tools: Mapping[str, ToolTerms] | None = None,
    artifacts: ArtifactService | None = None,
    running: FakeRunningJobs | None = None,
    discover: N8nDiscovery | None = None,
    lookup_timeout_s: float = WITHIN_S,
    missing: MissingTerms = QUICK_MISSING,
    **more: Any,
) -> AsyncIterator[N8nHarness]:
    """A source before whatever is there. Workflows that say neither webhook nor id are called by their own names.

    `lookup_timeout_s`: short where nothing is to be found.
    """
    named = {
        name: terms if terms.webhook or terms.workflow_id else replace(terms, webhook=name)
        for name, terms in (workflows or {}).items()
    }
    entry = N8nSource(workflows=named, discover=discover, tools={**(tools or {})}, **more)
    headers = {name: request_headers(cast("dict[str, str]", workflow.headers)) for name, workflow in named.items()}
    resolver = SystemResolver()
    terms = N8nTerms("flows", url, entry, api_key, workflow_headers=headers)
    server = N8nServer(terms, resolver, Poller(FixedRandomness(), SOON))
    connections = RefCounted(server.client.close)
    source = N8nToolSource(server, redact, connections.close)
    jobs = running or FakeRunningJobs()
    clock, chance = LoopClock(), FixedRandomness()
    caller = WorkflowCaller(redact, clock, artifacts=artifacts, pause_s=0.002, lookup_timeout_s=lookup_timeout_s)
    adapter = N8nAdapter(caller, jobs, clock, chance, BRISK, missing)
    adapter.put(server, connections)
    try:
        yield N8nHarness(FakeN8n("2.8.4", {}), server, source, adapter, jobs)
    finally:
        await source.close()
        resolver.close()


@asynccontextmanager
async def n8n_harness(
    workflows: Mapping[str, N8nWorkflow] | None = None,
    *,
    flows: list[Flow] | None = None,
    version: str = "2.10.0",
    time_scale: float | None = 0.001,
    **more: Any,
) -> AsyncIterator[N8nHarness]:
    """The same, with an n8n of its own."""
    async with (
        fake_n8n(workflows=FLOWS if flows is None else flows, version=version, time_scale=time_scale) as n8n,
        before(n8n, workflows, **more) as harness,
    ):
        yield harness
