"""What the tests of links share: terms for the servers in tests/fakes/mcp_servers, and counts of what may leak."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from mcp_types import CallToolResult, TextContent

from tests.free_port import free_port
from toolhub_service.adapters.mcp.kind import HttpTerms, McpTerms, StdioTerms
from toolhub_service.adapters.mcp.link import McpLink, McpSession
from toolhub_service.adapters.mcp.transports.stdio import PipeProtocol

ROOT = Path(__file__).parents[4]
SERVERS = ROOT / "tests/fakes/mcp_servers"
PYTHON_PATH = f"{ROOT}:{ROOT / 'service'}"


class Chance:
    """The port `Randomness`, the same every time."""

    def __init__(self) -> None:
        self._random = random.Random(7)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def token_hex(self, size_bytes: int) -> str:
        return self._random.randbytes(size_bytes).hex()


def program(*argv: str, **more: Any) -> McpTerms:
    """Terms of a Python program of this repository."""
    where = StdioTerms(sys.executable, argv, env={"PYTHONPATH": PYTHON_PATH}, cwd=str(ROOT))
    return McpTerms("harness", where, **more)


def odd(name: str, **more: Any) -> McpTerms:
    return program("-S", str(SERVERS / "odd_programs.py"), name, **more)


def at(url: str, **more: Any) -> McpTerms:
    http = {name: more.pop(name) for name in ("headers", "oauth", "tls", "origins") if name in more}
    return McpTerms("harness", HttpTerms(url, **http), **more)


@asynccontextmanager
async def linked(terms: McpTerms) -> AsyncIterator[McpLink]:
    """A link that is started, and closed at the end with nothing left behind."""
    link = McpLink(terms, Chance())
    link.start()
    try:
        yield link
    finally:
        await link.close()


def soon(seconds: float = 20.0) -> float:
    """A deadline."""
    return asyncio.get_running_loop().time() + seconds


async def call(session: McpSession, tool: str, **arguments: Any) -> CallToolResult:
    result = await session.requests.send("tools/call", {"name": tool, "arguments": arguments})
    return CallToolResult.model_validate(result, by_name=False)


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def until(fits: Callable[[], bool], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not fits():  # noqa: ASYNC110  what the kernel knows has no event
            await asyncio.sleep(0.01)


async def within(seconds: float, work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(seconds):
        return await work


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may go while it is read
        return False


def group_members(group: int) -> list[int]:
    """Live processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - asked at every step of the loop


def pid_of(link: McpLink) -> int:
    """The process of a stdio link."""
    transport = pipes_of(link)._transport
    assert transport is not None
    return transport.get_pid()


def pipes_of(link: McpLink) -> PipeProtocol:
    """Those of a stdio link."""
    connection = link._connection
    assert connection is not None
    assert connection._program is not None
    return connection._program


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


class HttpProcess:
    """A module of tests/fakes/mcp_servers on a port, as a process that can be killed and started again."""

    def __init__(self, *argv: str) -> None:
        """`argv` with `{port}` in the place of the port."""
        self._argv = argv
        self.port = free_port()
        self.process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> None:
        argv = [word.format(port=self.port) for word in self._argv]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *argv,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": PYTHON_PATH},
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).decode()
        self.port = int(line.split()[-1].rpartition(":")[2].partition("/")[0])

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


def plain_http(*flags: str) -> HttpProcess:
    return HttpProcess("-m", "tests.fakes.mcp_servers.plain", "--http", "{port}", *flags)


def scripted_http(generation: str, *unlisted: str) -> HttpProcess:
    return HttpProcess("-m", "tests.fakes.mcp_servers.scripted_http", generation, "{port}", *unlisted)
