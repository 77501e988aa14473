"""The server: takes requests, notes them, lets the faults have their way, and can go down and come up again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from typing import Any

from aiohttp import web

from tests.fakes.n8n.answers import Answer, GoneError, json_answer, message
from tests.fakes.n8n.engine import Engine
from tests.fakes.n8n.executions import Execution, ExecutionBook
from tests.fakes.n8n.faults import Fault, Faults, How
from tests.fakes.n8n.nodes import CodeStandIn
from tests.fakes.n8n.public_api import PublicApi
from tests.fakes.n8n.rest_api import InternalApi
from tests.fakes.n8n.spoiling import FaultInjector, UntypedResponse
from tests.fakes.n8n.webhooks import Webhooks
from tests.fakes.n8n.workflows import Workflow, imported
from tests.fakes.n8n.world import Owner, RecordedRequest, ServerState
from tests.free_port import free_port

_SHUTDOWN_S = 0.05
_LONGEST_BODY_BYTES = 16 * 1_024 * 1_024


class FakeN8n:
    """See the package for the manual."""

    def __init__(self, version: str, credentials: Mapping[str, tuple[str, str]]) -> None:
        self.world = ServerState(version, credentials)
        self.requests: list[RecordedRequest] = []
        self.api_key = self.world.make_key(frozenset(self.world.scopes))
        self.faults = Faults()
        self.port = free_port()
        self._webhooks = Webhooks(self.world)
        self._public = PublicApi(self.world)
        self._internal = InternalApi(self.world)
        self._spoiling = FaultInjector(self._done, self.world.book)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def workflows(self) -> dict[str, Workflow]:
        """By id; change them as an editor would."""
        return self.world.workflows

    @property
    def executions(self) -> ExecutionBook:
        return self.world.book

    @property
    def engine(self) -> Engine:
        return self.world.engine

    @property
    def time_scale(self) -> float | None:
        """Real seconds for one second of a workflow; None: waits hold until released."""
        return self.engine.time_scale

    @time_scale.setter
    def time_scale(self, scale: float | None) -> None:
        self.engine.time_scale = scale

    @property
    def owner(self) -> Owner | None:
        return self.world.owner

    def add(self, workflow: Mapping[str, Any], *, active: bool = True) -> Workflow:
        """Import a workflow file, and activate it."""
        added = imported(workflow)
        self.workflows[added.id] = added
        if active:
            added.activate()
        return added

    def code(self, node: str, stand_in: CodeStandIn) -> None:
        """Run this instead of the JavaScript of the Code nodes of that name."""
        self.engine.code[node] = stand_in

    def make_key(self, *scopes: str) -> str:
        """A further API key, of these scopes only."""
        return self.world.make_key(frozenset(scopes))

    def release(self, execution_id: str | int) -> None:
        """End all waits of an execution."""
        self.executions[execution_id].released.set()

    def fails(self, path: str, how: How, **terms: Any) -> Fault:
        """Make requests go wrong; `terms` are the further fields of Fault."""
        return self.faults.add(Fault(path, how, **terms))

    def starts(self, workflow_id: str) -> int:
        """How many executions of the workflow were ever begun by its webhook: what no restart or pruning undoes."""
        return len([row for row in self.executions.began if row.workflow.id == workflow_id and row.mode == "webhook"])

    def asked(self, method: str, path: str) -> list[RecordedRequest]:
        """The requests so far that fit; `path` is a shell pattern."""
        return [seen for seen in self.requests if seen.method == method and fnmatchcase(seen.path, path)]

    async def was_asked(self, method: str, path: str, times: int = 1) -> RecordedRequest:
        """Wait for the so-many-th fitting request."""
        await self.world.news.until(lambda: len(self.asked(method, path)) >= times)
        return self.asked(method, path)[times - 1]

    async def began(self, workflow_id: str, times: int = 1) -> Execution:
        """Wait for the so-many-th start of the workflow."""
        await self.world.news.until(lambda: self.starts(workflow_id) >= times)
        return [row for row in self.executions.began if row.workflow.id == workflow_id][times - 1]

    async def reached(self, execution_id: str | int, status: str) -> Execution:
        """Wait until the execution has this status."""
        execution = self.executions[execution_id]
        await self.world.news.until(lambda: execution.status == status)
        return execution

    async def ended(self, execution_id: str | int) -> Execution:
        """Wait until the execution has ended, however."""
        execution = self.executions[execution_id]
        await execution.has_ended.wait()
        return execution

    async def up(self) -> None:
        """Listen, on the same port each time."""
        app = web.Application(client_max_size=_LONGEST_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._serve)
        app.on_response_prepare.append(_without_type)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.world.url = self.url

    async def down(self) -> None:
        """Refuse connections, and close those that are open."""
        assert self._runner is not None
        await self._runner.cleanup()

    async def restart(self) -> None:
        """What ran has crashed, what waited goes on; nothing else is lost. Open requests get no answer."""
        self.engine.restart()
        await self.down()
        await self.up()

    async def close(self) -> None:
        self.faults.clear()
        await self.engine.close()
        await self._spoiling.close()
        await self.down()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        asked = RecordedRequest(
            request.method,
            request.path,
            dict(request.query),
            {name.lower(): value for name, value in request.headers.items()},
            dict(request.cookies),
            await request.read(),
        )
        self.requests.append(asked)
        fault = self.faults.next(asked.method, asked.path)
        self.world.news.notify()
        try:
            return await self._spoiling.sent(request, asked, fault)
        except GoneError:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)

    async def _done(self, asked: RecordedRequest) -> Answer:
        """Do what is asked, by area."""
        try:
            if asked.path.startswith(("/webhook/", "/webhook-test/")):
                return await self._webhooks.answer(asked)
            if asked.path.startswith("/api/v1/"):
                return await self._public.answer(asked)
            if asked.path.startswith("/rest/"):
                return await self._internal.answer(asked)
        except json.JSONDecodeError:
            return message(400, "Failed to parse request body")
        if asked.path in {"/healthz", "/healthz/readiness"}:
            return json_answer({"status": "ok"})
        return Answer(404, f"Cannot {asked.method} {asked.path}".encode())


async def _without_type(_: web.Request, response: web.StreamResponse) -> None:
    if isinstance(response, UntypedResponse):
        response.headers.popall("Content-Type", None)


@asynccontextmanager
async def fake_n8n(
    *,
    workflows: Iterable[Mapping[str, Any]] = (),
    version: str = "2.8.4",
    active: bool = True,
    credentials: Mapping[str, tuple[str, str]] | None = None,
    owner: Owner | None = None,
    time_scale: float | None = 0.001,
) -> AsyncIterator[FakeN8n]:
    """An n8n on a free port of loopback.

    Args:
        workflows: workflow files as n8n exports them; a copy is taken.
        version: of n8n; from 2.10 on the public API can stop executions.
        active: whether the workflows are activated.
        credentials: header and value by credential id, for webhooks with header auth.
        owner: who may log in to `/rest`; None: nobody has set the instance up.
        time_scale: real seconds for one second of a workflow; None: waits hold until released.
    """
    n8n = FakeN8n(version, credentials or {})
    n8n.time_scale, n8n.world.owner = time_scale, owner
    for workflow in workflows:
        n8n.add(workflow, active=active)
    await n8n.up()
    try:
        yield n8n
    finally:
        async with asyncio.timeout(60):
            await n8n.close()
