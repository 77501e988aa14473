"""n8n servers of sources.yaml."""

from __future__ import annotations

from dataclasses import replace

from toolhub_service.adapters.definitions import Overrides
from toolhub_service.adapters.n8n.adapter import N8nAdapter
from toolhub_service.adapters.n8n.calling import Calling
from toolhub_service.adapters.n8n.client import DiscoveryTerms, N8nTerms, WorkflowTerms, refused_url
from toolhub_service.adapters.n8n.definitions import DefinitionMaker
from toolhub_service.adapters.n8n.job import POLLS
from toolhub_service.adapters.n8n.kind import N8nSource, N8nWorkflow, workflow_terms
from toolhub_service.adapters.n8n.server import N8nServer
from toolhub_service.adapters.n8n.source import N8nToolSource
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.adapters.source_kind import OpenedSource, SourceDeps
from toolhub_service.adapters.source_values import SourceValues, shown
from toolhub_service.adapters.upstream import RefCounted, TlsTerms
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.source import Trust
from toolhub_service.guards.headers import Headers, judge_request_headers
from toolhub_service.guards.masking import Mask, shown_url
from toolhub_service.guards.urls import parse_url
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.tools.egress.transport import SystemResolver


class N8nOpener:
    """Implements `Opener`."""

    def __init__(self, deps: SourceDeps) -> None:
        calling = Calling(
            deps.redactor.text,
            deps.clock,
            desk=deps.artifacts,
            trace=deps.trace,
            keep_raw=deps.keep_raw,
        )
        self.adapter = N8nAdapter(calling, deps.running, deps.clock, deps.randomness)
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
        _web(values.one(entry.url, is_secret=False)),
        api_key=values.one(entry.api_key),
        headers=_headers(fields),
        workflows={own: _workflow(workflow, fields, values) for own, workflow in entry.workflows.items()},
        discover=None if discover is None else DiscoveryTerms(discover.tags, discover.mode),
        api_path=_path(entry.api_path, "api_path"),
        webhook_path=_path(entry.webhook_path, "webhook_path"),
        tls=TlsTerms(entry.tls.ca_file, entry.tls.certificate_file, entry.tls.key_file),
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
    return workflow_terms(entry, _headers(inherited | own))


def _headers(fields: dict[str, str]) -> Headers:
    try:
        return judge_request_headers(fields)
    except ToolFailure as failure:
        raise ValueError(f"its `headers` cannot be used: {failure.error.message}") from failure


def _web(url: str) -> str:
    """Without a slash at its end. Raises ValueError when it is none; the message does not hold it."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("its `url` does not begin with http:// or https://")
    if "?" in url or "#" in url:
        raise ValueError("its `url` is a base, and has no query")
    return url.rstrip("/")


def _path(path: str, setting: str) -> str:
    """With a slash before it and none behind."""
    words = [word for word in path.split("/") if word]
    if {".", ".."} & set(words) or any(char in path for char in "?#\\ %"):
        raise ValueError(f"its `{setting}` is no plain path")
    return "".join(f"/{word}" for word in words)
