"""One tenant floods the hub: how many of its calls begin before another's, through the wire."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import CALL_TIMEOUT_S, RunningHub, request, running_hub
from tests.rpc.principals import BY_KEY, WAIT, Principals
from tests.rpc.sample_tools import READS, TextIn, TextOut, Waits
from tests.rpc.statuses import failed
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.aio import turns as turns_module
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool

POLICY = """
extends: none
grants: [{principals: ["*"], capabilities: [read:fs]}]
"""
TENANTS = f"""{POLICY}
tenants:
  - {{name: acme, principals: ["acme-*"]}}
  - {{name: globex, principals: ["globex-*"]}}
"""
NOTE = "test/text.note"
CALLERS = 64


class RecordsTexts(Tool[TextIn, TextOut]):
    """Keeps the texts in the order of the calls."""

    name = NOTE
    description = "Keep a text."
    annotations = READS
    In, Out = TextIn, TextOut

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        self.texts.append(args.text)
        return TextOut(text=args.text)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(CALL_TIMEOUT_S):
        while not holds():  # noqa: ASYNC110 - the loop's own rounds are what is waited for
            await asyncio.sleep(0)


class TurnsHarness:
    """A hub on which two have called, and what is called in which order."""

    def __init__(self, hub: RunningHub, notes: RecordsTexts, waits: Waits) -> None:
        self.hub = hub
        self.notes = notes
        self.waits = waits
        self.turns = hub.hub.deps.turns
        self.people = Principals(hub, names=("acme-one", "acme-two", "globex-bot"))

    def call(self, name: str, text: str, tool: str = NOTE) -> asyncio.Task[Any]:
        return asyncio.create_task(self.people.at(self.hub, name).call(tool, {"text": text}))

    @asynccontextmanager
    async def busy(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
        """No further turn begins, as if calls never ceased to arrive. What it yields returns when so many wait."""
        monkeypatch.setattr(turns_module, "_BUSY_ROUNDS_MAX", sys.maxsize)

        async def arrive() -> None:
            while arriving is not None:
                self.turns.arrivals += 1
                await asyncio.sleep(0)

        async def wait(count: int) -> None:
            await _until(lambda: self.turns.waiting == count)

        arriving = asyncio.create_task(arrive())
        try:
            await self.call("acme-one", "first")  # has the turn from now on
            self.notes.texts.clear()
            yield wait
        finally:
            arriving.cancel()


@asynccontextmanager
async def turns_harness(folder: Path, policy: str = TENANTS, **settings: Any) -> AsyncIterator[TurnsHarness]:
    notes, waits = RecordsTexts(), Waits()
    async with running_hub(folder, policy=policy, settings={**BY_KEY, **settings}, tools=[notes, waits]) as hub:
        found = TurnsHarness(hub, notes, waits)
        for name in ("acme-one", "globex-bot"):
            await found.call(name, "here")
        yield found


@pytest.mark.promise("tenants.turns")
async def test_in_a_flood_one_call_begins_before_another_tenants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with turns_harness(tmp_path) as hub:
        async with hub.busy(monkeypatch) as wait:
            flood = [hub.call(f"acme-{('one', 'two')[number % 2]}", "flood") for number in range(CALLERS)]
            await wait(CALLERS)
            others = [hub.call("globex-bot", "other") for _ in range(3)]
            await wait(CALLERS + 3)
        answers = await asyncio.gather(*flood, *others)
        assert all(answer.ok for answer in answers)
        assert max(place for place, text in enumerate(hub.notes.texts) if text == "other") <= 5
        exposed = hub.hub.hub.observing.metrics.exposition().decode()
        assert f"toolhub_turn_wait_seconds_count {float(CALLERS + 3)}" in exposed

        # Calls of a message, too: of a session a few begin in a turn.
        hub.notes.texts.clear()
        async with hub.busy(monkeypatch) as wait:
            metadata = hub.people.at(hub.hub, "acme-one").metadata
            session = hub.hub.stub.InvokeSession(metadata=metadata, timeout=CALL_TIMEOUT_S)
            call = request(NOTE, {"text": "flood"}, message=pb.SessionCall)
            await session.write(
                pb.InvokeSessionRequest(
                    calls=[pb.SessionCall(intent=call.intent, call_id=f"c{number}") for number in range(CALLERS)]
                )
            )
            await wait(1)
            other = hub.call("globex-bot", "other")
            await wait(2)
        assert (await other).ok
        answered = 0
        while answered < CALLERS:
            answered += sum(event.result.ok for event in (await session.read()).events)
        session.cancel()
        assert hub.notes.texts.index("other") <= 8
        assert len(hub.notes.texts) == CALLERS + 1


async def test_jobs_of_one_tenant_begin_in_turn_with_calls_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with turns_harness(tmp_path, jobs={"max_running": 4}) as hub:
        agent = hub.people.at(hub.hub, "acme-one")
        running = [await agent.submit(WAIT) for _ in range(4)]
        await _until(lambda: hub.waits.running == 4)
        queued = [await agent.submit(NOTE, {"text": "flood"}) for _ in range(4)]
        async with hub.busy(monkeypatch) as wait:
            hub.waits.let_go.set()
            await wait(4)
            other = hub.call("globex-bot", "other")
            await wait(5)
        assert (await other).ok
        for job in [*running, *queued]:
            await agent.ended(job.job_id)
        assert hub.notes.texts.index("other") <= 1
        assert len(hub.notes.texts) == 5


async def test_a_waiting_call_can_give_up_and_the_last_of_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with turns_harness(tmp_path, POLICY, server={"max_in_flight": 8}) as hub:
        async with hub.busy(monkeypatch) as wait:
            waiting = [hub.call("acme-one", "flood") for _ in range(4)]
            await wait(4)
            refusal = await failed(hub.call("acme-one", "flood"))
            assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
            assert refusal.metadata == {"max_in_flight": "8", "yours": "4"}
            other = hub.call("globex-bot", "other")
            await wait(5)
            waiting.pop().cancel()
            await wait(4)
            assert hub.notes.texts == []
        assert all(answer.ok for answer in await asyncio.gather(*waiting, other))
        assert sorted(hub.notes.texts) == ["flood"] * 3 + ["other"]
