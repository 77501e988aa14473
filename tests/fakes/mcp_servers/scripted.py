"""A scripted MCP server, in either generation: the names of its tools state their behaviour, right, wrong or none.

Standard library only, so that it starts in a blink, and nothing of the SDK stands between a test and the wire. It
speaks on standard input and output when run as a program (`python scripted.py modern|legacy [UNLISTED …]`), or on a
port of loopback (`serving`). What was asked of it can be read with the tool `seen`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

Send = Callable[[dict[str, Any]], Awaitable[None]]

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
EXTENSION = "io.modelcontextprotocol/tasks"
SKILLS = "io.modelcontextprotocol/skills"
INFO = {"name": "scripted", "version": "1.2.3"}
OBJECT: dict[str, Any] = {"type": "object"}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"It is {name}.", "inputSchema": OBJECT, **more}


TOOLS: list[dict[str, Any]] = [
    tool("echo", inputSchema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}),
    tool("add", outputSchema={"type": "object", "properties": {"sum": {"type": "number"}}}),
    *(tool(name) for name in "big fails refuses hangs reports dies odd ask choose page model stubborn seen".split()),
    tool("mirrors", inputSchema={"type": "object", "properties": {"at": {"type": "string", "x-mcp-header": "Place"}}}),
    tool("long", execution={"taskSupport": "required"}),
    tool("perhaps", execution={"taskSupport": "optional"}),
]


def listed(*unlisted: str) -> list[list[Any]]:
    """The pages of a server that does not list some of its tools; they can be called all the same."""
    return [[each for each in TOOLS if each["name"] not in unlisted]]


@dataclass
class Task:
    polls_left: int
    status: str = "working"
    result: dict[str, Any] = field(default_factory=dict)
    wants: dict[str, Any] = field(default_factory=dict)
    """What it wants before it goes on, by key (2026-07-28)."""
    given: list[dict[str, Any]] = field(default_factory=list)
    """What it was given, each time."""


class Refusal(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ServerDied(Exception):
    """The server breaks off in the middle of a call."""


@dataclass
class Script:
    """One server: its tools, its pages of the list, and what it has seen."""

    generation: str = "modern"
    pages: list[list[Any]] = field(default_factory=lambda: [TOOLS])
    has_extension: bool = False
    calls: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: dict[str, Task] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    ttl_ms: int = 0
    confirms: bool = True
    """Whether a task that is cancelled has stopped at once."""
    skills: list[dict[str, Any]] | None = None
    """What `skills/list` answers, a page each two; None: the extension is not declared."""
    resources: dict[str, str] = field(default_factory=dict)
    """Texts by URI."""

    async def answer(self, message: dict[str, Any], send: Send) -> dict[str, Any]:
        """The answer to a request."""
        method, params = message["method"], message.get("params") or {}
        self.asked.append(method)
        try:
            result = await self._result(method, params, send)
        except Refusal as refusal:
            error = {"code": refusal.code, "message": str(refusal)}
            return {"jsonrpc": "2.0", "id": message["id"], "error": error}
        if self.generation == "modern":
            result = {"resultType": "complete", **result}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    def _capabilities(self) -> dict[str, Any]:
        capabilities: dict[str, Any] = {"tools": {"listChanged": False}}
        if self.generation == "modern" and self.has_extension:
            capabilities["extensions"] = {EXTENSION: {}}
        if self.generation == "modern" and self.skills is not None:
            capabilities["extensions"] = {**capabilities.get("extensions", {}), SKILLS: {}}
        if self.generation == "legacy":
            capabilities["tasks"] = {"requests": {"tools": {"call": {}}}, "cancel": {}, "list": {}}
        return capabilities

    async def _result(self, method: str, params: dict[str, Any], send: Send) -> dict[str, Any]:
        capabilities = self._capabilities()
        if method == "server/discover" and self.generation == "modern":
            meta = {"io.modelcontextprotocol/serverInfo": INFO}
            cache = {"ttlMs": 0, "cacheScope": "private"}
            return {"supportedVersions": [MODERN], "capabilities": capabilities, "_meta": meta, **cache}
        if method == "initialize" and self.generation == "legacy":
            return {"protocolVersion": LEGACY, "capabilities": capabilities, "serverInfo": INFO}
        if method == "tools/list":
            return self._page(params)
        if method == "tools/call":
            return await self._call(params, send)
        if method.startswith("tasks/"):
            return self._task(method, params)
        if self.skills is not None and (skills := self._skill(method, params)) is not None:
            return skills
        raise Refusal(-32601, f"no such method: {method}")

    def _skill(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        at, skills = int(params.get("cursor", "0")), self.skills or []
        if method == "skills/list":
            return {"skills": skills[at : at + 2], **({"nextCursor": str(at + 2)} if at + 2 < len(skills) else {})}
        if method == "resources/read" and params["uri"] in self.resources:
            return {"contents": [{"uri": params["uri"], "text": self.resources[params["uri"]]}]}
        return None

    def _page(self, params: dict[str, Any]) -> dict[str, Any]:
        index = int(params.get("cursor", "0"))
        page: dict[str, Any] = {"tools": self.pages[index]}
        if index + 1 < len(self.pages):
            page["nextCursor"] = str(index + 1)
        if self.generation == "modern":
            page |= {"ttlMs": self.ttl_ms, "cacheScope": "private"}
        return page

    async def _call(self, params: dict[str, Any], send: Send) -> dict[str, Any]:
        name, args = params["name"], params.get("arguments") or {}
        self.calls.append(params)
        declared = (params.get("_meta") or {}).get("io.modelcontextprotocol/clientCapabilities") or {}
        can_take_task = EXTENSION in (declared.get("extensions") or {})
        if "task" in params or (can_take_task and self.has_extension and name == "perhaps"):
            return self._begin(args)
        return await getattr(self, f"_tool_{name}", self._tool_unknown)(params, args, send)

    def _begin(self, args: dict[str, Any]) -> dict[str, Any]:
        name = f"t-{len(self.tasks) + 1}"
        self.tasks[name] = Task(args.get("polls", 2), result=text(args.get("text", "made")))
        self.tasks[name].result["isError"] = bool(args.get("fails"))
        self.tasks[name].wants = dict(args.get("wants", {}))
        task = self._described(name)
        return {"resultType": "task", **task} if self.generation == "modern" else {"task": task}

    def _described(self, name: str) -> dict[str, Any]:
        at = "2026-11-22T00:00:00Z"
        interval = "pollIntervalMs" if self.generation == "modern" else "pollInterval"
        task = {"taskId": name, "status": self.tasks[name].status, "createdAt": at, "lastUpdatedAt": at, "ttl": 60_000}
        return {**task, interval: 10, "statusMessage": f"{self.tasks[name].polls_left} to go"}

    def _task(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        name = params["taskId"]
        task = self.tasks.get(name)
        if task is None:
            raise Refusal(-32602, "Task not found")
        if method == "tasks/update":
            task.given.append(params["inputResponses"])
            task.wants, task.status = {}, "working"
            return {}
        if method == "tasks/cancel":
            task.status = "cancelled" if self.confirms else task.status
            self.cancelled.append(name)
            return self._described(name)
        if method == "tasks/result":
            return task.result
        if task.status == "working":
            task.polls_left -= 1
            if task.polls_left == 0:
                task.status = "failed" if task.result["isError"] and self.generation == "legacy" else "completed"
            if task.polls_left == -100 or (task.wants and task.polls_left == 1):
                task.status = "input_required"
        over = {"result": task.result} if self.generation == "modern" and task.status == "completed" else {}
        if task.wants and task.status == "input_required":
            over["inputRequests"] = task.wants
        return {**self._described(name), **over}

    async def _tool_unknown(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        return {**text(f"Unknown tool: {params['name']}"), "isError": True}

    async def _tool_echo(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        return text(args["text"])

    async def _tool_mirrors(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        return text("mirrored")

    async def _tool_perhaps(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        return text("at once")

    async def _tool_add(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        total = {"sum": args.get("a", 0) + args.get("b", 0)}
        return {**text(json.dumps(total)), "structuredContent": total}

    async def _tool_big(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        data = base64.b64encode(b"\x01\x02\x03" * args.get("triples", 10_000)).decode()
        blocks = [{"type": "text", "text": "see"}, {"type": "image", "data": data, "mimeType": "image/png"}]
        return {"content": blocks}

    async def _tool_fails(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        return {**text("it broke, password=hunter2-canary"), "isError": True, "structuredContent": {"no": "schema"}}

    async def _tool_refuses(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        raise Refusal(args.get("code", -32602), args.get("message", "Invalid arguments"))

    async def _tool_hangs(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.append("hangs")
            self.stopped.set()
        return {}

    async def _tool_reports(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        token = params["_meta"]["progressToken"]
        times = args.get("times", 3)
        for step in range(1, times + 1):
            news = {"progressToken": token, "progress": step, "total": times, "message": f"step {step}"}
            await send({"jsonrpc": "2.0", "method": "notifications/progress", "params": news})
        return text("reported")

    async def _tool_beats(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        """Reports its progress as often as it is told, then stops reporting until it is told to go on."""
        token = params["_meta"]["progressToken"]
        for step in range(args["times"]):
            await asyncio.sleep(args["every_s"])
            news = {"progressToken": token, "progress": step}
            await send({"jsonrpc": "2.0", "method": "notifications/progress", "params": news})
        if args.get("then_hangs"):
            await self._tool_hangs(params, args, send)
        return text("done")

    async def _tool_dies(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        raise ServerDied

    async def _tool_odd(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        return dict(args["result"])

    async def _tool_seen(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        return {"content": [], "structuredContent": {"cancelled": self.cancelled, "calls": self.calls[:-1]}}

    async def _tool_ask(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        answers = params.get("inputResponses")
        if not answers:
            form = {
                "type": "object",
                "properties": {"colour": {"type": "string", "default": "blue"}},
                "required": ["colour"],
            }
            return asks({"one": question("Which colour?", form)}, "sealed-1")
        return text(json.dumps([answers["one"], params["requestState"]]))

    async def _tool_choose(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        answers = params.get("inputResponses")
        if not answers:
            return asks({"first": question("Sure?", OBJECT), "second": question("Really?", OBJECT)}, "sealed-2")
        return text(json.dumps(answers))

    async def _tool_page(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        answers = params.get("inputResponses")
        if not answers:
            url = {"mode": "url", "message": "Open it", "url": "https://example.com/"}
            return asks({"open": {"method": "elicitation/create", "params": url}}, "sealed-3")
        return text(answers["open"]["action"])

    async def _tool_model(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        wanted = {"messages": [], "maxTokens": 10}
        return asks({"think": {"method": "sampling/createMessage", "params": wanted}}, "sealed-4")

    async def _tool_stubborn(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        return asks({"again": question("Again?", OBJECT)}, "sealed-5")


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def question(message: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}}


def asks(requests: dict[str, Any], state: str) -> dict[str, Any]:
    return {"resultType": "input_required", "inputRequests": requests, "requestState": state}


async def speak(script: Script) -> None:
    """On standard input and output, until the input ends."""
    loop = asyncio.get_running_loop()
    running: dict[Any, asyncio.Task[None]] = {}

    async def send(message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    async def run(message: dict[str, Any]) -> None:
        try:
            await send(await script.answer(message, send))
        except ServerDied:
            os._exit(3)
        finally:
            running.pop(message["id"], None)

    while line := await loop.run_in_executor(None, sys.stdin.readline):
        message = json.loads(line)
        if message.get("method") == "notifications/cancelled":
            if (task := running.get(message["params"]["requestId"])) is not None:
                task.cancel()
        elif "id" in message and "method" in message:
            running[message["id"]] = asyncio.create_task(run(message))


@asynccontextmanager
async def serving(script: Script, port: int = 0) -> AsyncIterator[str]:
    """On a port of loopback; gives the URL. Every connection carries one request."""
    server = await asyncio.start_server(lambda reader, writer: _one(script, reader, writer), "127.0.0.1", port)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


_running: dict[Any, asyncio.Task[Any]] = {}


async def _one(script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        verb, *lines = head.split("\r\n")
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        await _reply(script, verb.split()[0], headers, body, reader, writer)
    writer.close()


async def _reply(
    script: Script,
    verb: str,
    headers: dict[str, str],
    body: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    if verb != "POST":
        writer.write(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        return
    message = json.loads(body)
    if "id" not in message:
        if message.get("method") == "notifications/cancelled":
            _running[message["params"]["requestId"]].cancel()
        writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        return
    if message["method"] == "tools/call":
        script.headers.append(headers)
    session = "mcp-session-id: s-1\r\n" if script.generation == "legacy" and message["method"] == "initialize" else ""
    writer.write(f"HTTP/1.1 200 OK\r\n{session}content-type: text/event-stream\r\nconnection: close\r\n\r\n".encode())

    async def send(event: dict[str, Any]) -> None:
        writer.write(f"event: message\r\ndata: {json.dumps(event)}\r\n\r\n".encode())
        await writer.drain()

    work = _running[message["id"]] = asyncio.create_task(script.answer(message, send))
    gone = asyncio.create_task(reader.read(1))
    await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    work.cancel()
    with suppress(asyncio.CancelledError, ServerDied):
        await send(await work)


if __name__ == "__main__":
    asyncio.run(speak(Script(generation=sys.argv[1], pages=listed(*sys.argv[2:]))))
