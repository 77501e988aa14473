"""Events of a server over one WebSocket per server and process. They are hints only; the state is always polled.

The WebSocket is opened when there is work to follow, under a new id: a server that sees the same id again drops the
newer connection along with the older one (measured on 0.3.64 and 0.33). Each prompt is sent with the current id, so
prompts of an earlier connection have no events any more and are followed by polling. The number of frames read per
second is limited; beyond it the socket's buffer fills.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final

from toolhub_service import __version__
from toolhub_service.adapters.comfyui.client import ALL_NETWORKS, BackendTerms
from toolhub_service.adapters.upstream import one_line
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import Clock, Randomness, Resolver
from toolhub_service.domain.result import Progress
from toolhub_service.guards.addresses import Networks, is_allowed
from toolhub_service.guards.urls import parse_url

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

UNIT: Final = "nodes"
_NODES_MAX: Final = 10_000
_MOST: Final = 1e12
_WORD_MAX_CHARS: Final = 80
_NODE_ID: Final = re.compile(r"[A-Za-z0-9_:.-]{1,64}")


class NodeProgress:
    """Progress of one prompt, from the events of its nodes. `changed` is called at each step.

    The total is the number of nodes in the graph without cached results; a running node counts as its value divided by
    its max. An event may come twice, late or not at all; progress never decreases.
    """

    def __init__(self, graph: JsonObject, changed: Callable[[Progress], None]) -> None:
        self._graph = graph
        self._changed = changed
        self._cached: set[str] = set()
        self._finished: set[str] = set()
        self._running = ""
        self._share = 0.0

    @property
    def has_events(self) -> bool:
        """Return whether there was an event of one of its nodes."""
        return bool(self._running or self._finished)

    @property
    def total(self) -> int:
        """Return the number of nodes to run; 0: all results were cached."""
        return len(self._graph) - len(self._cached)

    def progress(self, message: str = "") -> Progress:
        step = min(len(self._finished) + self._share, float(self.total))
        return Progress(step, float(self.total), UNIT, message or self._running or "begins")

    def final_progress(self, message: str) -> Progress:
        """Return the progress with every node done."""
        return Progress(float(self.total), float(self.total), UNIT, message)

    def on_event(self, kind: str, data: Mapping[str, Any]) -> bool:
        """Process an event. Return whether it ends the prompt."""
        # The end is `executing` without a node. Right after `execution_success` the history lacked the prompt in 4 of
        # 40 runs (0.3.64) and 18 of 40 (0.33); after this event it always had it.
        if kind == "execution_cached":
            self._cached |= _nodes(data.get("nodes")) & self._graph.keys()
        elif kind == "progress_state":
            self._set_states(data.get("nodes"))
        elif kind == "progress":
            self._set_share(str(data.get("node")), data.get("value"), data.get("max"))
        elif kind == "executing" and isinstance(data.get("node"), str):
            self._begin(data["node"])
        else:
            return kind == "executing"
        self._changed(self.progress())
        return False

    def _set_states(self, nodes: Any) -> None:
        if not isinstance(nodes, Mapping):
            return
        for node, fields in list(nodes.items())[:_NODES_MAX]:
            state = fields.get("state") if isinstance(fields, Mapping) else None
            if state == "finished" and node in self._graph and node not in self._cached:
                self._finished.add(node)
                self._share = 0.0
            elif state == "running":
                self._begin(node)
                self._set_share(node, fields.get("value"), fields.get("max"))

    def _begin(self, node: str) -> None:
        running = self._name(node)
        if running != self._running:
            self._running, self._share = running, 0.0

    def _set_share(self, node: str, value: Any, most: Any) -> None:
        if node in self._finished or not isinstance(value, int | float) or not isinstance(most, int | float):
            return
        if 0 <= value <= most and 0 < most < _MOST:
            self._share = max(self._share, min(value / most, 0.99))

    def _name(self, node: str) -> str:
        body = self._graph.get(node)
        if not isinstance(body, Mapping):
            return f"node {node}" if _NODE_ID.fullmatch(node) else "a node"
        meta = body.get("_meta")
        title = meta.get("title") if isinstance(meta, Mapping) else None
        own = f" “{one_line(title, _WORD_MAX_CHARS)}”" if isinstance(title, str) and title else ""
        return f"{body['class_type']}{own}"


def _nodes(value: Any) -> set[str]:
    return {node for node in value[:_NODES_MAX] if isinstance(node, str)} if isinstance(value, list) else set()


MESSAGE_MAX_BYTES: Final = 4 * 1024 * 1024
"""Every step sends the states of all nodes so far: about 250 bytes each."""
_ADDRESSES_MAX: Final = 4
_PING_S: Final = 30.0
# A server that has just ended a run does not answer for seconds.
_PONG_S: Final = 60.0
_CLOSE_S: Final = 2.0


class ConnectFailed(Exception):
    """The connection could not be made; `reason` is a clause for operators."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WebSocketConnector:
    """Opens WebSockets to one server at a checked address: no proxy, redirect or compression, bounded messages.

    The package `websockets` is an extra: without it there are no events, and jobs are followed by polling alone.
    """

    def __init__(
        self, terms: BackendTerms, resolver: Resolver, *, tls: ssl.SSLContext | None, connect_timeout_s: float
    ) -> None:
        self._terms = terms
        self._resolver = resolver
        self._tls = tls
        self._timeout_s = connect_timeout_s

    async def connect(self, client_id: str) -> ClientConnection:
        """Return a connection under this id. Raises ConnectFailed."""
        try:
            from websockets.asyncio.client import connect
            from websockets.exceptions import WebSocketException

            from toolhub_service.adapters.comfyui.web_socket import AbortingConnection
        except ModuleNotFoundError:
            raise ConnectFailed("the package `websockets` is not installed: toolhub extras install comfyui") from None
        place = parse_url(self._terms.url)
        scheme = "wss" if place.scheme == "https" else "ws"
        base = "" if place.target == "/" else place.target
        try:
            async with asyncio.timeout(self._timeout_s):
                sock = await self._open_socket(place.host, place.port)
            try:
                return await connect(
                    f"{scheme}://{place.authority}{base}/ws?clientId={client_id}",
                    create_connection=AbortingConnection,
                    sock=sock,
                    ssl=(self._tls or True) if scheme == "wss" else None,
                    proxy=None,
                    compression=None,
                    additional_headers=dict(self._terms.headers),
                    user_agent_header=f"tool-hub/{__version__}",
                    open_timeout=self._timeout_s,
                    ping_interval=_PING_S,
                    ping_timeout=_PONG_S,
                    close_timeout=_CLOSE_S,
                    max_size=MESSAGE_MAX_BYTES,
                )
            except BaseException:
                # The owner of the socket by then notices its end, and closes it.
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                raise
        except TimeoutError:
            raise ConnectFailed("the WebSocket did not open in time") from None
        except (OSError, ValueError, WebSocketException) as error:
            raise ConnectFailed("its WebSocket was refused or broke") from error

    async def _open_socket(self, host: str, port: int) -> socket.socket:
        """Return a socket to the first address that answers. Raises OSError, ConnectFailed."""
        addresses = await self._resolver.resolve(host, port)
        if not addresses or not all(is_allowed(address, Networks(ALL_NETWORKS)) for address in addresses):
            raise ConnectFailed("its host resolves to a forbidden address")
        failed: OSError | None = None
        for address in addresses[:_ADDRESSES_MAX]:
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            sock.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(sock, (address, port))
            except OSError as error:
                sock.close()
                failed = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise failed or OSError("no address")


_PAUSE_FIRST_S: Final = 1.0
_PAUSE_MAX_S: Final = 30.0
# A connection that lasted this long was stable: the next pause is short again.
_STABLE_S: Final = 30.0
_MESSAGES_PER_S: Final = 500
_BYTES_PER_S: Final = 8 * 1024 * 1024
_NOTIFY_AGAIN_S: Final = 0.25
# Frames after which other tasks run.
_YIELD_EVERY: Final = 20


class EventFeed:
    """The events of one server, connected while there is work to follow."""

    def __init__(
        self, connector: WebSocketConnector, clock: Clock, randomness: Randomness, may_have_ended: Callable[[str], None]
    ) -> None:
        """`may_have_ended` is called with the id of a prompt that should be polled now."""
        self._connector = connector
        self._clock = clock
        self._randomness = randomness
        self._may_have_ended = may_have_ended
        self._followed: dict[str, NodeProgress] = {}
        self._notified_at_s: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._needed = asyncio.Event()
        self._tried = asyncio.Event()
        self._is_closed = False
        self.client_id = ""
        """The id under which prompts get events now; empty: not connected."""
        self.connections = 0
        """Number of connections so far."""
        self.error = ""
        """Why there is no connection, as a clause."""

    async def ready(self, timeout_s: float) -> str:
        """Return the id to send a prompt with; empty when there is no connection within that time, or the last attempt
        failed."""
        if self._is_closed:
            return ""
        self._start()
        with suppress(TimeoutError):  # `client_id` shows whether it connected
            async with asyncio.timeout(timeout_s):
                await self._tried.wait()
        return self.client_id

    def progress_of(self, prompt_id: str) -> NodeProgress | None:
        """Return the progress of a followed prompt, else None."""
        return self._followed.get(prompt_id)

    def follow(self, prompt_id: str, nodes: NodeProgress) -> None:
        """Pass the prompt's events to `nodes`, until `forget`."""
        self._followed[prompt_id] = nodes
        if not self._is_closed:
            self._start()

    def forget(self, prompt_id: str) -> None:
        """Stop following; does nothing when the prompt is not followed."""
        self._followed.pop(prompt_id, None)
        self._notified_at_s.pop(prompt_id, None)

    async def close(self) -> None:
        self._is_closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def _start(self) -> None:
        self._needed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Connect, listen and reconnect, for as long as a prompt is followed."""
        pause_s = _PAUSE_FIRST_S
        while True:
            await self._needed.wait()
            began_s = self._clock.monotonic_s()
            await self._connect_once()
            if not self._followed:
                self._needed.clear()
            if self._clock.monotonic_s() - began_s >= _STABLE_S:
                pause_s = _PAUSE_FIRST_S
            await asyncio.sleep(self._randomness.uniform(pause_s / 2, pause_s))
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _connect_once(self) -> None:
        """Run one connection from its opening to its end, however it ends."""
        client_id = str(uuid.UUID(hex=self._randomness.token_hex(16)))
        try:
            connection = await self._connector.connect(client_id)
        except ConnectFailed as failed:
            self.error = failed.reason
            self._tried.set()
            return
        from websockets.exceptions import WebSocketException

        self.client_id, self.error = client_id, ""
        self.connections += 1
        self._tried.set()
        limit = _RateLimit(self._clock)
        try:
            async for frame in connection:
                self._on_frame(frame)
                await limit.wait(len(frame))
        except (WebSocketException, OSError):
            return
        finally:
            self.client_id, self.error = "", "its WebSocket ended"
            connection.transport.abort()

    def _on_frame(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes) or not self._followed:
            return  # previews of images
        try:
            event = json.loads(frame)
        except (ValueError, RecursionError):
            return
        data = event.get("data") if isinstance(event, dict) else None
        if not isinstance(data, Mapping):
            return
        prompt_id: Any = data.get("prompt_id")
        nodes = self._followed.get(prompt_id) if isinstance(prompt_id, str) else None
        if nodes is not None and nodes.on_event(str(event.get("type")), data):
            self._notify_end(prompt_id)

    def _notify_end(self, prompt_id: str) -> None:
        # Each call costs a request: at most four a second, however often the server sends the event.
        now_s = self._clock.monotonic_s()
        if now_s - self._notified_at_s.get(prompt_id, -inf) >= _NOTIFY_AGAIN_S:
            self._notified_at_s[prompt_id] = now_s
            self._may_have_ended(prompt_id)


class _RateLimit:
    """A limit on messages and bytes a second; above it, the rest of the second is waited for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s = clock.monotonic_s()
        self._messages = self._bytes = 0

    async def wait(self, size_bytes: int) -> None:
        self._messages += 1
        self._bytes += size_bytes
        left_s = 1.0 - (self._clock.monotonic_s() - self._since_s)
        if left_s <= 0:
            self._since_s, self._messages, self._bytes = self._clock.monotonic_s(), 0, 0
        elif self._messages > _MESSAGES_PER_S or self._bytes > _BYTES_PER_S:
            await asyncio.sleep(left_s)
        elif self._messages % _YIELD_EVERY == 0:
            await asyncio.sleep(0)
