"""SVIDs, CAs and bundles are rotated on disk while calls and a session run: no call fails.

TOOLHUB_CHAOS_ROTATIONS says how often: where it is given once a second, else as soon as everybody has called with what
is new.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.fakes.tls import Authority, Signed
from tests.hub import CALL_TIMEOUT_S, channel_to, request
from tests.rpc.test_spiffe import WORKLOAD, SpiffeHarness, spiffe_harness, svid
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.app.serving import follow

PACED = os.environ.get("TOOLHUB_CHAOS_ROTATIONS")
ROTATIONS = int(PACED or "3")
CALLERS = 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 10 * ROTATIONS)]


class Files:
    """Of a workload that rotates: its SVID, which clients read when they connect, and what the hub reads."""

    def __init__(self, given: SpiffeHarness) -> None:
        self._given = given
        self.authority = given.own
        self.shown = self._new()
        self.roots = given.server.pem
        self.generation = 0

    def _new(self) -> Signed:
        return svid(self.authority, WORKLOAD)

    def put(self, name: str, content: bytes) -> None:
        draft = self._given.folder / f"{name}.new"
        draft.write_bytes(content)
        draft.replace(self._given.folder / name)

    def add_authority(self) -> None:
        """As SPIRE does: a CA is in everybody's bundle before anything is signed by it."""
        self._old, self.authority = self.authority, Authority()
        self.put("own.pem", self._given.own.pem + self._old.pem + self.authority.pem)

    def renew(self) -> None:
        """The hub's pair, one file after the other as most do, and the workload's SVID."""
        server = self._given.server.sign("localhost")
        self.put("hub.pem", server.certificate)
        self.put("hub.key", server.key)
        self.shown, self.generation = self._new(), self.generation + 1

    def retire(self) -> None:
        """What was replaced is trusted no more."""
        self.put("own.pem", self._given.own.pem + self.authority.pem)


class Load:
    """Callers that connect anew with each new SVID, and one that keeps its connection, its stream and its SVID."""

    def __init__(self, given: SpiffeHarness, files: Files) -> None:
        self._given, self._files = given, files
        self.answered = 0
        self.failures: list[str] = []
        self.reached: list[int] = [-1] * CALLERS
        self._news, self._ends = asyncio.Event(), asyncio.Event()
        self._tasks = [asyncio.create_task(self._calls(number)) for number in range(CALLERS)]
        self._tasks.append(asyncio.create_task(self._keeps(svid(given.own, WORKLOAD))))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Asked again after each answer."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def close(self) -> None:
        self._ends.set()
        await asyncio.gather(*self._tasks)

    async def _calls(self, number: int) -> None:
        while not self._ends.is_set():
            generation, shown = self._files.generation, self._files.shown
            async with self._connected(shown) as channel:
                stub: Any = ToolServiceStub(channel)
                while generation == self._files.generation and not self._ends.is_set():
                    await self._call(stub)
                    self.reached[number] = generation
                    self._news.set()

    async def _keeps(self, shown: Signed) -> None:
        async with self._connected(shown) as channel:
            stub: Any = ToolServiceStub(channel)
            session, called = stub.InvokeSession(timeout=600.0), 0
            while not self._ends.is_set():
                await self._call(stub)
                called += 1
                call = request("core/util.time.now", message=pb.SessionCall)
                call.call_id = f"c{called}"
                try:
                    await session.write(pb.InvokeSessionRequest(calls=[call]))
                    while not ok_of(await session.read(), call.call_id):
                        pass
                except grpc.aio.AioRpcError as failure:
                    self.failures.append(f"session: {failure.details()}")
                    return
            session.cancel()

    async def _call(self, stub: Any) -> None:
        try:
            answer = await stub.Invoke(request("core/util.time.now"), timeout=CALL_TIMEOUT_S)
            self.answered += answer.result.ok
        except grpc.aio.AioRpcError as failure:
            self.failures.append(f"{failure.code().name}: {failure.details()}")

    def _connected(self, shown: Signed) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(self._files.roots, shown.key, shown.certificate)
        return channel_to(f"localhost:{self._given.running.hub.server.port}", credentials)


@pytest.mark.promise("identity.spiffe")
async def test_no_call_fails_while_svids_and_cas_rotate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reload = asyncio.Event()
    async with spiffe_harness(tmp_path) as given:
        files, following = Files(given), asyncio.create_task(follow(given.running.hub, reload))
        load, certificates = Load(given, files), given.running.hub.deps.certificates

        async def taken(write: Callable[[], None]) -> None:
            before = certificates.trusted
            write()
            reload.set()
            await load.until(lambda: certificates.trusted is not before)

        for _ in range(ROTATIONS):
            await taken(files.add_authority)
            await taken(files.renew)
            await load.until(lambda: min(load.reached) == files.generation)
            await taken(files.retire)
            if PACED:
                await asyncio.sleep(1)
        await load.close()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        async with channel_to(f"localhost:{given.running.hub.server.port}", _of(files)) as channel:
            stub: Any = ToolServiceStub(channel)
            answer = await stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=CALL_TIMEOUT_S)
        assert answer.principal == WORKLOAD
    with capsys.disabled():
        print(f"\n  {ROTATIONS} rotations: {load.answered} calls, {len(load.failures)} failed")
    assert load.failures == []


def ok_of(answer: Any, call_id: str) -> bool:
    """Whether it has the call's result, which has succeeded."""
    assert answer is not grpc.aio.EOF
    results = [each.result for each in answer.events if each.call_id == call_id and each.HasField("result")]
    assert all(result.ok for result in results)
    return bool(results)


def _of(files: Files) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(files.roots, files.shown.key, files.shown.certificate)
