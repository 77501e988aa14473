"""The tools of one ComfyUI source: its templates, each held to what every server knows of the nodes it uses.

Templates are read anew at each reading, so a file that was changed is a changed tool, and so are the descriptions of
nodes: a class that is gone takes its tools out of use before anybody calls them. A template that no server can run is
quarantined with the reason; one that some can run goes to those. Templates are the operator's own words: never pinned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from toolhub_service.adapters.comfyui.backends import Backend, Backends, ServerKind
from toolhub_service.adapters.comfyui.client import LISTS_MAX_BYTES, ComfyTerms, NoReply
from toolhub_service.adapters.comfyui.node_classes import problems_with
from toolhub_service.adapters.comfyui.template import RunnableTemplate, Template, TemplateCache, resource_id
from toolhub_service.adapters.comfyui.templates import load_templates
from toolhub_service.adapters.definitions import Overrides, full_name
from toolhub_service.domain.errors import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.source import Definition, Discovery, Trust
from toolhub_service.domain.tool import Annotations, CostHints, ToolKind, ToolLimits, ToolSpec
from toolhub_service.guards.secrets import Redact
from toolhub_service.registry.catalog import check_name

PROBLEMS_MAX: Final = 50
_PROBLEM_MAX_CHARS: Final = 500
_AT_ONCE: Final = 4
_STAND_IN: Final[JsonObject] = {"type": "object"}


class ComfyToolSource:
    """Implements `ToolSource`."""

    kind = ToolKind.COMFYUI
    trust = Trust.ALWAYS

    def __init__(
        self,
        terms: ComfyTerms,
        backends: Backends,
        templates: TemplateCache,
        overrides: Overrides,
        check_schema: Callable[[JsonObject], object],
        redact: Redact,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        """`check_schema` raises ToolFailure, HubFailure or ValueError; `close` ends all connections."""
        self._terms = terms
        self._backends = backends
        self._templates = templates
        self._overrides = overrides
        self._check_schema = check_schema
        self._close = close
        self._redact = redact
        self._is_closed = False
        self._server_states: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self._terms.name

    @property
    def endpoint(self) -> str:
        return self._terms.endpoint

    async def discover(self) -> Discovery:
        if self._is_closed:
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, "The source is closed.", retryable=False)
        templates, problems = await asyncio.to_thread(load_templates, self._terms.templates)
        classes = sorted({name for template in templates for name in template.node_classes})
        read = await asyncio.gather(*(_ask_server(backend, classes) for backend in self._backends))
        known = {backend.name: found for backend, found in zip(self._backends, read, strict=True)}
        servers = {name: found for name, found in known.items() if isinstance(found, _Server)}
        self._server_states = tuple(f"backend {name}: {_state(found)}" for name, found in known.items())
        if not servers:
            told = "; ".join(f"{name}: {found}" for name, found in known.items())
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, f"No ComfyUI server can be reached ({self._redact(told)}).")
        problems += [f"backend {name}: {found}" for name, found in known.items() if name not in servers]
        runnable = {
            resource_id(template): RunnableTemplate(template, _capable_servers(template, servers) or frozenset(known))
            for template in templates
        }
        definitions = [self._definition(template, servers) for template in templates if self._is_offered(template)]
        self._templates.put(runnable)
        return Discovery(tuple(definitions), tuple(map(self._redact, problems[:PROBLEMS_MAX])), server=_names(servers))

    def listen(self, changed: Callable[[], None]) -> None:
        """It never has news: files and servers are looked at from time to time."""

    def diagnostics(self) -> Sequence[str]:
        heard = tuple(_socket_of(backend) for backend in self._backends)
        return tuple(map(self._redact, (*self._server_states, *heard)))

    async def start(self) -> None:
        """Servers are connected to when they are asked."""

    async def close(self) -> None:
        self._is_closed = True
        await self._close()

    def _is_offered(self, template: Template) -> bool:
        return self._overrides.of(template.name).offered

    def _definition(self, template: Template, servers: Mapping[str, _Server]) -> Definition:
        problem = self._schema_problem(template) or _problem(template, servers)
        remote: JsonObject = {
            "name": template.name,
            "version": template.version,
            "description": template.description,
            "inputSchema": template.input_schema,
            "outputSchema": template.output_schema,
            "templateSha256": template.sha256,
        }
        return Definition(self._spec(template), remote, problem[:_PROBLEM_MAX_CHARS], is_operators=True)

    def _schema_problem(self, template: Template) -> str:
        try:
            check_name(full_name(self.name, template.name))
            self._check_schema(template.input_schema)
            self._check_schema(template.output_schema)
        except ToolFailure as failure:
            return failure.error.message
        except HubFailure as failure:
            return failure.message
        except ValueError as wrong:
            return f"a schema cannot be used: {wrong}"
        return ""

    def _spec(self, template: Template) -> ToolSpec:
        terms, said = self._terms, self._overrides.of(template.name)
        is_usable = not self._schema_problem(template)
        capabilities = terms.capabilities if said.capabilities is None else said.capabilities
        return ToolSpec(
            name=full_name(self.name, template.name),
            kind=ToolKind.COMFYUI,
            description=template.description,
            input_schema=template.input_schema if is_usable else _STAND_IN,
            output_schema=template.output_schema if is_usable else {},
            version=template.version,
            tags=tuple(dict.fromkeys((*terms.tags, *template.tags))),
            capabilities=frozenset(capabilities or (f"comfyui:{self.name}",)),
            annotations=Annotations(
                read_only=said.read_only is True,
                destructive=said.destructive is True,
                idempotent=said.idempotent is True,
                supports_progress=True,
            ),
            cost=CostHints(is_async=True),
            limits=ToolLimits(
                timeout_s=said.timeout_s or terms.timeout_s,
                max_concurrency=terms.max_concurrency,
                job_timeout_s=said.timeout_s or terms.timeout_s,
            ),
            source=self.name,
            endpoint=terms.endpoint,
            resource_id=resource_id(template),
            upstream=terms.upstream,
        )


class _Server:
    """What one server said in one reading."""

    def __init__(self, kind: ServerKind, object_info: JsonObject) -> None:
        self.kind = kind
        self.object_info = object_info


async def _ask_server(backend: Backend, classes: Sequence[str]) -> _Server | str:
    """What it says of these classes, or why it says nothing."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def ask(name: str) -> Any:
        async with places:
            reply = await backend.client.get(f"/object_info/{quote(name, safe='')}", max_bytes=LISTS_MAX_BYTES)
            return reply.fields.get(name)

    try:
        kind = await backend.kind(anew=True)
        described = await asyncio.gather(*map(ask, classes))
    except NoReply as unreached:
        backend.has_failed()
        return unreached.reason
    return _Server(kind, {name: said for name, said in zip(classes, described, strict=True) if said is not None})


def _capable_servers(template: Template, servers: Mapping[str, _Server]) -> frozenset[str]:
    return frozenset(name for name, server in servers.items() if not _problems(template, server))


def _problem(template: Template, servers: Mapping[str, _Server]) -> str:
    """Why no server can run it; empty when one can."""
    if _capable_servers(template, servers):
        return ""
    told = {name: "; ".join(_problems(template, server)[:3]) for name, server in servers.items()}
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return "; ".join(f"{name}: {problems}" for name, problems in told.items())


def _problems(template: Template, server: _Server) -> tuple[str, ...]:
    return problems_with(template, server.object_info)


def _names(servers: Mapping[str, _Server]) -> str:
    return ", ".join(dict.fromkeys(f"ComfyUI {server.kind.version}" for server in servers.values()))


def _state(found: _Server | str) -> str:
    return found if isinstance(found, str) else f"ComfyUI {found.kind.version}, {found.kind.device}"


def _socket_of(backend: Backend) -> str:
    events = backend.events
    told = "connected" if events.client_id else f"none, for {events.error}" if events.error else "not needed yet"
    return f"backend {backend.name}: WebSocket {told}; {events.connections} connections so far"
