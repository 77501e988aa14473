"""The tools of one ComfyUI source: its templates, each checked against every server's description of the nodes it uses.

Templates and descriptions of nodes are read again at each reading, so a changed file is a changed tool, and a missing
class disables its tools before anybody calls them. A template that no server can run is quarantined with the reason;
one that some can run is sent to those. Templates come from the operator, so they are never pinned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from toolhub_service.adapters.comfyui.backends import Backend, Backends, ServerKind
from toolhub_service.adapters.comfyui.client import LISTS_MAX_BYTES, ComfyTerms, NoReply
from toolhub_service.adapters.comfyui.workflow.loading import load_templates
from toolhub_service.adapters.comfyui.workflow.node_classes import problems_with
from toolhub_service.adapters.comfyui.workflow.template import RunnableTemplate, Template, TemplateCache, resource_id
from toolhub_service.adapters.definitions import Overrides, refusal
from toolhub_service.adapters.tool_names import full_name
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.source import Definition, Discovery, Trust
from toolhub_service.domain.tool import Annotations, CostHints, ToolKind, ToolLimits, ToolSpec
from toolhub_service.guards.secrets import Redact
from toolhub_service.registry.names import check_name

PROBLEMS_MAX: Final = 50
_PROBLEM_MAX_CHARS: Final = 500
_AT_ONCE: Final = 4


class ComfyToolSource:
    """Implements `ToolSource`."""

    kind = ToolKind.COMFYUI
    trust = Trust.ALWAYS

    def __init__(
        self,
        terms: ComfyTerms,
        backends: Backends,
        templates: TemplateCache,
        redact: Redact,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        """`close` closes all connections. Raises ValueError when an `error_pattern` is no regular expression."""
        self._terms = terms
        self._backends = backends
        self._templates = templates
        self._overrides = Overrides(terms.entry.tools)
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
        templates, problems = await asyncio.to_thread(load_templates, self._terms.entry.templates)
        classes = sorted({name for template in templates for name in template.node_classes})
        read = await asyncio.gather(*(_ask_server(backend, classes) for backend in self._backends))
        known = {backend.name: found for backend, found in zip(self._backends, read, strict=True)}
        servers = {name: found for name, found in known.items() if isinstance(found, _Server)}
        self._server_states = tuple(f"backend {name}: {_state(found)}" for name, found in known.items())
        if not servers:
            reasons = "; ".join(f"{name}: {found}" for name, found in known.items())
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, f"No ComfyUI server can be reached ({self._redact(reasons)}).")
        problems += [f"backend {name}: {found}" for name, found in known.items() if name not in servers]
        runnable: dict[str, RunnableTemplate] = {}
        definitions: list[Definition] = []
        for template in templates:
            wrong = {name: problems_with(template, server.object_info) for name, server in servers.items()}
            capable = frozenset(name for name, found in wrong.items() if not found)
            runnable[resource_id(template)] = RunnableTemplate(template, capable or frozenset(known))
            if self._overrides.of(template.name).offered:
                definitions.append(self._definition(template, "" if capable else _list_problems(wrong)))
        self._templates.put(runnable)
        versions = ", ".join(dict.fromkeys(f"ComfyUI {server.kind.version}" for server in servers.values()))
        return Discovery(tuple(definitions), tuple(map(self._redact, problems[:PROBLEMS_MAX])), server=versions)

    def listen(self, changed: Callable[[], None]) -> None:
        """Do nothing: there are no notifications, files and servers are read periodically."""

    def diagnostics(self) -> Sequence[str]:
        sockets = tuple(_socket_of(backend) for backend in self._backends)
        return tuple(map(self._redact, (*self._server_states, *sockets)))

    async def start(self) -> None:
        """Do nothing: servers are connected to when they are asked."""

    async def close(self) -> None:
        self._is_closed = True
        await self._close()

    def _definition(self, template: Template, problem: str) -> Definition:
        """Return the definition; `problem`: why no server can run it; empty when one can."""
        problem = refusal(lambda: check_name(full_name(self.name, template.name))) or problem
        remote: JsonObject = {
            "name": template.name,
            "version": template.version,
            "description": template.description,
            "inputSchema": template.input_schema,
            "outputSchema": template.output_schema,
            "templateSha256": template.sha256,
        }
        return Definition(self._spec(template), remote, excerpt(problem, _PROBLEM_MAX_CHARS), is_operators=True)

    def _spec(self, template: Template) -> ToolSpec:
        terms, entry, override = self._terms, self._terms.entry, self._overrides.of(template.name)
        capabilities = entry.capabilities if override.capabilities is None else override.capabilities
        return ToolSpec(
            name=full_name(self.name, template.name),
            kind=ToolKind.COMFYUI,
            description=template.description,
            input_schema=template.input_schema,
            output_schema=template.output_schema,
            version=template.version,
            tags=tuple(dict.fromkeys((*entry.tags, *template.tags))),
            capabilities=frozenset(capabilities or (terms.upstream,)),
            annotations=Annotations(
                read_only=override.read_only is True,
                destructive=override.destructive is True,
                idempotent=override.idempotent is True,
                supports_progress=True,
            ),
            cost=CostHints(is_async=True),
            limits=ToolLimits(
                timeout_s=override.timeout_s or entry.timeout_s,
                max_concurrency=entry.max_concurrency,
                job_timeout_s=override.timeout_s or entry.timeout_s,
            ),
            source=self.name,
            endpoint=terms.endpoint,
            resource_id=resource_id(template),
            upstream=terms.upstream,
        )


class _Server(NamedTuple):
    """One server's answers in one reading."""

    kind: ServerKind
    object_info: JsonObject


async def _ask_server(backend: Backend, classes: Sequence[str]) -> _Server | str:
    """Return what the server reports about these classes, or why it does not answer."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def ask(name: str) -> Any:
        async with places:
            reply = await backend.client.get(f"/object_info/{quote(name, safe='')}", max_bytes=LISTS_MAX_BYTES)
            return reply.fields.get(name)

    try:
        kind = await backend.kind(anew=True)
        described = await asyncio.gather(*map(ask, classes))
    except NoReply as unreached:
        backend.note_failure()
        return unreached.reason
    return _Server(kind, {name: answer for name, answer in zip(classes, described, strict=True) if answer is not None})


def _list_problems(problems: Mapping[str, Sequence[str]]) -> str:
    """Return what each server lacks; once where all lack the same."""
    lacking = {name: "; ".join(found[:3]) for name, found in problems.items()}
    if len(set(lacking.values())) == 1:
        return next(iter(lacking.values()))
    return "; ".join(f"{name}: {found}" for name, found in lacking.items())


def _state(found: _Server | str) -> str:
    return found if isinstance(found, str) else f"ComfyUI {found.kind.version}, {found.kind.device}"


def _socket_of(backend: Backend) -> str:
    events = backend.events
    state = "connected" if events.client_id else f"none, for {events.error}" if events.error else "not needed yet"
    return f"backend {backend.name}: WebSocket {state}; {events.connections} connections so far"
