"""ComfyUI servers of sources.yaml."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from toolhub_service.adapters.comfyui.adapter import ComfyAdapter, opened
from toolhub_service.adapters.comfyui.client import BackendTerms, ComfyTerms, backend_at
from toolhub_service.adapters.comfyui.kind import ComfyUiSource
from toolhub_service.adapters.comfyui.source import ComfyToolSource
from toolhub_service.adapters.definitions import Overrides
from toolhub_service.adapters.source_config import ClientTls, Value
from toolhub_service.adapters.source_kind import OpenedSource, SourceDeps
from toolhub_service.adapters.source_values import SourceValues, shown
from toolhub_service.adapters.upstream import RefCounted, TlsTerms, client_context
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.guards.headers import judge_request_headers
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.tools.egress.transport import SystemResolver

_ONE = "comfyui"
"""Name of a source's only server, where it has but a `url`."""


class ComfyUiOpener:
    """Implements `Opener`."""

    def __init__(self, deps: SourceDeps) -> None:
        self.adapter = ComfyAdapter(deps.running, deps.clock, deps.randomness)
        self._deps = deps

    def endpoint(self, name: str, entry: ComfyUiSource) -> str:
        urls = [shown(entry.url)] if entry.url else [shown(backend.url) for backend in entry.backends.values()]
        return ", ".join(_bare(url) for url in urls)

    def open(self, name: str, entry: ComfyUiSource) -> OpenedSource:
        terms = _terms(name, entry, SourceValues(self._deps.redactor), self.endpoint(name, entry))
        deps, redact, resolver = self._deps, self._deps.redactor.text, SystemResolver()
        parts = opened(
            terms,
            resolver,
            self._deps.artifacts,
            deps.clock,
            deps.randomness,
            redact,
            self._deps.running.keep_mark,
            tls=_tls(entry.tls),
        )

        async def close() -> None:
            await parts.close()
            resolver.close()

        connections = RefCounted(close)
        source = ComfyToolSource(
            terms, parts.backends, parts.shelf, Overrides(entry.tools), compile_schema, redact, connections.close
        )
        self.adapter.put(terms, parts.job, connections)
        return OpenedSource(source)

    def forget(self, name: str) -> None:
        self.adapter.remove(name)


def _terms(name: str, entry: ComfyUiSource, values: SourceValues, shown_as: str) -> ComfyTerms:
    """Raises ValueError for what cannot be used."""
    return ComfyTerms(
        name,
        tuple(_backends(entry, values)),
        entry.templates,
        entry.capabilities,
        entry.tags,
        entry.timeout_s,
        entry.max_concurrency,
        entry.strip_metadata,
        entry.connect_timeout_s,
        entry.read_timeout_s,
        entry.lost_after_s,
        shown_as,
    )


def _backends(entry: ComfyUiSource, values: SourceValues) -> Iterator[BackendTerms]:
    if entry.url:
        yield backend_at(_ONE, _web(entry.url, values), _headers(values.of(entry.headers)))
    for name, backend in entry.backends.items():
        yield backend_at(name, _web(backend.url, values), _headers(values.of(backend.headers)))


def _web(value: Value, values: SourceValues) -> str:
    """Raises ValueError when what stands elsewhere is no URL; the message does not hold it."""
    url = values.one(value, is_secret=False)
    if not url.startswith(("http://", "https://")):
        raise ValueError("a `url` does not begin with http:// or https://")
    return url


def _headers(fields: dict[str, str]) -> dict[str, str]:
    """Raises ValueError for one that frames a message, or would break out of its line; the message does not hold it."""
    try:
        return dict(judge_request_headers(fields))
    except ToolFailure as failure:
        raise ValueError(f"its `headers` cannot be used: {failure.error.message}") from failure


def _bare(url: str) -> str:
    """Without credentials."""
    try:
        return backend_at("", url, {}).url if "://" in url else url
    except ValueError:
        return ""


def _tls(terms: ClientTls) -> ssl.SSLContext | None:
    """None: the system's trust. Raises OSError, ValueError."""
    if not (terms.ca_file or terms.certificate_file):
        return None
    return client_context(TlsTerms(terms.ca_file, terms.certificate_file, terms.key_file))
