"""`toolhub serve` as a process of its own, for what only a process shows: signals, workers, files, exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.command_server import ForkedProcess

WITHIN_S = 60.0
_SERVING = re.compile(r"serving on (\S+)")
_MCP = re.compile(r"MCP: (http\S+)")
_METRICS = re.compile(r"metrics: (\S+)")


@dataclass(slots=True)
class Served:
    """A running hub and what it has said so far."""

    process: asyncio.subprocess.Process | ForkedProcess
    address: str = ""
    metrics_url: str = ""
    mcp_url: str = ""
    errors: list[str] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def logged(self, event: str, count: int = 1) -> dict[str, Any]:
        """The `count`-th JSON log line with this `event`, waited for."""
        lines = await self.lines_that(lambda line: line.get("event") == event, count)
        return lines[count - 1]

    async def lines_that(self, fits: Callable[[dict[str, Any]], bool], count: int = 1) -> list[dict[str, Any]]:
        async with asyncio.timeout(WITHIN_S):
            while len(found := [line for line in map(_parsed, self.errors) if fits(line)]) < count:
                self._news.clear()
                await self._news.wait()
        return found

    async def read_errors(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.errors.append(line.decode())
            self._news.set()

    async def read_greeting(self) -> None:
        """Until the address has been said; the metrics line comes right after it where there is one."""
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            line = raw.decode()
            if found := _SERVING.search(line):
                self.address = found[1]
            if found := _METRICS.search(line):
                self.metrics_url = found[1]
            if found := _MCP.search(line):
                self.mcp_url = found[1]
            if line.startswith("Next"):
                return

    def children(self) -> list[int]:
        """Process ids of the workers."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    async def stop(self) -> int:
        """SIGTERM; the exit status."""
        if self.process.returncode is None:
            self.signal(signal.SIGTERM)
        async with asyncio.timeout(WITHIN_S):
            return await self.process.wait()


def _parsed(line: str) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError:
        return {"event": line.strip()}
    return parsed if isinstance(parsed, dict) else {}


@asynccontextmanager
async def served(
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    listen: str = "127.0.0.1:0",
    as_program: bool = False,
) -> AsyncIterator[Served]:
    """A hub that keeps everything below `folder`; stopped at the end if it still runs.

    It is forked from a process that has imported it (tests/command_server.py), unless `as_program`.
    """
    process = await _start(folder, listen, arguments, environment, as_program=as_program)
    running = Served(process)
    reading = asyncio.create_task(running.read_errors())
    try:
        async with asyncio.timeout(WITHIN_S):
            await running.read_greeting()
        assert running.address, "".join(running.errors)
        yield running
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(WITHIN_S):
                await process.communicate() if reading.done() else await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        await reading
        if isinstance(process, ForkedProcess):
            process.close()


async def refused(folder: Path, *arguments: str, listen: str = "127.0.0.1:0", **environment: str) -> tuple[int, str]:
    """Exit status and last words of a hub that must not start."""
    process = await _start(folder, listen, arguments, environment, as_program=True)
    async with asyncio.timeout(WITHIN_S):
        _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


async def _start(
    folder: Path, listen: str, arguments: tuple[str, ...], environment: Mapping[str, str] | None, *, as_program: bool
) -> asyncio.subprocess.Process | ForkedProcess:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOOLHUB_")}
    quiet = {"TOOLHUB_METRICS_LISTEN": "127.0.0.1:0", "TOOLHUB_LOGS_FORMAT": "json", "TOOLHUB_SERVER_DRAIN_S": "5"}
    quiet["TOOLHUB_SERVER_MCP_ENABLED"] = "false"  # hubs of several tests would want the same port
    words = ("serve", "--listen", listen, "--data-dir", str(folder), *arguments)
    env = {**clean, **quiet, **(environment or {})}
    if not as_program:
        return await ForkedProcess.start(words, env)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolhub_service", *words),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits to be reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it may go while it is read
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


async def ended(pid: int) -> None:
    """Wait until a process, which need not be a child of ours, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(descriptor, over.set)
    try:
        async with asyncio.timeout(WITHIN_S):
            await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
