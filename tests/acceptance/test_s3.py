"""The audit log in an S3 server of others (`rclone serve s3`), which is killed, and refuses now and then.

`make acceptance-s3` fetches it. It keeps objects as files below a folder for each bucket and verifies every signature
(SigV4), which the small S3 of the other tests does not.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx
import pytest
import yaml

from tests.e2e.command_line import CommandLine
from tests.e2e.test_audit_export import call, stored, written
from tests.free_port import free_port
from tests.processes import Served, served
from tests.services.programs import RCLONE, need
from tests.services.server_process import ServerProcess

ROUNDS: Final = 2
_ENOUGH_OBJECTS: Final = 3


class S3Server:
    """On one port and one folder for life; a killed one has everything again."""

    def __init__(self, folder: Path) -> None:
        self.bucket = folder / "buckets" / "toolhub"
        self.bucket.mkdir(parents=True)
        self.port = free_port()
        command = [str(need(RCLONE) / "rclone"), "serve", "s3", "-v", "--addr", f"127.0.0.1:{self.port}"]
        options = ["--auth-key", "operator,operator-secret", "--config", "", "--dir-cache-time", "0s"]
        self.process = ServerProcess([*command, *options, str(folder / "buckets")], folder, ready="starting s3 server")

    def environment(self, port: int = 0) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": "operator",
            "AWS_SECRET_ACCESS_KEY": "operator-secret",
            "AWS_REGION": "us-east-1",
        }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    running = S3Server(tmp_path)
    running.process.start()
    yield running
    running.process.stop(signal.SIGKILL)


class FaultyProxy:
    """Stands before the server and passes bytes on; every third connection is answered with 503, and of every fifth
    the answer is lost."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.refused = self.lost = self.connections = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        """Readers of a connection come to its end."""
        while self._serving:
            for writer in self._open:
                writer.transport.abort()
            # One that is connecting right now has nothing open yet.
            await asyncio.wait(self._serving, timeout=0.1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        opened = [writer]
        self._open.add(writer)
        try:
            if number % 3 == 0:
                self.refused += 1
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
                return
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            opened.append(back)
            self._open.add(back)
            sending = asyncio.create_task(_passed_on(reader, back))
            if number % 5 == 0 and await there.read(1):
                self.lost += 1
            else:
                await _passed_on(there, writer)
            # What is still read from comes to its end, too.
            back.close()
            writer.close()
            await sending
        except (OSError, asyncio.IncompleteReadError):
            pass  # one of both was killed
        finally:
            for each in opened:
                each.close()
                self._open.discard(each)


async def _passed_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # one of both was killed, or is closed
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()


@pytest.fixture
async def proxy(server: S3Server) -> AsyncIterator[tuple[FaultyProxy, int]]:
    keeper = FaultyProxy(server.port)
    async with await asyncio.start_server(keeper.accept, "127.0.0.1", 0) as listening:
        yield keeper, listening.sockets[0].getsockname()[1]
        listening.close()
        await keeper.close()


@pytest.mark.promise("audit.export-at-least-once")
async def test_the_log_reaches_a_real_bucket_over_kills_of_both_and_503s(
    server: S3Server, proxy: tuple[FaultyProxy, int], tmp_path: Path
) -> None:
    keeper, port = proxy
    export = {"bucket_url": "s3://toolhub/audit", "bucket_interval_s": 0.05}
    config = tmp_path / "settings.yaml"
    config.write_text(yaml.safe_dump({"audit": {"export": export}}))
    data, env = tmp_path / "data", server.environment(port)
    for number in range(ROUNDS):
        async with served(data, "--config", str(config), environment=env) as hub:
            calling = asyncio.create_task(call(hub))
            before = len(objects(server))
            if number % 2:
                server.process.stop(signal.SIGKILL)
                await hub.logged("audit_upkeep_failed")
                server.process.start()
            while len(objects(server)) < before + _ENOUGH_OBJECTS:
                await asked(hub)
            hub.signal(signal.SIGKILL)
            await hub.process.wait()
            await calling
    async with served(data, "--config", str(config), environment=env) as hub:
        expected = stored(data)
        while not expected <= {place for file in objects(server) for place in written(file)}:
            await asked(hub)
    assert keeper.refused > 0
    files = [str(file) for file in objects(server)]
    told = CommandLine(tmp_path)("audit", "verify", "-o", "json", "--part", "--data-dir", str(data), "--file", *files)
    assert (told.code, told.json["ok"]) == (0, True), told


async def asked(hub: Served) -> None:
    """Some milliseconds pass, and the hub lives."""
    async with httpx.AsyncClient() as http:
        assert (await http.get(hub.metrics_url)).status_code == 200


def objects(server: S3Server) -> list[Path]:
    return sorted(file for file in (server.bucket / "audit").rglob("*.jsonl") if file.is_file())
