"""A hostile MCP server: its own JSON-RPC, so that it can send what no SDK would.

Over stdio (`stdio_command(*words)` gives the words that start it) or over HTTP in the test's own process
(`async with hostile_http("storm") as (server, url)`); both generations, the handshake of 2025-11-25 and server/discover
of 2026-07-28. What it does is said by words, at its start, by `server.become(...)`, by a file (`--control PATH`, read
anew at each list; words divided by spaces) or by its tool `become` with `{"words": [...]}`; `become` replaces all
words and notifies listeners that the list has changed.

Words about the list (`echo` and `add` are always good tools, and `calls` adds those that misbehave)
    changed, changed-schema, renamed, removed, added    `echo` is another, has another name, is gone; one more tool
    shadow          tools called core/fs.readText and so on
    huge-description, exponential, heavy-schemas, cyclic, deep, patterns, remote-ref, nan, surrogate    that hurt
    hidden          tag, bidi, ANSI and zero-width characters, HTML comments, orders to the model
    wrong-types, odd-names, duplicates, liar (annotations that call destruction harmless)
    many            5,000 tools on 50 pages; endless: pages for ever; cursor-loop: the same cursor for ever
    leaves          each tool on a page of its own
    list-never, list-error, list-garbage, list-half    instead of a list; page-error: from the second page on
Words about the rest
    storm           1,000 list_changed notifications a second to every listener
    deaf            goes on with calls that were cancelled; undead: survives the end of its input and SIGTERM
    hello-never, hello-garbage, hello-exit, hello-version, hello-flood    instead of a handshake
    http-redirect, http-401, http-500, http-html, http-half, http-no-head    instead of any HTTP answer
    json            answers calls by JSON documents rather than by event streams
Tools of `calls`
    huge_result, huge_error {megabytes: 100}, crowded_result {megabytes: 7}, deep_result, endless_progress, never,
    slow {seconds}, die, stderr_flood {lines} (stdio), tool_error {times}, requests_back, bad_structure {missing},
    asks_forever (input_required after input_required), garbage {kind: one of `hostile_calls.KINDS`}
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fakes.mcp_servers.hostile_calls import CALLS, MISBEHAVING, error, result, text
from tests.fakes.mcp_servers.hostile_tools import LIST_WORDS, page_of, tool, tools_of
from tests.fakes.mcp_servers.hostile_wire import Message, Wire, serve_stdio, serving_http

LEGACY, MODERN = "2025-11-25", "2026-07-28"
WORDS = LIST_WORDS | {"calls", "list-never", "list-error", "list-garbage", "list-half", "page-error", "storm"}
WORDS |= {"deaf", "undead", "json", "hello-never", "hello-garbage", "hello-exit", "hello-version", "hello-flood"}
WORDS |= {"http-redirect", "http-401", "http-500", "http-html", "http-half", "http-no-head"}
_ROOT = Path(__file__).parents[3]
_IDENTITY = {"name": "hostile\x1b[31m", "version": "6.6.6"}
_CAPABILITIES = {"tools": {"listChanged": True}}
_CHANGED = "notifications/tools/list_changed"
_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


class HostileServer:
    """One server; over HTTP it lives in the test's process, which can look at what reached it."""

    def __init__(
        self, *words: str, generation: str = "both", ref_url: str = "http://127.0.0.1:1/schema", control: str = ""
    ) -> None:
        """`generation`: both, legacy or modern. `ref_url`: what `remote-ref` points to. `control`: a file with
        words."""
        self.words: set[str] = set()
        self.asked: Counter[str] = Counter()
        """Requests by method."""
        self.called: list[tuple[str, Any]] = []
        """Tools and arguments."""
        self.listening = asyncio.Event()
        """A client has subscribed to changes."""
        self._era = generation
        self._ref_url = ref_url
        self._control = Path(control) if control else None
        self._listeners: dict[Wire, Message] = {}
        self._take(words)

    async def become(self, *words: str) -> None:
        """Have these words and no others, and notify listeners."""
        self._take(words)
        for wire, meta in list(self._listeners.items()):
            await _notify_changed(wire, meta)

    async def answer(self, request: Message, wire: Wire) -> None:
        method = request["method"]
        self.asked[method] += 1
        match method:
            case "initialize" | "server/discover":
                await self._hello(request, wire)
            case "tools/list":
                await self._list(request, wire)
            case "tools/call":
                await self._call(request, wire)
            case "subscriptions/listen":
                meta = {_SUBSCRIPTION: request["id"]}
                params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
                await wire.send(_notification("notifications/subscriptions/acknowledged", params))
                await self.listen(wire, meta)
            case "ping":
                await wire.send(result(request))
            case _:
                await wire.send(error(request, -32601, "Method not found"))

    async def listen(self, wire: Wire, meta: Message) -> None:
        """Returns when cancelled."""
        self._listeners[wire] = meta
        self.listening.set()
        try:
            await wire.raw(b"")
            while True:
                if "storm" in self.words:
                    for _ in range(20):
                        await _notify_changed(wire, meta)
                await asyncio.sleep(0.02)
        finally:
            del self._listeners[wire]

    def _take(self, words: tuple[str, ...]) -> None:
        if unknown := set(words) - WORDS:
            raise ValueError(f"no such words: {sorted(unknown)}")
        self.words.clear()
        self.words.update(words)

    async def _hello(self, request: Message, wire: Wire) -> None:
        is_modern = request["method"] == "server/discover"
        for word in self.words & {"hello-never", "hello-garbage", "hello-exit", "hello-version", "hello-flood"}:
            await _refuse_hello(word, request, wire)
            return
        if self._era == ("legacy" if is_modern else "modern"):
            await wire.send(error(request, -32601, "Method not found"))
        elif is_modern:
            meta = {"io.modelcontextprotocol/serverInfo": _IDENTITY}
            more = {"ttlMs": 0, "cacheScope": "private", "_meta": meta}
            await wire.send(result(request, supportedVersions=[MODERN], capabilities=_CAPABILITIES, **more))
        else:
            await wire.send(result(request, protocolVersion=LEGACY, capabilities=_CAPABILITIES, serverInfo=_IDENTITY))

    async def _list(self, request: Message, wire: Wire) -> None:
        if self._control is not None:
            self._take(tuple(self._control.read_text().split()))
        cursor = (request.get("params") or {}).get("cursor") or ""
        if "list-never" in self.words:
            await asyncio.Event().wait()
        elif "list-garbage" in self.words:
            await wire.send(result(request, tools={"echo": "tool"}, nextCursor=7))
        elif "list-half" in self.words:
            await wire.raw(b'{"jsonrpc": "2.0", "id": 2, "result": {"tools": [')
            await asyncio.Event().wait()
        elif "list-error" in self.words or ("page-error" in self.words and cursor):
            await wire.send(error(request, -32000, "canary-4711 " + "x" * 100_000))
        else:
            tools = tools_of(self.words, self._ref_url)
            tools += [*MISBEHAVING, _BECOME] if "calls" in self.words else []
            page = page_of(self.words, tools, cursor)
            await wire.send(result(request, **page, ttlMs=0, cacheScope="private"))

    async def _call(self, request: Message, wire: Wire) -> None:
        name, arguments = request["params"]["name"], request["params"].get("arguments") or {}
        self.called.append((name, arguments))
        if name == "become":
            await self.become(*arguments["words"])
            await wire.send(text(request, "changed"))
        elif name in CALLS:
            await CALLS[name](request, wire)
        else:
            await wire.send(text(request, f"I am {name}."))


_BECOME = tool("become", "become.", {"type": "object", "properties": {"words": {"type": "array"}}})


async def _refuse_hello(word: str, request: Message, wire: Wire) -> None:
    match word:
        case "hello-garbage":
            await wire.raw(b"Starting up...\n\x00\xff\xfe {{{\n" * 100)
        case "hello-exit":
            wire.complain("Traceback: no such module canary-4711\n")
            wire.cut()
        case "hello-version":
            await wire.send(result(request, protocolVersion="1999-01-01", capabilities={}, serverInfo=_IDENTITY))
        case "hello-flood":
            while True:
                await wire.raw(b"x" * 1_000_000)
    await asyncio.Event().wait()


async def _notify_changed(wire: Wire, meta: Message) -> None:
    await wire.send(_notification(_CHANGED, {"_meta": meta} if meta else {}))


def _notification(method: str, params: Message) -> Message:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def stdio_command(*words: str, generation: str = "both", ref_url: str = "", control: str | Path = "") -> list[str]:
    """The program and its arguments, for any working directory and environment."""
    code = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from {__name__} import main; main()"
    options = {"--generation": generation, "--ref-url": ref_url, "--control": str(control)}
    given = [part for name, value in options.items() if value for part in (name, value)]
    return [sys.executable, "-c", code, *given, *words]


@asynccontextmanager
async def hostile_http(*words: str, **options: str) -> AsyncIterator[tuple[HostileServer, str]]:
    """The server and its URL."""
    server = HostileServer(*words, **options)
    async with serving_http(server) as url:
        yield server, url


def main() -> None:
    """Over stdio."""
    parser = argparse.ArgumentParser(description="An MCP server that means harm.")
    parser.add_argument("words", nargs="*", metavar="WORD", help=", ".join(sorted(WORDS)))
    parser.add_argument("--generation", choices=("both", "legacy", "modern"), default="both")
    parser.add_argument("--ref-url", default="http://127.0.0.1:1/schema")
    parser.add_argument("--control", default="", help="a file with words, read at each list")
    given = parser.parse_args()

    async def run() -> None:
        await serve_stdio(
            HostileServer(*given.words, generation=given.generation, ref_url=given.ref_url, control=given.control)
        )

    asyncio.run(run())
