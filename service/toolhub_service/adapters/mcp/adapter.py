"""Step 6 for tools of MCP servers: from a granted call to `tools/call` on its source's warm connection, and back.

Sources come and go while the hub runs. Jobs of tools that run as tasks of their server go through `job.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from toolhub_service.adapters.definitions import Overrides
from toolhub_service.adapters.mcp import failures
from toolhub_service.adapters.mcp.calling import Reporter, ToolCaller
from toolhub_service.adapters.mcp.definitions import SourceTerms
from toolhub_service.adapters.mcp.job import POLLS, TERMS, McpTasks
from toolhub_service.adapters.mcp.kind import ClientCredentials, HttpTerms, McpSource, McpTerms, OAuthTerms, StdioTerms
from toolhub_service.adapters.mcp.link import McpLink, McpServer
from toolhub_service.adapters.mcp.source import McpToolSource
from toolhub_service.adapters.remote import RemoteExecutor
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.adapters.source_config import SourceValues, Value, shown
from toolhub_service.adapters.source_kind import OpenedSource, SourceAdapter, SourceDeps
from toolhub_service.domain.call import GrantedCall, QuestionAsked
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.job_ports import RunningJobs
from toolhub_service.domain.ports import Clock, EventSink, Randomness
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.source import Trust
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.guards.masking import Mask
from toolhub_service.schema.compiled import compile_schema

# MCP servers of sources.yaml. The only module of the app that imports the MCP SDK: it costs a start half a second.


class McpOpener:
    """Implements `Opener`."""

    def __init__(self, deps: SourceDeps) -> None:
        calling = ToolCaller(
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
    tls = entry.tls
    headers = values.of(entry.headers)
    return HttpTerms(values.url(entry.url), headers, _oauth(entry.oauth, values), tls, entry.origins)


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


class McpAdapter(SourceAdapter):
    """Runs the tools of all MCP sources of a hub."""

    kind = ToolKind.MCP

    def __init__(self, calling: ToolCaller, running: RunningJobs, clock: Clock, randomness: Randomness) -> None:
        self._caller = calling
        self._running = running
        self._clock = clock
        self._randomness = randomness
        self._servers: dict[str, McpServer] = {}
        self._tasks: dict[str, McpTasks] = {}
        self._executors: dict[str, RemoteExecutor] = {}

    def put(self, server: McpServer) -> None:
        """Add a source, or put another server in its place. Calls under way end where they began."""
        tasks = McpTasks(server, self._caller, Poller(self._randomness, POLLS), self._clock)
        self._servers[server.name] = server
        self._tasks[server.name] = tasks
        self._executors[server.name] = RemoteExecutor(tasks, self._running, self._clock, self._randomness, TERMS)

    def remove(self, name: str) -> None:
        """Take a source away; does nothing when it is not there."""
        for known in (self._servers, self._tasks, self._executors):
            known.pop(name, None)

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        server = self._servers.get(call.spec.source)
        if server is None:
            raise failures.no_server(call)
        if await self._is_task(server, call):
            return await self._as_task(server, call, sink)
        reporter = Reporter(sink)
        try:
            result, session = await self._caller.result(server, call, reporter)
            return await self._caller.outcome(server, session, call, result)
        except (ToolFailure, QuestionAsked, asyncio.CancelledError):
            raise
        except Exception as defect:
            raise failures.unforeseen(call) from defect
        finally:
            reporter.close()

    async def _is_task(self, server: McpServer, call: GrantedCall) -> bool:
        """A mark that was kept is proof that it is, before the server's tools have been read again."""
        if call.spec.cost.is_async or not call.call.job_id:
            return call.spec.cost.is_async
        return server.runs_as_task(call.spec) or await self._running.mark(call.call.job_id) is not None

    async def _as_task(self, server: McpServer, call: GrantedCall, sink: EventSink) -> Outcome:
        """As a job whose work is a task of the server."""
        reporters, job_id = self._tasks[server.name].reporters, call.call.job_id
        reporter = reporters[job_id] = Reporter(sink)
        try:
            return await self._executors[server.name].execute(call, sink)
        finally:
            if reporters.get(job_id) is reporter:
                del reporters[job_id]
            reporter.close()

    def effects(self, call: GrantedCall) -> Sequence[str]:
        spec = call.spec
        if spec.source not in self._servers:
            raise failures.no_server(call)
        does = "reads through" if spec.annotations.read_only else "may change whatever is behind"
        return (f"Calls the tool `{spec.resource_id}` of the MCP source `{spec.source}`, which {does} its server.",)

    def resumes(self, spec: ToolSpec) -> bool:
        server = self._servers.get(spec.source)
        return spec.cost.is_async or (server is not None and server.runs_as_task(spec))
