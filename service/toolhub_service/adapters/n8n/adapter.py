"""Step 6 for workflows of n8n: a webhook call that brings its result, or one that begins a job. Sources come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from toolhub_service.adapters.definitions import Overrides
from toolhub_service.adapters.n8n import failures
from toolhub_service.adapters.n8n.calling import WorkflowCaller
from toolhub_service.adapters.n8n.client import DiscoveryTerms, N8nTerms, WorkflowTerms, refused_url
from toolhub_service.adapters.n8n.definitions import DefinitionMaker
from toolhub_service.adapters.n8n.job import POLLS, MissingTerms, N8nJob
from toolhub_service.adapters.n8n.kind import N8nSource, N8nWorkflow, workflow_terms
from toolhub_service.adapters.n8n.server import N8nServer
from toolhub_service.adapters.n8n.source import N8nToolSource
from toolhub_service.adapters.remote import RemoteExecutor, RemoteTerms
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.adapters.source_config import SourceValues, Value, request_headers, shown
from toolhub_service.adapters.source_kind import OpenedSource, SourceAdapter, SourceDeps
from toolhub_service.adapters.upstream import RefCounted
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.job_ports import RunningJobs
from toolhub_service.domain.ports import Clock, EventSink, Randomness
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.source import Trust
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.guards.masking import Mask
from toolhub_service.guards.urls import parse_url, shown_url
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.tools.egress.transport import SystemResolver

# n8n servers of sources.yaml.


class N8nOpener:
    """Implements `Opener`."""

    def __init__(self, deps: SourceDeps) -> None:
        caller = WorkflowCaller(
            deps.redactor.text,
            deps.clock,
            desk=deps.artifacts,
            trace=deps.trace,
            keep_raw=deps.keep_raw,
        )
        self.adapter = N8nAdapter(caller, deps.running, deps.clock, deps.randomness)
        self._deps = deps

    def endpoint(self, name: str, entry: N8nSource) -> str:
        try:
            return shown_url(parse_url(shown(entry.url))).rstrip("/")
        except ToolFailure:
            return shown(entry.url) if "@" not in shown(entry.url) else ""

    def open(self, name: str, entry: N8nSource) -> OpenedSource:
        values = SourceValues(self._deps.redactor)
        terms = replace(_terms(name, entry, values), shown_as=self.endpoint(name, entry))
        mask, resolver = Mask(values.secrets), SystemResolver()
        try:
            server = N8nServer(terms, resolver, Poller(self._deps.randomness, POLLS), mask)
        except ToolFailure as failure:
            raise refused_url(failure) from failure
        redact = self._deps.redactor.text
        maker = DefinitionMaker(terms, server.endpoint, Overrides(entry.tools), compile_schema, mask)

        async def close() -> None:
            await server.client.close()
            resolver.close()

        connections = RefCounted(close)
        source = N8nToolSource(server, maker, redact, connections.close, trust=Trust(entry.trust))
        self.adapter.put(server, connections)
        return OpenedSource(source, source.restored)

    def forget(self, name: str) -> None:
        self.adapter.remove(name)


def _terms(name: str, entry: N8nSource, values: SourceValues) -> N8nTerms:
    """Raises ValueError for what cannot be used."""
    fields = values.of(entry.headers)
    discover = entry.discover
    return N8nTerms(
        name,
        base_url(entry.url, values),
        api_key=values.one(entry.api_key),
        headers=request_headers(fields),
        workflows={own: _workflow(workflow, fields, values) for own, workflow in entry.workflows.items()},
        discover=None if discover is None else DiscoveryTerms(discover.tags, discover.mode),
        api_path=plain_path(entry.api_path, "api_path"),
        webhook_path=plain_path(entry.webhook_path, "webhook_path"),
        tls=entry.tls,
        connect_timeout_s=entry.connect_timeout_s,
        max_response_bytes=entry.max_response_bytes,
        capabilities=entry.capabilities,
        tags=entry.tags,
        timeout_s=entry.timeout_s,
        max_concurrency=entry.max_concurrency,
    )


def _workflow(entry: N8nWorkflow, fields: dict[str, str], values: SourceValues) -> WorkflowTerms:
    own = {name.lower(): value for name, value in values.of(entry.headers).items()}
    inherited = {name: value for name, value in fields.items() if name.lower() not in own}
    return workflow_terms(entry, request_headers(inherited | own))


def base_url(value: Value, values: SourceValues) -> str:
    """The URL without a slash at its end. Raises ValueError when it is none, or no base."""
    url = values.url(value)
    if "?" in url or "#" in url:
        raise ValueError("its `url` is a base, and has no query")
    return url.rstrip("/")


def plain_path(path: str, setting: str) -> str:
    """The path with a slash before it and none behind. Raises ValueError when it may lead elsewhere."""
    words = [word for word in path.split("/") if word]
    if {".", ".."} & set(words) or any(char in path for char in "?#\\ %"):
        raise ValueError(f"its `{setting}` is no plain path")
    return "".join(f"/{word}" for word in words)


class _Source(NamedTuple):
    server: N8nServer
    executor: RemoteExecutor
    connections: RefCounted


class N8nAdapter(SourceAdapter):
    """Runs the tools of all n8n sources of a hub."""

    kind = ToolKind.N8N

    def __init__(
        self,
        caller: WorkflowCaller,
        running: RunningJobs,
        clock: Clock,
        randomness: Randomness,
        terms: RemoteTerms | None = None,
        missing: MissingTerms | None = None,
    ) -> None:
        self._caller = caller
        self._running = running
        self._clock = clock
        self._randomness = randomness
        self._terms = terms or RemoteTerms()
        self._missing = missing
        self._sources: dict[str, _Source] = {}

    def put(self, server: N8nServer, connections: RefCounted) -> None:
        """Add a source, or put another server in its place. Calls under way end where they began."""
        jobs = N8nJob(server, self._caller, self._missing)
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
            return await self._caller.run(server, workflow, call)
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

    def resumes(self, spec: ToolSpec) -> bool:
        return spec.cost.is_async
