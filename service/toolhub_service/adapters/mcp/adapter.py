"""Step 6 for tools of MCP servers: from a granted call to `tools/call` on its source's warm connection, and back.

Sources come and go while the hub runs. Jobs of tools that run as tasks of their server go through `tasks.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from toolhub_service.adapters.mcp import failures
from toolhub_service.adapters.mcp.calling import Calling, Reporter
from toolhub_service.adapters.mcp.link import McpServer
from toolhub_service.adapters.mcp.tasks import POLLS, TERMS, McpTasks
from toolhub_service.adapters.remote import RemoteExecutor
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.domain.call import NO_PRECONDITIONS, GrantedCall, PlannedCall, Preconditions, QuestionAsked
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.job_ports import RunningJobs
from toolhub_service.domain.ports import Clock, EventSink, FixedTerms, Randomness
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.tool import ToolKind, ToolSpec


class McpAdapter:
    """Runs the tools of all MCP sources of a hub."""

    kind = ToolKind.MCP

    def __init__(self, calling: Calling, running: RunningJobs, clock: Clock, randomness: Randomness) -> None:
        self._calling = calling
        self._running = running
        self._clock = clock
        self._randomness = randomness
        self._servers: dict[str, McpServer] = {}
        self._tasks: dict[str, McpTasks] = {}
        self._executors: dict[str, RemoteExecutor] = {}

    def put(self, server: McpServer) -> None:
        """Add a source, or put another server in its place. Calls under way end where they began."""
        tasks = McpTasks(server, self._calling, Poller(self._randomness, POLLS), self._clock)
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
            result, session = await self._calling.result(server, call, reporter)
            return await self._calling.outcome(server, session, call, result)
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

    async def preconditions(self, planned: PlannedCall) -> Preconditions:
        return NO_PRECONDITIONS

    def has_side_effects(self, planned: PlannedCall) -> bool:
        return planned.spec.has_side_effects

    def upstream(self, planned: PlannedCall) -> str:
        return planned.spec.upstream_key

    def fixed_terms(self, spec: ToolSpec) -> FixedTerms:
        return FixedTerms(spec.has_side_effects, spec.upstream_key)

    def resumes(self, spec: ToolSpec) -> bool:
        server = self._servers.get(spec.source)
        return spec.cost.is_async or (server is not None and server.runs_as_task(spec))
