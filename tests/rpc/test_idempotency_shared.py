"""A hub that dies, or is cut off from the shared store: another hub takes over its keys and jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.hub import running_hub
from tests.overtaken import overtaken
from tests.rpc.principals import (
    IMPATIENT,
    POLICY,
    WAIT,
    WRITE,
    Client,
    CountedWaits,
    CountedWrites,
    hurry_links,
    is_gapless,
    merged,
    state,
    states,
)
from tests.rpc.severable_proxy import SeverableProxy, wire_to
from toolhub.v1 import error_pb2
from toolhub_service.runtime import idempotency

KEYED: dict[str, Any] = {"idempotency_key": "k-1", "request_id": "work"}


@dataclass
class TwoHubs:
    """Two hubs on one Redis; the first one's wire can be cut."""

    wire: SeverableProxy
    waits: tuple[CountedWaits, CountedWaits] = field(default_factory=lambda: (CountedWaits(), CountedWaits()))
    writes: tuple[CountedWrites, CountedWrites] = field(default_factory=lambda: (CountedWrites(), CountedWrites()))
    clients: list[Client] = field(default_factory=list)

    def tools(self, number: int) -> list[Any]:
        return [self.waits[number], self.writes[number]]

    def let_go(self, number: int) -> None:
        self.waits[number].let_go.set()
        self.writes[number].let_go.set()


@asynccontextmanager
async def hub_on(redis_url: str, folder: Path, tools: list[Any]) -> AsyncIterator[Client]:
    settings = merged(IMPATIENT, {"stores": {"redis_url": redis_url}})
    async with running_hub(folder, policy=POLICY, settings=settings, tools=tools) as running:
        yield Client(running)


@pytest.fixture
async def hubs(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TwoHubs]:
    monkeypatch.setattr(idempotency, "_GRACE_MS", 100)
    hurry_links(monkeypatch)
    async with wire_to(redis_url) as wire:
        hubs = TwoHubs(wire)
        async with (
            hub_on(wire.url, tmp_path / "first", hubs.tools(0)) as first,
            hub_on(redis_url, tmp_path / "second", hubs.tools(1)) as second,
        ):
            hubs.clients = [first, second]
            yield hubs
            wire.mend()


async def begun(client: Client, tool: str, started: asyncio.Event) -> asyncio.Task[Any]:
    """A call whose time is nearly up, and whose work has begun."""

    async def under_way(timeout_s: float) -> asyncio.Task[Any]:
        call = asyncio.create_task(client.call(tool, budget={"timeout_s": timeout_s}, **KEYED))
        starting = asyncio.create_task(started.wait())
        await asyncio.wait({call, starting}, return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        return call

    return await overtaken(under_way, lambda _: started.is_set(), first_s=0.5)


async def test_effect_of_a_hub_that_went_away_is_not_had_again(hubs: TwoHubs) -> None:
    first, second = hubs.clients
    call = await begun(first, WRITE, hubs.writes[0].started)
    hubs.wire.cut()
    again = await second.call(WRITE, **KEYED)
    assert again.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
    assert not again.error.retryable
    assert hubs.writes[1].runs == 0
    assert not (await call).ok


async def test_call_that_is_safe_to_repeat_runs_at_the_other_hub(hubs: TwoHubs) -> None:
    first, second = hubs.clients
    call = await begun(first, WAIT, hubs.waits[0].started)
    hubs.wire.cut()
    hubs.let_go(1)
    again = await second.call(WAIT, **KEYED)
    assert (again.ok, again.replayed) == (True, False)
    assert hubs.waits[1].runs == 1
    assert not (await call).ok


async def test_jobs_of_a_hub_that_is_cut_off_are_taken_over_and_its_own_runs_are_void(hubs: TwoHubs) -> None:
    first, second = hubs.clients
    safe, unsafe = await first.submit(WAIT), await first.submit(WRITE)
    await asyncio.gather(hubs.waits[0].started.wait(), hubs.writes[0].started.wait())
    watch = aiter(first.watch(safe.job_id, safe.status.sequence))
    followed = [(await anext(watch)).status]
    hubs.wire.cut()
    lost = (await second.ended(unsafe.job_id))[-1]
    assert (state(lost), lost.error.kind) == ("LOST", error_pb2.ERROR_KIND_OUTCOME_UNKNOWN)
    await hubs.waits[1].started.wait()
    assert hubs.writes[1].runs == 0
    hubs.wire.mend()
    await hubs.waits[0].stopped.wait()
    hubs.let_go(1)
    history = await second.ended(safe.job_id, safe.status.sequence)
    assert states(history) == ["RUNNING", "SUCCEEDED"]
    assert is_gapless(history)
    followed += [answer.status async for answer in watch]
    assert followed == history, "its own watchers have followed across the cut"
    hubs.let_go(0)
    assert (await first.job(unsafe.job_id)).status == lost


async def test_calls_that_need_the_store_fail_where_it_is_cut_off_and_the_rest_goes_on(hubs: TwoHubs) -> None:
    first, second = hubs.clients
    hubs.wire.cut()
    hubs.let_go(0)
    keyed, plain = await asyncio.gather(first.call(WRITE, **KEYED), first.call(WRITE, {"text": "b"}))
    assert (keyed.error.kind, keyed.error.retryable) == (error_pb2.ERROR_KIND_TOOL_UNAVAILABLE, True)
    assert plain.ok
    assert hubs.writes[0].runs == 1
    hubs.wire.mend()
    assert (await first.call(WRITE, **KEYED)).ok
    assert (await second.call(WRITE, **KEYED)).replayed
