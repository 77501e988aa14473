"""Step 6 for workflows of n8n: a webhook call that returns its result, or one that starts a job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from toolhub_service.adapters.caller_auth import per_user_terms
from toolhub_service.adapters.callers import open_for_callers
from toolhub_service.adapters.n8n.calling import WorkflowCaller
from toolhub_service.adapters.n8n.job import POLLS, MissingTerms, N8nJob
from toolhub_service.adapters.n8n.kind import N8nSource
from toolhub_service.adapters.n8n.server import N8nServer, N8nTerms
from toolhub_service.adapters.n8n.source import N8nToolSource
from toolhub_service.adapters.remote import RemoteExecutor, RemoteTerms
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.adapters.source_kind import OpenedSource, SourceAdapter, SourceDeps
from toolhub_service.adapters.upstream import RefCounted, hub_failed, no_source
from toolhub_service.credentials.secret import PerUserTerms
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.job_ports import RunningJobs
from toolhub_service.domain.ports import Clock, EventSink, Randomness
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.egress.resolver import SystemResolver
from toolhub_service.guards.headers import Headers
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.guards.secrets import Redactor
from toolhub_service.guards.shown_urls import shown_url
from toolhub_service.guards.urls import parse_url
from toolhub_service.sections.source_config import SourceValues, Value, describe_value, request_headers

# n8n servers of sources.yaml.


class N8nOpener:
    """Implements `Opener`."""

    def __init__(self, deps: SourceDeps) -> None:
        caller = WorkflowCaller(deps.redactor.text, deps.clock, artifacts=deps.artifacts, keep_raw=deps.keep_raw)
        self.adapter = N8nAdapter(caller, deps.running, deps.clock, deps.randomness)
        self._deps = deps

    def endpoint(self, name: str, entry: N8nSource) -> str:
        try:
            return shown_url(parse_url(describe_value(entry.url))).rstrip("/")
        except ToolFailure:
            return describe_value(entry.url) if "@" not in describe_value(entry.url) else ""

    def open(self, name: str, entry: N8nSource) -> OpenedSource:
        terms, resolver = _terms(name, entry, self.endpoint(name, entry), self._deps.redactor), SystemResolver()
        callers = open_for_callers(self._deps.vault, _per_user(terms, self._deps.redactor))
        try:
            server = N8nServer(terms, resolver, Poller(self._deps.randomness, POLLS), self._deps.trace, callers)
        except ToolFailure as failure:
            raise ValueError(f"its `url` cannot be used: {failure.error.message}") from failure

        async def close() -> None:
            await server.client.close()
            resolver.close()

        connections = RefCounted(close)
        source = N8nToolSource(server, self._deps.redactor.text, connections.close)
        self.adapter.put(server, connections)
        return OpenedSource(source, source.restore_pinned)

    def forget(self, name: str) -> None:
        self._deps.vault.close_source(name)
        self.adapter.remove(name)


def _terms(name: str, entry: N8nSource, shown_as: str, redactor: Redactor) -> N8nTerms:
    """Return the terms. Raises ValueError for values that cannot be used."""
    values = SourceValues(redactor)
    fields = values.of(entry.headers)
    return N8nTerms(
        name=name,
        url=base_url(entry.url, values),
        entry=entry,
        api_key=values.one(entry.api_key),
        headers=request_headers(fields),
        workflow_headers={
            own: _headers(values.of(workflow.headers), fields) for own, workflow in entry.workflows.items()
        },
        shown_as=shown_as,
        mask=Mask(values.secrets),
    )


def _per_user(terms: N8nTerms, redactor: Redactor) -> PerUserTerms | None:
    """Return the terms of callers' credentials. Raises ValueMissing."""
    entry, url = (
        terms.entry,
        urlunsplit(urlsplit(terms.url)._replace(netloc=urlsplit(terms.url).netloc.rpartition("@")[2])),
    )
    return per_user_terms(terms.name, entry.auth, url, SourceValues(redactor), entry.tls.ca_file)


def _headers(own: dict[str, str], inherited: dict[str, str]) -> Headers:
    """Return a workflow's own headers, and those of the source that it does not name itself."""
    names = {name.lower() for name in own}
    return request_headers({name: value for name, value in inherited.items() if name.lower() not in names} | own)


def base_url(value: Value, values: SourceValues) -> str:
    """Return the URL without a slash at its end. Raises ValueError when it is invalid or cannot be a base."""
    url = values.url(value)
    # Paths are appended to it, which a query or fragment would swallow.
    if "?" in url or "#" in url:
        raise ValueError("its `url` is a base URL and must not have a query")
    return url.rstrip("/")


class _Source(NamedTuple):
    server: N8nServer
    executor: RemoteExecutor
    connections: RefCounted


class N8nAdapter(SourceAdapter[_Source]):
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
        super().__init__()
        self._caller = caller
        self._running = running
        self._clock = clock
        self._randomness = randomness
        self._terms = terms or RemoteTerms()
        self._missing = missing

    def put(self, server: N8nServer, connections: RefCounted) -> None:
        """Add a source, or replace its server. Running calls finish on the server that they began on."""
        jobs = N8nJob(server, self._caller, self._missing)
        executor = RemoteExecutor(jobs, self._running, self._clock, self._randomness, self._terms)
        self._sources[server.terms.name] = _Source(server, executor, connections)

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        source = self._source(call)
        async with source.connections.hold():
            callers = source.server.callers
            if callers is None:
                return await self._run(source, call, sink)
            return await callers.run_masked(call, sink, lambda shown: self._run(source, call, shown))

    async def _run(self, source: _Source, call: GrantedCall, sink: EventSink) -> Outcome:
        if await source.executor.is_remote(call):
            return await source.executor.execute(call, sink)
        return await self._at_once(source.server, call)

    async def _at_once(self, server: N8nServer, call: GrantedCall) -> Outcome:
        workflow = server.workflows.get(call.spec.resource_id)
        if workflow is None:
            raise no_source(call)
        try:
            return await self._caller.run(server, workflow, call)
        # Anything else is a defect of the hub: the caller gets none of its text.
        except (ToolFailure, asyncio.CancelledError):
            raise
        except Exception as defect:
            raise hub_failed(call) from defect

    def effects(self, call: GrantedCall) -> Sequence[str]:
        spec = call.spec
        self._source(call)
        does = "only reads" if spec.annotations.read_only else "may change whatever it has access to"
        how = " and runs as a job" if spec.cost.is_async else ""
        return (f"Starts the n8n workflow `{spec.resource_id}` of the source `{spec.source}`{how}; it {does}.",)

    def _source(self, call: GrantedCall) -> _Source:
        """Return the call's source. Raises ToolFailure when it was removed."""
        source = super()._source(call)
        if source.connections.is_closed:
            raise no_source(call)
        return source

    def resumes(self, spec: ToolSpec) -> bool:
        return spec.cost.is_async
