"""The workflows of one n8n server: those that the operator has configured, and those that its API lists.

The configured ones exist even when n8n is down. With an `api_key` they are compared with n8n's workflows, and all that
would make a call fail is reported; while the API is unavailable, known workflows stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from toolhub_service.adapters.definitions import limit_problems
from toolhub_service.adapters.n8n.api import ApiError, N8nApi, NotFound
from toolhub_service.adapters.n8n.definitions import DefinitionMaker
from toolhub_service.adapters.n8n.kind import N8nWorkflow
from toolhub_service.adapters.n8n.server import N8nServer, webhook_of_entry
from toolhub_service.adapters.n8n.workflow import (
    Discovered,
    Webhook,
    Workflow,
    description_of,
    id_of,
    read_discovered,
    webhooks_of,
    workflow_from_pin,
)
from toolhub_service.adapters.tool_names import Unnamed
from toolhub_service.aio.cooperative import TimeSlice
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.source import Definition, Discovery, Trust
from toolhub_service.domain.tool import ToolKind
from toolhub_service.guards.secrets import Redact
from toolhub_service.registry.names import skeleton


class Compared(NamedTuple):
    """A configured workflow compared with n8n's: where it is called, and what would make a call fail."""

    webhook: Webhook | None
    note: str = ""
    """What an operator should do; calls are tried all the same."""
    problem: str = ""
    """Why it cannot be called at all, with what to do."""


def compare_entry(entry: N8nWorkflow, workflows: Mapping[str, JsonObject]) -> Compared:
    """Compare an entry with `workflows`, n8n's by id; inactive ones are included only if named by id."""
    if not entry.workflow_id:
        at_path = [found for each in workflows.values() for found in webhooks_of(each) if found.path == entry.path]
        if at_path:
            return _fitting(entry, at_path)
        note = f"no active workflow has the webhook `{entry.path}`: activate it in n8n, or correct `webhook`."
        return Compared(webhook_of_entry(entry), note)
    workflow = workflows.get(entry.workflow_id)
    if workflow is None:
        missing = f"n8n has no workflow {entry.workflow_id}: correct `workflow_id`."
        return Compared(webhook_of_entry(entry), missing) if entry.path else Compared(None, "", missing)
    webhooks = webhooks_of(workflow)
    if not entry.path and len(webhooks) != 1:
        why = "has several webhooks: choose one with `webhook`" if webhooks else "has no webhook that can be called"
        return Compared(None, "", f"The workflow {why}.")
    wanted = [webhook for webhook in webhooks if not entry.path or webhook.path == entry.path]
    if not wanted:
        paths = ", ".join(sorted(webhook.path for webhook in webhooks)[:5]) or "none"
        return Compared(webhook_of_entry(entry), f"its workflow has no webhook `{entry.path}` but {paths}.")
    found = _fitting(entry, wanted)
    if workflow.get("active") is True:
        return found
    return found._replace(note="its workflow is not active: activate it in n8n.")


def _fitting(entry: N8nWorkflow, webhooks: list[Webhook]) -> Compared:
    """Return the webhook with the right path and method; without a path any method is right."""
    webhook = next((webhook for webhook in webhooks if not entry.path or webhook.method == entry.method), None)
    if webhook is None:
        note = f"its webhook accepts {webhooks[0].method}, not {entry.method}: correct `method`."
        return Compared(webhook_of_entry(entry), note)
    return Compared(webhook, _mode_note(entry, webhook))


def _mode_note(entry: N8nWorkflow, webhook: Webhook) -> str:
    if not entry.is_async and webhook.response_mode == "onReceived":
        return (
            "its webhook answers at once (onReceived), so results only say that it was started: let it answer with "
            "its last node or a Respond node, or set `mode: async`."
        )
    return ""


_NO_KEY: Final = "Workflows cannot be discovered without an `api_key`."


@dataclass(slots=True)
class _Reading:
    """The result of one reading so far."""

    named: dict[str, JsonObject]
    """Workflows of n8n that the operator has configured, by id."""
    offered: list[Discovered]
    problems: list[str]


class N8nToolSource:
    """Implements `ToolSource`."""

    kind = ToolKind.N8N

    def __init__(
        self,
        server: N8nServer,
        redact: Redact,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        """`close` closes all connections."""
        self._server = server
        self._entry = server.terms.entry
        self._close = close
        self._is_closed = False
        self._maker = DefinitionMaker(server.terms)
        self._redact = redact
        self.trust = Trust(server.terms.entry.trust)
        self._reading = asyncio.Lock()
        self._last: tuple[Discovered, ...] = ()
        self._error = ""
        # By workflow and version, because lists omit descriptions.
        self._descriptions: dict[tuple[str, str], str] = {}

    @property
    def name(self) -> str:
        return self._server.terms.name

    @property
    def endpoint(self) -> str:
        return self._server.terms.endpoint

    def restore_pinned(self, remote: JsonObject) -> Definition | None:
        """Return a pinned discovered workflow under the current terms; None when it is no longer offered."""
        found = workflow_from_pin(remote)
        if found is None or self._entry.discover is None or found.name in self._entry.workflows:
            return None
        try:
            definition = self._maker.define_found(found)
        except Unnamed:
            return None
        if definition is not None:
            self._server.workflows.setdefault(found.name, self._workflow_of(found))
        return definition

    async def discover(self) -> Discovery:
        async with self._reading:
            if self._is_closed:
                raise refuse(ErrorKind.TOOL_UNAVAILABLE, f"The source {self.name} has been closed.")
            reading = await self._read_api()
            definitions, problems = await self._definitions(reading)
            redacted = [self._redact(problem) for problem in (*reading.problems, *problems)]
            return Discovery(definitions, limit_problems(redacted), server="n8n")

    def listen(self, changed: Callable[[], None]) -> None:
        """Do nothing: n8n sends no notifications."""

    def diagnostics(self) -> Sequence[str]:
        api = "with an api_key" if self._server.api is not None else "without an api_key"
        asked = f"executions: {self._server.poller.asking} are being followed"
        return tuple(map(self._redact, (f"api: {self._error}" if self._error else f"api: {api}", asked)))

    async def start(self) -> None:
        """Do nothing: connections are made when they are needed."""

    async def close(self) -> None:
        self._is_closed = True
        await self._close()

    async def _read_api(self) -> _Reading:
        """Return what the API reports; without it, what it last reported."""
        api, misses_key = self._server.api, self._entry.discover is not None and self._server.api is None
        # The last offers stay: an unavailable API does not disable working webhooks.
        reading = _Reading({}, list(self._last), [_NO_KEY] if misses_key else [])
        if api is None:
            return reading
        try:
            fresh = await self._read_all(api)
        except ApiError as error:
            self._error = error.reason
            reading.problems.append(error.reason)
            return reading
        self._error = ""
        self._last = tuple(fresh.offered)
        return fresh

    async def _read_all(self, api: N8nApi) -> _Reading:
        """Read everything. Raises ApiError when that is not possible."""
        entry, time_slice = self._entry, TimeSlice()
        reading = _Reading({}, [], [])
        wanted = {workflow.workflow_id for workflow in entry.workflows.values() if workflow.workflow_id}
        paths = {workflow.path for workflow in entry.workflows.values() if workflow.path}
        # Without any of these the list would not be used.
        if wanted or paths or entry.discover is not None:
            async for workflow in api.workflows():
                self._take(reading, workflow, wanted, paths)
                await time_slice.pause_if_due()
        # The list has only active workflows: those named by id are requested one by one, to report what is wrong.
        for workflow_id in sorted(wanted - reading.named.keys()):
            try:
                reading.named[workflow_id] = await api.workflow(workflow_id)
            except NotFound:
                continue  # `compare_entry` reports it for its tool
        reading.offered = [await self._add_description(api, found) for found in reading.offered]
        self._descriptions = {_version(found): found.description for found in reading.offered}
        return reading

    async def _add_description(self, api: N8nApi, found: Discovered) -> Discovered:
        known = self._descriptions.get(_version(found))
        if known is None:
            try:
                known = description_of(await api.workflow(found.webhook.workflow_id))
            except NotFound:
                known = found.description
        return replace(found, description=known)

    def _take(self, reading: _Reading, workflow: JsonObject, wanted: set[str], paths: set[str]) -> None:
        own_id, terms = id_of(workflow.get("id")), self._entry.discover
        if own_id in wanted or any(webhook.path in paths for webhook in webhooks_of(workflow)):
            reading.named[own_id] = workflow
        elif terms is not None:
            found = read_discovered(workflow, terms)
            if isinstance(found, str):
                reading.problems.append(found)
            elif found is not None:
                reading.offered.append(found)

    async def _definitions(self, reading: _Reading) -> tuple[tuple[Definition, ...], list[str]]:
        """Return the definitions sorted by their own names; of two whose full names look alike only the first,
        configured ones before others."""
        problems: list[str] = []
        unique: dict[str, Definition] = {}
        workflows: dict[str, Workflow] = {}
        knows = self._server.api is not None and not self._error
        for own_name, entry in sorted(self._entry.workflows.items()):
            before = self._server.workflows.get(own_name)
            result = compare_entry(entry, reading.named) if knows else Compared(before.webhook if before else None)
            if result.note:
                problems.append(f"`{own_name}`: {result.note}")
            workflows[own_name] = self._server.workflow_of_entry(own_name, result.webhook)
            self._keep(unique, problems, partial(self._maker.define_entry, own_name, entry, result.problem))
        for found in sorted(reading.offered, key=lambda found: (found.name, found.webhook.workflow_id)):
            if self._keep(unique, problems, partial(self._maker.define_found, found)):
                workflows[found.name] = self._workflow_of(found)
        self._server.workflows = workflows
        return tuple(unique.values()), problems

    def _keep(self, unique: dict[str, Definition], problems: list[str], make: Callable[[], Definition | None]) -> bool:
        try:
            definition = make()
        except Unnamed as unnamed:
            problems.append(unnamed.problem)
            return False
        if definition is None:
            return False
        first = unique.setdefault(skeleton(definition.spec.name), definition)
        if first is not definition:
            problems.append(f"A workflow was left out: its name is too similar to that of `{first.spec.name}`.")
        return first is definition

    def _workflow_of(self, found: Discovered) -> Workflow:
        return Workflow(found.entry(), self._server.terms.headers, found.webhook)


def _version(found: Discovered) -> tuple[str, str]:
    return found.webhook.workflow_id, found.webhook.version
