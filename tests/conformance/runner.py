"""One hub that plays scenarios: it takes in a server as a source, makes the calls, and takes the source away again.

What the suite starts as its client only names the scenario over a Unix socket (`drive.py`), so that one hub serves all
of them, many at a time, as it would serve so many servers.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.plays import OTHER, PARTS
from tests.conformance.scenario_client import Bearer, ScenarioClient
from tests.hub import RunningHub, running_hub
from toolhub.v1 import source_pb2
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys

POLICY = """
extends: none
grants: [{principals: [robot, ann], capabilities: ["mcp:*"]}]
roles:
  - {principals: [robot], roles: [agent]}
  - {principals: [ann], roles: [agent, operator, approver]}
"""
SETTINGS = {"auth": {"modes": ["api-key"]}}
AT_ONCE = 6
"""Scenarios. The first answer of a server is waited for ten seconds, and many at once make each of them slower."""
READ_WITHIN_S = 60.0
GENERATIONS = ("2025-11-25", "2026-07-28")
OWN_CLIENT = {"client_id": "tool-hub", "client_secret": "the secret of tool-hub"}
"""What the operator was given by an authorization server that takes anybody."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the suite told its client."""

    scenario: str
    version: str
    url: str
    context: Mapping[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return f"{self.scenario.replace('/', '-')}-{self.version}".lower()


@dataclass(slots=True)
class Played:
    """What came of it on the hub's side."""

    state: str
    """Of the source, as the operator sees it."""
    message: str
    protocol: str
    notes: list[str]
    trouble: str = ""
    """Why a call did not go as it should; empty when all did."""

    @property
    def text(self) -> str:
        return "\n".join([f"source {self.state} {self.protocol} {self.message}", *self.notes, self.trouble]).rstrip()


class ScenarioRunner:
    def __init__(
        self, running: RunningHub, agent: Bearer, person: Bearer, origins: Callable[[], list[str]], protocol: str
    ) -> None:
        """`origins`: of the authorization servers that a source may dial; `protocol`: `auto`, or `fixed` to
        the scenario's generation."""
        self._running = running
        self._agent = agent
        self._person = person
        self._origins = origins
        self._protocol = protocol
        self._entries: dict[str, Any] = {}
        self._writing = asyncio.Lock()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def play(self, asked: Asked) -> Played:
        part = PARTS.get(asked.scenario, OTHER)
        async with self._turns, self._source(asked.source, {**self._terms(asked), **part.terms}):
            sources = self._running.hub.sourcing.sources
            await sources.wait_until_tried([asked.source], timeout_s=READ_WITHIN_S)
            scenario_client = ScenarioClient(self._running, asked.source, asked.context, self._agent, self._person)
            status = await scenario_client.status()
            if status.state == source_pb2.SOURCE_STATE_DOWN and not asked.scenario.startswith("auth/"):
                # The suite starts dozens of servers and clients at once. One that takes more than ten seconds for its
                # first answer is taken for one of the older generation, and asked again by the next connection.
                status = await scenario_client.read_again()
            state = source_pb2.SourceState.Name(status.state).removeprefix("SOURCE_STATE_")
            played = Played(state, status.message, status.protocol, scenario_client.notes)
            is_read = status.state in (source_pb2.SOURCE_STATE_READY, source_pb2.SOURCE_STATE_PARTIAL)
            if is_read == part.is_refused:
                played.trouble = "the source was read" if is_read else "the source was not read"
            if not is_read:
                return played
            try:
                await part.play(scenario_client)
            except Exception:  # noqa: BLE001  whatever went wrong is what the scenario's test must show
                played.trouble = traceback.format_exc(limit=-2)
            return played

    def _terms(self, asked: Asked) -> dict[str, Any]:
        fixed = GENERATIONS[asked.version >= GENERATIONS[1]]
        terms: dict[str, Any] = {"url": asked.url, "protocol": fixed if self._protocol == "fixed" else "auto"}
        if asked.scenario.startswith("auth/"):
            terms |= {"oauth": _client(asked.context), "origins": self._origins()}
        return terms

    @asynccontextmanager
    async def _source(self, name: str, terms: Mapping[str, Any]) -> AsyncIterator[None]:
        """Stands in sources.yaml meanwhile."""
        await self._write({**self._entries, name: terms})
        try:
            yield
        finally:
            await self._write({key: entry for key, entry in self._entries.items() if key != name})

    async def _write(self, entries: dict[str, Any]) -> None:
        self._entries = entries
        async with self._writing:
            Paths(self._running.hub.settings).sources.write_text(json.dumps({"sources": self._entries}))
            await self._running.hub.sourcing.reload(asked=True)


def _client(context: Mapping[str, Any]) -> dict[str, Any]:
    """What the scenario gives its client to show itself by."""
    if "private_key_pem" not in context:
        return {key: context.get(key, mine) for key, mine in OWN_CLIENT.items()}
    key = {"private_key": context["private_key_pem"], "signing_algorithm": context["signing_algorithm"]}
    return {"client_id": context["client_id"], **key}


@asynccontextmanager
async def a_runner(
    folder: Path, *, protocol: str = "fixed", origins: Callable[[], list[str]] = list
) -> AsyncIterator[ScenarioRunner]:
    async with running_hub(folder, policy=POLICY, settings=SETTINGS) as running:
        file = Paths(running.hub.settings).key_file()
        agent, person = ((("authorization", f"Bearer {file.create(name)}"),) for name in ("robot", "ann"))
        reload_keys(running.hub, file)
        yield ScenarioRunner(running, agent, person, origins, protocol)
