"""Step 6 for templates of ComfyUI sources: every call is a job, driven by `RemoteExecutor` over `ComfyJob`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import httpx

from toolhub_service import __version__
from toolhub_service.adapters.caller_auth import per_user_terms
from toolhub_service.adapters.callers import CallersOf, open_for_callers
from toolhub_service.adapters.comfyui.backends import Backend, Backends
from toolhub_service.adapters.comfyui.client import BackendTerms, ComfyClient, ComfyTerms, NoCookies, backend_at
from toolhub_service.adapters.comfyui.event_feed import EventFeed, WebSocketConnector
from toolhub_service.adapters.comfyui.job import ComfyJob, RisingProgress
from toolhub_service.adapters.comfyui.kind import ComfyUiBackend, ComfyUiSource
from toolhub_service.adapters.comfyui.source import ComfyToolSource
from toolhub_service.adapters.comfyui.submitting import KeepMark
from toolhub_service.adapters.comfyui.workflow.template import TemplateCache
from toolhub_service.adapters.remote import RemoteExecutor, RemoteTerms
from toolhub_service.adapters.remote_polling import Poller, PollTerms, new_mark
from toolhub_service.adapters.source_kind import OpenedSource, SourceAdapter, SourceDeps
from toolhub_service.adapters.upstream import RefCounted, client_context, no_source
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.job_ports import RunningJobs
from toolhub_service.domain.ports import Clock, EventSink, Randomness, Resolver
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.egress.resolver import SystemResolver
from toolhub_service.egress.transport import GuardedTransport
from toolhub_service.guards.secrets import Redact
from toolhub_service.sections.source_config import SourceValues, describe_value, request_headers

# ComfyUI servers of sources.yaml.

# Name of the only server of a source that has only a `url`.
_ONE = "comfyui"


class ComfyUiOpener:
    """Implements `Opener`."""

    def __init__(self, deps: SourceDeps) -> None:
        self.adapter = ComfyAdapter(deps.running, deps.clock, deps.randomness)
        self._deps = deps

    def endpoint(self, name: str, entry: ComfyUiSource) -> str:
        urls = (
            [describe_value(entry.url)]
            if entry.url
            else [describe_value(backend.url) for backend in entry.backends.values()]
        )
        return ", ".join(_bare(url) for url in urls)

    def open(self, name: str, entry: ComfyUiSource) -> OpenedSource:
        deps, redact, resolver = self._deps, self._deps.redactor.text, SystemResolver()
        values = SourceValues(deps.redactor)
        backends = tuple(_backends(entry, values))
        terms = ComfyTerms(name, entry, backends, self.endpoint(name, entry))
        per_user = per_user_terms(name, entry.auth, backends[0].url, values, entry.tls.ca_file)
        callers, keep_mark = open_for_callers(deps.vault, per_user), deps.running.keep_mark
        parts = open_parts(
            terms=terms,
            resolver=resolver,
            artifacts=deps.artifacts,
            clock=deps.clock,
            randomness=deps.randomness,
            redact=redact,
            keep_mark=keep_mark,
            callers=callers,
        )

        async def close() -> None:
            await parts.close()
            resolver.close()

        connections = RefCounted(close)
        source = ComfyToolSource(terms, parts.backends, parts.templates, redact, connections.close)
        self.adapter.put(terms, parts.job, connections, callers)
        return OpenedSource(source)

    def forget(self, name: str) -> None:
        self._deps.vault.close_source(name)
        self.adapter.remove(name)


def _backends(entry: ComfyUiSource, values: SourceValues) -> Iterator[BackendTerms]:
    """Yield the terms of each server. Raises ValueError for an entry that cannot be used."""
    only = {_ONE: ComfyUiBackend(url=entry.url, headers=entry.headers)} if entry.url else {}
    for name, backend in (only | entry.backends).items():
        yield backend_at(name, values.url(backend.url), dict(request_headers(values.of(backend.headers))))


def _bare(url: str) -> str:
    """Return the URL without credentials."""
    try:
        return backend_at("", url, {}).url if "://" in url else url
    except ValueError:
        return ""


# The parts of a source: servers, templates, jobs. Nothing is connected yet.

POLLS = PollTerms(first_s=0.25, longest_s=5.0)
"""A poll after a second or two of a run, then every five seconds; a quarter of a second after an event."""
FETCHES = PollTerms(first_s=0.25, longest_s=5.0, at_once=4)
_CONNECTIONS_MAX = 64


@dataclass(frozen=True, slots=True)
class Opened:
    """The parts of a source that work together."""

    backends: Backends
    templates: TemplateCache
    job: ComfyJob
    http: httpx.AsyncClient
    guarded: GuardedTransport

    async def close(self) -> None:
        """Close its connections."""
        await self.backends.close()
        await self.http.aclose()
        await self.guarded.aclose()


def open_parts(
    terms: ComfyTerms,
    resolver: Resolver,
    artifacts: ArtifactService,
    clock: Clock,
    randomness: Randomness,
    redact: Redact,
    keep_mark: KeepMark,
    *,
    polls: PollTerms = POLLS,
    callers: CallersOf | None = None,
) -> Opened:
    """Raises ValueError for an invalid URL, OSError or ValueError for certificates that cannot be used."""
    entry = terms.entry
    tls = client_context(entry.tls) if entry.tls.ca_file or entry.tls.certificate_file else None
    rules = tuple(backend.rule for backend in terms.backends)
    guarded = GuardedTransport(resolver, tls=tls, max_connections=_CONNECTIONS_MAX)
    http = httpx.AsyncClient(
        transport=guarded.under(rules),
        headers={"user-agent": f"tool-hub/{__version__}"},
        timeout=httpx.Timeout(entry.read_timeout_s, connect=entry.connect_timeout_s, pool=None),
        cookies=NoCookies(),
        trust_env=False,
        follow_redirects=False,
    )

    def backend_of(backend: BackendTerms) -> Backend:
        poller = Poller(randomness, polls)
        connector = WebSocketConnector(backend, resolver, tls=tls, connect_timeout_s=entry.connect_timeout_s)
        events = EventFeed(connector, clock, randomness, poller.poll_now)
        client = ComfyClient(backend, http, read_timeout_s=entry.read_timeout_s, redact=redact)
        return Backend(client, events, poller, Poller(randomness, FETCHES), clock, callers)

    backends, templates = Backends(map(backend_of, terms.backends)), TemplateCache()
    job = ComfyJob(
        backends=backends,
        templates=templates,
        artifacts=artifacts,
        clock=clock,
        redact=redact,
        keep_mark=keep_mark,
        entry=entry,
    )
    return Opened(backends, templates, job, http, guarded)


class _Source(NamedTuple):
    terms: ComfyTerms
    job: ComfyJob
    executor: RemoteExecutor
    connections: RefCounted
    callers: CallersOf | None


class ComfyAdapter(SourceAdapter[_Source]):
    """Runs the tools of all ComfyUI sources of a hub. Implements `Adapter`."""

    kind = ToolKind.COMFYUI

    def __init__(self, running: RunningJobs, clock: Clock, randomness: Randomness) -> None:
        super().__init__()
        self._running = running
        self._clock = clock
        self._randomness = randomness

    def put(self, terms: ComfyTerms, job: ComfyJob, connections: RefCounted, callers: CallersOf | None = None) -> None:
        """Add a source, or replace one. Running jobs finish on the source that they began on."""
        patience = RemoteTerms(absent_for_s=terms.entry.lost_after_s)
        executor = RemoteExecutor(job, self._running, self._clock, self._randomness, patience)
        self._sources[terms.name] = _Source(terms, job, executor, connections, callers)

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        source = self._source(call)
        async with source.connections.hold():
            if source.callers is None:
                return await self._run(source, call, sink)
            return await source.callers.run_masked(call, sink, lambda shown: self._run(source, call, shown))

    async def _run(self, source: _Source, call: GrantedCall, sink: EventSink) -> Outcome:
        job, job_id = source.job, call.call.job_id
        rising = job.sinks[job_id] = RisingProgress(sink)
        try:
            return await source.executor.execute(call, rising)
        finally:
            if job.sinks.get(job_id) is rising:
                del job.sinks[job_id]
            job.forget(new_mark(job_id).key)

    def effects(self, call: GrantedCall) -> Sequence[str]:
        servers = ", ".join(backend.name for backend in self._source(call).terms.backends)
        template = call.spec.resource_id.partition("@")[0]
        return (
            f"Runs the template `{template}` on a ComfyUI server ({servers}) and keeps what it makes as artifacts.",
        )

    def _source(self, call: GrantedCall) -> _Source:
        """Return the call's source. Raises ToolFailure when it was removed."""
        source = super()._source(call)
        if source.connections.is_closed:
            raise no_source(call)
        return source

    def resumes(self, spec: ToolSpec) -> bool:
        return True
