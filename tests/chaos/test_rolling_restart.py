"""Two hubs on one Redis behind the shipped Envoy are restarted in turn under load: no caller notices.

The load is mixed, by the Python client as it comes: calls, keyed calls with effects, streams, sessions, and watched
jobs. TOOLHUB_CHAOS_ROLLS says how often each hub is restarted, TOOLHUB_CHAOS_CALLS_PER_S how many of them begin in a
second; `make chaos` sets both.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

import pytest

from tests.chaos.chaos_tools import effects
from tests.chaos.replicas import Replica, running
from tests.e2e.envoy_proxy import Envoy, envoy
from toolhub_client import Answer, Hub, HubError, connect
from toolhub_client.outages import is_transient

ROLLS = int(os.environ.get("TOOLHUB_CHAOS_ROLLS", "1"))
CALLS_PER_S = float(os.environ.get("TOOLHUB_CHAOS_CALLS_PER_S", "20"))
NOTICE_S = 5
"""As in the shipped manifests: Envoy asks twice, two seconds apart."""
CLIENTS = 4
PURPOSE = "a rolling restart"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 60 * ROLLS)]


@dataclass
class Load:
    """What clients do, and what they met."""

    clients: list[Hub]
    done: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    keyed: int = 0
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def more(self, calls: int) -> None:
        """Until so many more of each kind were answered."""
        wanted = {kind: self.done[kind] + calls for kind in KINDS}
        async with asyncio.timeout(120):
            while any(self.done[kind] < wanted[kind] for kind in KINDS):
                assert not self.failures, self.failures[:5]
                self.news.clear()
                await self.news.wait()

    async def make(self, kind: str, call: Callable[[Load, Hub], Awaitable[None]]) -> None:
        """At its share of the rate, whatever the calls before still wait for."""
        pause_s = CALLS_A_ROUND / CALLS_PER_S
        async with asyncio.TaskGroup() as calls:
            for number in count():
                if self.is_over.is_set():
                    return
                calls.create_task(self._one(kind, call, self.clients[number % CLIENTS]))
                await asyncio.sleep(pause_s)

    async def _one(self, kind: str, call: Callable[[Load, Hub], Awaitable[None]], hub: Hub) -> None:
        try:
            await call(self, hub)
            self.done[kind] += 1
        except (HubError, AssertionError, ExceptionGroup) as failure:
            self.failures.append(f"{kind}: {type(failure).__name__} {failure}")
        self.news.set()


async def unary(load: Load, hub: Hub) -> None:
    assert (await hub.invoke("core/util.time.now")).ok


async def keyed(load: Load, hub: Hub) -> None:
    load.keyed += 1
    marker = f"k{load.keyed}"
    args = {"marker": marker, "beforeS": 0.05}
    answer = await hub.invoke("chaos/effect.once", args, idempotency_key=marker, purpose=PURPOSE)
    assert answer.ok, answer.error


async def stream(load: Load, hub: Hub) -> None:
    args = {"marker": "s", "steps": 4, "stepS": 0.02}
    events = [event async for event in hub.invoke_stream("chaos/work.steps", args, purpose=PURPOSE)]
    assert isinstance(events[-1], Answer)
    assert events[-1].ok, events[-1].error


async def session(load: Load, hub: Hub) -> None:
    """Three calls that read: where the session breaks, the rest is sent over another one."""
    left = 3
    while left:
        try:
            async with hub.session() as calls:
                while left:
                    assert (await calls.invoke("core/util.time.now")).ok
                    left -= 1
        except HubError as error:
            if not is_transient(error):
                raise


async def watched(load: Load, hub: Hub) -> None:
    """A job from its submission to its end, each of its statuses once."""
    args = {"marker": "w", "steps": 10, "stepS": 0.1}
    job = await hub.submit_job("chaos/work.steps", args, purpose=PURPOSE)
    seen = [status async for status in hub.watch_job(job.job_id, after_sequence=0)]
    gaps = [(one.sequence, next.sequence) for one, next in pairwise(seen) if next.sequence != one.sequence + 1]
    assert not gaps, f"{job.job_id}: {gaps}"
    assert seen[-1].HasField("result"), seen[-1]


KINDS = {"unary": unary, "keyed": keyed, "stream": stream, "session": session, "watch": watched}
CALLS_A_ROUND = 8
"""One of each kind; a session has three, and a watched job is submitted and watched."""


@asynccontextmanager
async def loaded(address: str) -> AsyncIterator[Load]:
    """The load runs until the end, and then until everybody has got an answer."""
    async with AsyncExitStack() as channels, asyncio.TaskGroup() as kinds:
        opening = [connect(address, options=(("grpc.use_local_subchannel_pool", 1),)) for _ in range(CLIENTS)]
        load = Load([await channels.enter_async_context(each) for each in opening])
        for kind, call in KINDS.items():
            kinds.create_task(load.make(kind, call))
        try:
            yield load
        finally:
            load.is_over.set()


async def restarted(replica: Replica, proxy: Envoy, load: Load) -> None:
    """In good order, as a rolling update does it: the next one waits until this one is called again."""
    await replica.end(signal.SIGTERM)
    await load.more(5)
    await replica.start()
    async with asyncio.timeout(60):
        while f"127.0.0.1:{replica.port}" not in await proxy.healthy():
            await load.more(1)


@pytest.mark.promise("deploy.rolling-restart")
async def test_hubs_behind_envoy_are_restarted_in_turn_and_no_caller_notices(
    tmp_path: Path, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / "ledger"
    shared = {
        "TOOLHUB_STORES_REDIS_URL": redis_url,
        "TOOLHUB_SERVER_DRAIN_NOTICE_S": str(NOTICE_S),
        "TOOLHUB_SERVER_DRAIN_S": "10",
    }
    async with running(tmp_path / "hubs", ledger, 2, **shared) as replicas:
        addresses = [f"127.0.0.1:{replica.port}" for replica in replicas]
        async with envoy(tmp_path, addresses) as proxy, loaded(proxy.address) as load:
            await load.more(5)
            for _ in range(ROLLS):
                for replica in replicas:
                    await restarted(replica, proxy, load)
            await load.more(5)
        with capsys.disabled():
            print(f"\n  {ROLLS} rolls at {CALLS_PER_S:g} calls/s: {dict(load.done)}, {len(load.failures)} failures")
    assert load.failures == []
    counted = Counter(effects(ledger))
    assert (len(counted), set(counted.values())) == (load.done["keyed"], {1}), "each effect once"
    assert not [words for replica in replicas for words in replica.words() if "crashed" in words]
