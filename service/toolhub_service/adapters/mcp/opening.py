"""MCP servers of sources.yaml. The only module of the app that imports the MCP SDK: it costs a start half a second."""

from __future__ import annotations

from toolhub_service.adapters.definitions import Overrides
from toolhub_service.adapters.mcp.adapter import McpAdapter
from toolhub_service.adapters.mcp.calling import Calling
from toolhub_service.adapters.mcp.definitions import SourceTerms
from toolhub_service.adapters.mcp.kind import ClientCredentials, McpSource
from toolhub_service.adapters.mcp.link import McpLink, McpServer
from toolhub_service.adapters.mcp.source import McpToolSource
from toolhub_service.adapters.mcp.terms import HttpTerms, McpTerms, OAuthTerms, StdioTerms
from toolhub_service.adapters.source_config import Value
from toolhub_service.adapters.source_kind import OpenedSource, SourceDeps
from toolhub_service.adapters.source_values import SourceValues, shown
from toolhub_service.adapters.upstream import TlsTerms
from toolhub_service.domain.source import Trust
from toolhub_service.guards.masking import Mask
from toolhub_service.schema.compiled import compile_schema


class McpOpener:
    """Implements `Opener`."""

    def __init__(self, deps: SourceDeps) -> None:
        calling = Calling(
            deps.redactor.text,
            desk=deps.artifacts,
            trace=deps.trace,
            keep_raw=deps.keep_raw,
        )
        self.adapter = McpAdapter(calling, deps.running, deps.clock, deps.randomness)
        self._deps = deps

    def endpoint(self, name: str, entry: McpSource) -> str:
        if entry.command:
            return McpTerms(name, StdioTerms(entry.command, tuple(shown(argument) for argument in entry.args))).endpoint
        return McpTerms(name, HttpTerms(shown(entry.url))).endpoint

    def open(self, name: str, entry: McpSource) -> OpenedSource:
        values = SourceValues(self._deps.redactor)
        terms = self._terms(name, entry, values)
        own_words = SourceTerms(
            name,
            self.endpoint(name, entry),
            entry.capabilities,
            entry.tags,
            entry.timeout_s,
            entry.max_concurrency,
        )
        link = McpLink(terms, self._deps.randomness)
        server = McpServer(name, link, Overrides(entry.tools), entry.elicitation)
        source = McpToolSource(
            server,
            own_words,
            compile_schema,
            self._deps.redactor.text,
            trust=Trust(entry.trust),
            mask=Mask(values.secrets),
        )
        self.adapter.put(server)
        return OpenedSource(source, source.restored, source.registered)

    def forget(self, name: str) -> None:
        self.adapter.remove(name)

    def _terms(self, name: str, entry: McpSource, values: SourceValues) -> McpTerms:
        return McpTerms(
            name,
            _where(entry, values),
            protocol=entry.protocol,
            elicitation=entry.elicitation,
            connect_timeout_s=entry.connect_timeout_s,
            max_message_bytes=entry.max_message_bytes,
        )


def _where(entry: McpSource, values: SourceValues) -> StdioTerms | HttpTerms:
    if entry.command:
        return StdioTerms(entry.command, values.all(entry.args), values.of(entry.env), entry.cwd)
    tls = TlsTerms(entry.tls.ca_file, entry.tls.certificate_file, entry.tls.key_file)
    headers = values.of(entry.headers)
    return HttpTerms(_web(entry.url, values), headers, _oauth(entry.oauth, values), tls, entry.origins)


def _web(value: Value, values: SourceValues) -> str:
    """Raises ValueError when what stands elsewhere is no URL; the message does not hold it."""
    url = values.one(value, is_secret=False)
    if not url.startswith(("http://", "https://")):
        raise ValueError("its `url` does not begin with http:// or https://")
    return url


def _oauth(credentials: ClientCredentials | None, values: SourceValues) -> OAuthTerms | None:
    if credentials is None:
        return None
    return OAuthTerms(
        credentials.client_id,
        values.one(credentials.client_secret),
        credentials.token_url,
        credentials.scopes,
        private_key=_key(credentials.private_key, values),
        signing_algorithm=credentials.signing_algorithm,
        audience=credentials.audience,
    )


def _key(value: Value, values: SourceValues) -> str:
    """Raises ValueError when there should be one and what stands elsewhere is empty."""
    key = values.one(value)
    if value and not key:
        raise ValueError("what `oauth.private_key` refers to is empty")
    return key
