"""Bridges MCP on standard input and output to a hub's HTTP endpoint, for clients that start programs.

Messages pass unchanged, so the hub checks each under its key, like any other client's. Only the needs of HTTP are
added: headers, streams, and the session of older protocol versions (reopened after a restart). Arguments that a tool's
schema also requires in headers (`x-mcp-header`, 2026-07-28) are copied there.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

import httpx

from toolhub_service.domain.errors.http_status import Processing, processing_of
from toolhub_service.guards.foreign_text import on_one_line

Message = dict[str, Any]

_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_PLAIN: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_ACCEPT: Final = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
_X_HEADER: Final = "x-mcp-header"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_MISMATCH: Final = -32020
_INVALID_PARAMS: Final = -32602
_ID: Final = re.compile(rb'"id"\s*:\s*(-?[0-9]+|"(?:[^"\\]|\\.)*")')
_UNREACHABLE: Final = -32000
_AGAIN_S: Final = 1.0
# No timeout for a call is set here.
_TIMEOUT: Final = httpx.Timeout(10.0, read=None)


_NOT_SENT: Final = httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol


class NoCredential(httpx.HTTPError):
    """There is no credential to send; the message says what to do."""


class _Bearer(httpx.Auth):
    """The credential of each request: tokens expire while a client works for hours."""

    def __init__(self, key: str | Callable[[], str]) -> None:
        self._key = key

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        # In another thread, because a token may have to be refreshed.
        key = self._key if isinstance(self._key, str) else await asyncio.to_thread(self._key)
        if key:
            request.headers["authorization"] = f"Bearer {key}"
        yield request


class Bridge:
    def __init__(
        self, url: str, key: str | Callable[[], str], write: Callable[[bytes], None], verify: Any = True
    ) -> None:
        """`key` is empty if the hub needs none, or is called for each request, from another thread; it may raise
        NoCredential.  `verify` as httpx takes it."""
        self._url = url
        self._write = write
        self._http = httpx.AsyncClient(
            headers=_ACCEPT, auth=_Bearer(key), timeout=_TIMEOUT, verify=verify, trust_env=False
        )
        self._running: dict[Any, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._initialize: Message | None = None
        """Requests of the older protocol: sent again when their session is gone."""
        self._session: dict[str, str] = {}
        self._opening = asyncio.Lock()
        self._listening: asyncio.Task[None] | None = None
        self._mirrored: dict[str, list[tuple[tuple[str, ...], str]]] = {}
        """By a tool's name: paths of arguments, and the suffix of each one's header. Few tools have any."""

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Run until there are no more lines."""
        async with self._http:
            async for line in lines:
                if line.strip():
                    await self._take(line)
            for task in (*self._running.values(), *self._others, *filter(None, [self._listening])):
                task.cancel()
            if "mcp-session-id" in self._session:
                # Optional: the hub itself ends an idle session.
                with suppress(httpx.HTTPError):
                    await self._http.delete(self._url, headers=self._session, timeout=2.0)

    async def _take(self, line: bytes) -> None:
        try:
            message = _parse_json(line)
        except TooDeep:
            problem = "The message is nested too deeply: send at most some hundred levels."
            error = {"code": _INVALID_PARAMS, "message": problem}
            self._write_message({"jsonrpc": "2.0", "id": _id_in(line), "error": error})
            return
        except ValueError:
            message = None
        if not isinstance(message, dict):
            self._write_message({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}})
            return
        method, request_id = message.get("method"), message.get("id")
        if method == "initialize":
            self._initialize, self._session = message, {}
            await self._send(message, line)  # the following messages need its session
            return
        if method == "ping" and request_id is not None and not self._headers(message):
            # It is allowed before the handshake; the hub would want a session.
            self._write_message({"jsonrpc": "2.0", "id": request_id, "result": {}})
            return
        if method == "notifications/cancelled" and not self._session:
            task = self._running.pop(_param(message, "requestId"), None)
            if task is not None:
                task.cancel()  # in the newer protocol the end of the stream cancels the call
            return
        task = asyncio.create_task(self._send(message, line))
        if method is not None and isinstance(request_id, str | int):
            self._running[request_id] = task
            task.add_done_callback(lambda _: self._running.pop(request_id, None))
        else:
            self._others.add(task)
            task.add_done_callback(self._others.discard)
        if method == "notifications/initialized":
            await asyncio.wait({task})
            self._listening = asyncio.create_task(self._listen())

    async def _send(self, message: Message, line: bytes) -> None:
        try:
            session = self._session
            refused = await self._post(message, line)
            if refused == 404:
                await self._open_again(session)
            # The tool's schema says that an argument must also be in a header.
            elif refused == 400:
                await self._learn(message)
            if refused:
                await self._post(message, line, is_last=True)
        except NoCredential as missing:
            self._refuse(message, _UNREACHABLE, str(missing))
        except _NOT_SENT as failed:
            problem = f"The hub at {self._url} does not answer ({type(failed).__name__}). Is it running?"
            self._refuse(message, _UNREACHABLE, problem)
        except httpx.HTTPError:
            self._lose(message, f"The connection to the hub at {self._url} broke before the answer came.")

    async def _post(self, message: Message, line: bytes, *, is_last: bool = False) -> int:
        """Return 0 when the answer has been written, or the status of an answer after which it may be sent again: 404
        for a session that is gone, 400 for headers that do not fit."""
        headers = self._headers(message)
        async with self._http.stream("POST", self._url, content=line.strip(), headers=headers) as response:
            if response.status_code == 404 and self._session and not is_last:
                return 404
            if message.get("method") == "initialize" and response.is_success:
                self._session = {"mcp-session-id": response.headers.get("mcp-session-id", "")}
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                is_answered = False
                async for data in _events(response):
                    is_answered |= self._pass_on(message, data)
                if not is_answered:
                    self._lose(message, f"The stream of the hub at {self._url} ended before the answer came.")
                return 0
            data = await response.aread()
            if response.status_code == 400 and not is_last and _wants_headers(message, data):
                return 400
            self._pass_on(message, data, response.status_code)
            return 0

    def _pass_on(self, asked: Message, data: bytes, status: int = 200) -> bool:
        """Pass a message on, and return whether it is the answer."""
        if not data and status < 300:
            return False
        try:
            message = _parse_json(data)
            assert isinstance(message, dict)
        except (ValueError, AssertionError):
            problem = f"The hub at {self._url} answered with HTTP status {status}."
            if status >= 500 or processing_of(status) is Processing.UNKNOWN:
                self._lose(asked, problem)
            else:
                self._refuse(asked, _UNREACHABLE, problem)
            return True
        if asked.get("method") == "initialize" and isinstance(message.get("result"), dict):
            self._session["mcp-protocol-version"] = str(message["result"].get("protocolVersion", ""))
        if "error" in message and message.get("id") is None:
            message["id"] = asked.get("id")
            if message["id"] is None:
                return False  # a notification has no answer
        if asked.get("method") == "tools/list" and _X_HEADER.encode() in data:
            result = message.get("result")
            for tool in result.get("tools", ()) if isinstance(result, dict) else ():
                self._mirrored[tool["name"]] = _header_properties(tool["inputSchema"])
        self._write_message(message)
        return "method" not in message and message.get("id") == asked.get("id")

    async def _learn(self, call: Message) -> None:
        """Learn which of the tool's arguments go into headers: its client may never have listed it, or before it
        changed."""
        name, meta = _param(call, "name"), {**_param(call, "_meta")}
        # The progress token belongs to the client's own call: progress of this request would be taken for it.
        meta.pop("progressToken", None)
        params = {"name": "describe_tool", "arguments": {"name": name}, "_meta": meta}
        asked = {"jsonrpc": "2.0", "id": "describe", "method": "tools/call", "params": params}
        answer = await self._http.post(self._url, json=asked, headers=self._headers(asked))
        # Without its schema the call is sent without mirrored headers, and the hub reports what is missing.
        with suppress(ValueError, KeyError, TypeError):
            self._mirrored[name] = _header_properties(
                _parse_json(answer.content)["result"]["structuredContent"]["inputSchema"]
            )

    async def _open_again(self, ended: dict[str, str]) -> None:
        """Open a new session when the hub no longer knows the old one, without telling the client."""
        async with self._opening:
            # By identity: several requests find the same session ended, and one of them opens the next.
            if self._session is not ended or self._initialize is None:
                return  # another request has
            opened = await self._http.post(self._url, json=self._initialize)
            if not opened.is_success:
                return
            self._session = ended | {"mcp-session-id": opened.headers.get("mcp-session-id", "")}
            ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await self._http.post(self._url, json=ready, headers=self._session)

    async def _listen(self) -> None:
        """Read the hub's own messages in the older protocol."""
        while True:
            # A broken stream (some proxies cut idle ones) is reopened.
            with suppress(httpx.HTTPError):
                async with self._http.stream("GET", self._url, headers=self._session) as response:
                    # The endpoint has no stream of its own to listen to.
                    if response.status_code == 405:
                        return
                    if response.is_success:
                        async for data in _events(response):
                            self._pass_on({}, data)
            await asyncio.sleep(_AGAIN_S)

    def _headers(self, message: Message) -> dict[str, str]:
        meta = _param(message, "_meta")
        version = meta.get(_VERSION) if isinstance(meta, dict) else None
        if not isinstance(version, str):
            return {} if message.get("method") == "initialize" else self._session
        headers = {"mcp-protocol-version": _field(version), "mcp-method": _field(str(message.get("method", "")))}
        name = _param(message, "name") or _param(message, "uri")
        if not isinstance(name, str):
            return headers
        if message.get("method") == "tools/call":
            for path, token in self._mirrored.get(name, ()):
                text = _scalar(_param(message, "arguments"), path)
                if text is not None:
                    headers[f"mcp-param-{token}"] = _field(text)
        return headers | {"mcp-name": _field(name)}

    def _refuse(self, asked: Message, code: int, problem: str) -> None:
        if asked.get("method") is not None and asked.get("id") is not None:
            self._write_message({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": code, "message": problem}})

    def _lose(self, asked: Message, problem: str) -> None:
        """Answer a request that was sent and not answered: a call with a result, which its model reads."""
        if asked.get("method") != "tools/call" or asked.get("id") is None:
            self._refuse(asked, _UNREACHABLE, problem)
            return
        name = on_one_line(str(_param(asked, "name")))
        message = (
            f"{problem} {name} may have had its effect: check that before you call it again. The audit log of the hub "
            "has the call."
        )
        error = {
            "kind": "OUTCOME_UNKNOWN",
            "message": message,
            "retryable": False,
            "details": {"cause": "NETWORK_ERROR"},
        }
        result = {
            "content": [{"type": "text", "text": f"OUTCOME_UNKNOWN: {message}"}],
            "isError": True,
            "resultType": "complete",
            "_meta": {"toolhub/error": error},
        }
        self._write_message({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    def _write_message(self, message: Message) -> None:
        self._write(json.dumps(message, separators=(",", ":")).encode() + b"\n")


class TooDeep(ValueError):
    """JSON that is nested more deeply than can be read."""


def _parse_json(data: bytes) -> Any:
    """Return the JSON value. Raises ValueError."""
    try:
        value = json.loads(data)
        json.dumps(value)  # what could be read and not be written would be as lost
    except RecursionError:
        raise TooDeep from None
    return value


def _id_in(line: bytes) -> Any:
    """Return the id of a message that cannot be read, as far as it can be seen; None: nobody would get an answer."""
    found = _ID.search(line)
    return json.loads(found[1]) if found else None


def _param(message: Message, name: str) -> Any:
    params = message.get("params")
    return params.get(name) if isinstance(params, dict) else None


def _field(value: str) -> str:
    """Return the value in the protocol's encoding for values that a header cannot hold."""
    if _PLAIN.fullmatch(value) and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode(errors='surrogatepass')).decode()}?="


def _wants_headers(asked: Message, data: bytes) -> bool:
    """Return whether a call was refused for its headers, before anything ran."""
    if asked.get("method") != "tools/call" or not isinstance(_param(asked, "_meta"), dict):
        return False
    try:
        return bool(_parse_json(data)["error"]["code"] == _HEADER_MISMATCH)
    except (ValueError, KeyError, TypeError):
        return False


def _header_properties(schema: Any) -> list[tuple[tuple[str, ...], str]]:
    """Return paths of properties whose values are also sent as headers `Mcp-Param-…`, with the suffixes of these."""
    found: list[tuple[tuple[str, ...], str]] = []
    rest: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while rest:
        path, node = rest.pop()
        if not isinstance(node, dict):
            continue
        token = node.get(_X_HEADER)
        if path and isinstance(token, str) and _TOKEN.fullmatch(token):
            found.append((path, token))
        inner = node.get("properties")
        rest += [((*path, name), each) for name, each in inner.items()] if isinstance(inner, dict) else []
    return found


def _scalar(value: Any, path: tuple[str, ...]) -> str | None:
    """Return an argument as its header's value; None if there is none, or it is no scalar."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event."""
    data: list[str] = []
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data).encode()
            data = []
