"""Step 6 for workflows of n8n: a webhook call that brings its result, or one that begins a job. Sources come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from toolhub_service.adapters.n8n import failures
from toolhub_service.adapters.n8n.calling import Calling
from toolhub_service.adapters.n8n.job import MissingTerms, N8nJob
from toolhub_service.adapters.n8n.server import N8nServer
from toolhub_service.adapters.remote import RemoteExecutor, RemoteTerms
from toolhub_service.adapters.upstream import RefCounted
from toolhub_service.domain.call import NO_PRECONDITIONS, GrantedCall, PlannedCall, Preconditions
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.job_ports import RunningJobs
from toolhub_service.domain.ports import Clock, EventSink, FixedTerms, Randomness
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.tool import ToolKind, ToolSpec


class _Source(NamedTuple):
    server: N8nServer
    executor: RemoteExecutor
    connections: RefCounted


class N8nAdapter:
    """Runs the tools of all n8n sources of a hub."""

    kind = ToolKind.N8N

    def __init__(
        self,
        calling: Calling,
        running: RunningJobs,
        clock: Clock,
        randomness: Randomness,
        terms: RemoteTerms | None = None,
        missing: MissingTerms | None = None,
    ) -> None:
        self._calling = calling
        self._running = running
        self._clock = clock
        self._randomness = randomness
        self._terms = terms or RemoteTerms()
        self._missing = missing
        self._sources: dict[str, _Source] = {}

    def put(self, server: N8nServer, connections: RefCounted) -> None:
        """Add a source, or put another server in its place. Calls under way end where they began."""
        jobs = N8nJob(server, self._calling, self._missing)
        executor = RemoteExecutor(jobs, self._running, self._clock, self._randomness, self._terms)
        self._sources[server.name] = _Source(server, executor, connections)

    def remove(self, name: str) -> None:
        """Take a source away; does nothing when it is not there."""
        self._sources.pop(name, None)

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        source = self._source(call)
        async with source.connections.used():
            if await self._is_job(call):
                return await source.executor.execute(call, sink)
            return await self._at_once(source.server, call)

    async def _at_once(self, server: N8nServer, call: GrantedCall) -> Outcome:
        workflow = server.workflows.get(call.spec.resource_id)
        if workflow is None:
            raise failures.no_source(call)
        try:
            return await self._calling.run(server, workflow, call)
        except (ToolFailure, asyncio.CancelledError):
            raise
        except Exception as defect:
            raise failures.unforeseen(call) from defect

    async def _is_job(self, call: GrantedCall) -> bool:
        """A mark that was kept is proof that it is, whatever the workflow is set to by now."""
        if call.spec.cost.is_async or not call.call.job_id:
            return call.spec.cost.is_async
        return await self._running.mark(call.call.job_id) is not None

    def effects(self, call: GrantedCall) -> Sequence[str]:
        spec = call.spec
        self._source(call)
        does = "only reads" if spec.annotations.read_only else "may change whatever it has access to"
        how = ", and goes on as a job" if spec.cost.is_async else ""
        return (f"Starts the n8n workflow `{spec.resource_id}` of the source `{spec.source}`{how}; it {does}.",)

    def _source(self, call: GrantedCall) -> _Source:
        """Raises ToolFailure when it is gone."""
        source = self._sources.get(call.spec.source)
        if source is None or source.connections.is_closed:
            raise failures.no_source(call)
        return source

    async def preconditions(self, planned: PlannedCall) -> Preconditions:
        return NO_PRECONDITIONS

    def has_side_effects(self, planned: PlannedCall) -> bool:
        return planned.spec.has_side_effects

    def upstream(self, planned: PlannedCall) -> str:
        return planned.spec.upstream_key

    def fixed_terms(self, spec: ToolSpec) -> FixedTerms:
        return FixedTerms(spec.has_side_effects, spec.upstream_key)

    def resumes(self, spec: ToolSpec) -> bool:
        return spec.cost.is_async
