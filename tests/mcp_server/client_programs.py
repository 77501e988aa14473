"""Clients of MCP as programs of their own (clients/), the hub that they use, and what the test does for them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import yaml
from click.testing import CliRunner

from tests.mcp_server.mcp_hub import ASKING, WITH_KEYS, McpHub, decide, keys_of, mcp_hub
from tests.mcp_server.test_own_tools import AddedTool, TextTool
from tests.servers import node_script, python_packages
from toolhub_service.cli.root import toolhub
from toolhub_service.domain.result import Progress
from toolhub_service.domain.tool import Annotations, ToolLimits
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput, spec_of

WITHIN_S: Final = 110.0
_PROGRAMS: Final = Path(__file__).parent / "clients"
_PACKAGES: Final = {
    "python_v1.py": "client-v1",
    "langchain_client.py": "client-v1",
    "fastmcp_client.py": "client-fastmcp",
}
"""Which have another SDK than the project."""


class HeldTool(Tool["HeldTool.In", "HeldTool.Out"]):
    """Reports its progress, then works until it is released, or cancelled."""

    name = "held/work.on"
    description = "Work until released."
    annotations = Annotations(read_only=True)
    limits = ToolLimits(timeout_s=120.0)

    class In(ToolInput, frozen=True):
        key: str

    class Out(ToolOutput, frozen=True):
        done: bool

    def __init__(self) -> None:
        self.begun = defaultdict[str, asyncio.Event](asyncio.Event)
        self.released = defaultdict[str, asyncio.Event](asyncio.Event)
        self.ended = defaultdict[str, asyncio.Future[str]](lambda: asyncio.get_running_loop().create_future())

    async def run(self, args: In, context: ToolContext) -> Out:
        context.sink.progress(Progress(step=3, total=7, unit="rows", message="three"))
        self.begun[args.key].set()
        try:
            await self.released[args.key].wait()
        except asyncio.CancelledError:
            self.ended[args.key].set_result("cancelled")
            raise
        self.ended[args.key].set_result("released")
        return self.Out(done=True)


@dataclass
class ClientsHub:
    """A hub, and what runs in this process for the clients that use it."""

    hub: McpHub
    key: str
    """Of alice, an agent."""
    home: Path
    control: str
    config_file: Path

    def entry(self, *words: str) -> dict[str, Any]:
        """What `toolhub mcp config` gives a client to hold, with the key that its user writes there."""
        asked = ["mcp", "config", "claude", "--config", str(self.config_file), *words]
        shown = CliRunner().invoke(toolhub, asked)
        assert shown.exit_code == 0, shown.output
        (entry,) = json.loads(shown.stdout)["mcpServers"].values()
        given: dict[str, Any] = json.loads(
            json.dumps(entry).replace('"KEY"', json.dumps(self.key)).replace("Bearer KEY", f"Bearer {self.key}")
        )
        return given

    async def see(self, program: str, connections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What the program has seen, by the names of its connections."""
        plan = json.dumps({"control": self.control, "connections": connections})
        return await run(program, plan)


async def run(program: str, plan: str) -> dict[str, Any]:
    """Run one of clients/ to its end; the JSON that it prints. It begins without any variable of the hub's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLHUB_", "MCP_"))}
    if program.endswith(".mjs"):
        words = node_script(_PROGRAMS / program)
    else:
        words = [sys.executable, str(_PROGRAMS / program)]
        if program in _PACKAGES:
            environment["PYTHONPATH"] = str(python_packages(_PACKAGES[program]))
    process = await asyncio.create_subprocess_exec(
        *words, plan, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    seen: dict[str, Any] = json.loads(output)
    return seen


def http(entry: Mapping[str, Any], name: str, **more: Any) -> dict[str, Any]:
    """A connection over HTTP, from an entry of a client's file."""
    return {"name": name, "url": entry["url"], "headers": entry.get("headers", {}), "entry": entry, **more}


def stdio(entry: Mapping[str, Any], name: str, home: Path, **more: Any) -> dict[str, Any]:
    """A connection to a program that the client starts, from an entry of a client's file."""
    env = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": "",
        "TOOLHUB_LOGS_LEVEL": "error",
        **entry.get("env", {}),
    }
    started = {"command": entry["command"], "args": entry["args"], "env": env}
    return {"name": name, **started, "entry": started, **more}


@asynccontextmanager
async def clients_hub(home: Path) -> AsyncIterator[ClientsHub]:
    working = HeldTool()
    async with mcp_hub(home, policy=ASKING, settings=WITH_KEYS, tools=[working, TextTool()]) as hub:
        key = keys_of(hub)["alice"]
        listen = hub.url.removeprefix("http://").removesuffix("/mcp")
        config_file = home / "tool-hub.yaml"
        config_file.write_text(yaml.safe_dump({"server": {"mcp": {"listen": listen}}, "auth": {"modes": ["api-key"]}}))
        async with _control(_Requests(hub, working)) as control:
            yield ClientsHub(hub, key, home, control, config_file)


class _Requests:
    """What a client may ask for, by name."""

    def __init__(self, hub: McpHub, working: HeldTool) -> None:
        self._hub = hub
        self._working = working
        self._numbers = count(1)

    async def begun(self, key: str) -> bool:
        return await self._working.begun[key].wait()

    async def release(self, key: str) -> None:
        self._working.released[key].set()

    async def ended(self, key: str) -> str:
        return await self._working.ended[key]

    async def approve(self, id: str) -> None:
        await decide(self._hub, id)

    async def change(self) -> str:
        """Offers a new tool; its name in lists."""
        added: Tool[Any, Any, Any] = AddedTool()
        type(added).name = f"held/thing.new{next(self._numbers)}"
        self._hub.grpc.hub.toolbox.catalog.register(spec_of(added, source="custom"))
        return added.name.replace("/", "__").replace(".", "_")


@asynccontextmanager
async def _control(deeds: _Requests) -> AsyncIterator[str]:
    """An address where POST /NAME?… does what `deeds` says, and answers with its result as JSON."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = urlsplit((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
        deed: Callable[..., Awaitable[Any]] = getattr(deeds, asked.path.strip("/"))
        try:
            done = json.dumps(await deed(**dict(parse_qsl(asked.query)))).encode()
            status = b"200 OK"
        except Exception as failed:  # noqa: BLE001 - the client that asked fails by it, and its report has it
            status, done = b"500 Failed", json.dumps(repr(failed)).encode()
        writer.write(b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (status, len(done), done))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
