"""One connection to an MCP server, from entering to leaving the SDK's session: all in the task of `run`.

The SDK's session lives in the task that enters it: its cancel scopes must be left there, and when a server dies it
cancels that very task. So that task does nothing else, a connection is never revived, and `run` ends by returning,
whatever the SDK did: the one exception that leaves it is a cancellation from outside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from mcp import ClientSession, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.dispatcher import Outbound
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated
from mcp_types import (
    UNSUPPORTED_PROTOCOL_VERSION,
    ClientCapabilities,
    ElicitationCapability,
    FormElicitationCapability,
    Implementation,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    ToolListChangedNotification,
    UnsupportedProtocolVersionErrorData,
    UrlElicitationCapability,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolhub_service import __version__
from toolhub_service.adapters.mcp.elicitation import elicitation_callback, form_of
from toolhub_service.adapters.mcp.failures import NotConnected, reason_of
from toolhub_service.adapters.mcp.http import BoundedTransport, HttpTransport
from toolhub_service.adapters.mcp.kind import McpTerms, Protocol, StdioTerms
from toolhub_service.adapters.mcp.relay import Callbacks, Running
from toolhub_service.adapters.mcp.requests import FastClient, RequestSender, is_modern
from toolhub_service.adapters.mcp.stdio import PIPE_REASONS, PipeProtocol
from toolhub_service.adapters.upstream import is_cancelled
from toolhub_service.domain.ports import Randomness

# Reconnects are exponential with full jitter (Brooker, "Exponential Backoff And Jitter"). The first is at once; a
# caller that waits may bring the next one forward, but not to less than `FLOOR_S` after the last; a connection that
# lasted `LASTED_S` starts the count anew.

FLOOR_S = 0.1
FIRST_S = 0.5
CAP_S = 30.0
LASTED_S = 20.0
_EXPONENT_MAX = 16


class Backoff:
    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self._failures = 0

    def failed(self) -> float:
        """Count a failure; seconds until the next try."""
        ceiling_s = min(CAP_S, FIRST_S * 2.0 ** min(self._failures, _EXPONENT_MAX))
        self._failures += 1
        return max(FLOOR_S, self._randomness.uniform(0.0, ceiling_s))

    def after_loss(self, for_s: float) -> float:
        """A connection was lost after so many seconds; seconds until the next try, 0 when it had lasted a while."""
        if for_s >= LASTED_S:
            self._failures = 0
        if self._failures:
            return self.failed()
        self._failures = 1
        return 0.0


for _name in ("client", "httpcore2", "httpx2", "mcp"):
    # They log what servers send, and URLs with their queries.
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_LAST_ANSWERS_S = 0.1
_MAY_FETCH = (
    "Its launcher may still be fetching the package (raise connect_timeout_s), or cannot reach its registry: set the "
    "variables of the proxy or CA in the hub's environment, or name others in pass_env."
)
_CLIENT = Implementation(name="tool-hub", version=__version__)
_NAME_MAX_CHARS = 100
# What the SDK declares for a session that has a callback for questions.
_MAY_BE_ASKED = ElicitationCapability(form=FormElicitationCapability(), url=UrlElicitationCapability())


WATCHED_MAX = 1_000


class Watched:
    """Resources of whose changes the server is to tell; of more than `WATCHED_MAX` the oldest are forgotten."""

    def __init__(self) -> None:
        self.uris: dict[str, asyncio.Event] = {}
        """Each with what is set once the server has been asked."""
        self.changed = asyncio.Event()

    def add(self, uri: str) -> asyncio.Event:
        if uri not in self.uris:
            if len(self.uris) >= WATCHED_MAX:
                # The oldest goes: whoever still wants it subscribes again at its next read.
                del self.uris[next(iter(self.uris))]
            self.uris[uri] = asyncio.Event()
            self.changed.set()
        return self.uris[uri]


@dataclass(frozen=True, slots=True)
class Deps:
    """What the connections of one link share."""

    terms: McpTerms
    http: HttpTransport | None
    """None for stdio."""
    randomness: Randomness
    changed: Callable[[], None]
    resource_changed: Callable[[str], None]
    """With its URI; empty: the list of resources."""
    watched: Watched
    running: Running = field(default_factory=Running)


class Connection:
    """Run once. `connected` is called when it can be used, `disconnected` at once when it is lost or left."""

    def __init__(
        self, deps: Deps, connected: Callable[[ClientSession, RequestSender], None], disconnected: Callable[[], None]
    ) -> None:
        self._deps = deps
        self._connected = connected
        self._disconnected = disconnected
        self._callbacks = Callbacks(deps.terms.relay, deps.running, form_of)
        self._declared = elicitation_callback(deps.terms.elicitation)
        self._over = asyncio.Event()
        self._is_disconnecting = False
        self._program: PipeProtocol | None = None
        self._bounded: BoundedTransport | None = None
        self._fast: FastClient | None = None
        self._handshake = asyncio.timeout(deps.terms.connect_timeout_s)
        self.was_connected = False
        self.why_over = ""  # For people and models; empty while nothing is wrong

    async def run(self) -> None:
        """Connect, wait until `leave` is called or the server is gone, and leave."""
        try:
            async with AsyncExitStack() as stack:
                await self._connect(stack)
                await self._over.wait()
        except asyncio.CancelledError:
            # Stray, from the SDK's scope around this very task, when it is not counted here after the scope was left.
            if is_cancelled():
                raise
            self.disconnect("The connection broke.")
        except Exception as error:  # noqa: BLE001  whatever the SDK raises ends this connection and nothing else
            self.disconnect(reason_of(error))
        finally:
            if self._program is not None and self.why_over in PIPE_REASONS:
                self.why_over = self._program.ended or self.why_over

    def disconnect(self, why: str) -> None:
        """Have `run` end once the connection is made; calls must not begin on it. The first reason counts."""
        self._disconnect(why)
        self._over.set()

    def disconnect_soon(self, why: str) -> None:
        """Leave once the answer that says why has reached the call that waits for it."""
        self._disconnect(why)
        asyncio.get_running_loop().call_later(_LAST_ANSWERS_S, self._over.set)

    def _disconnect(self, why: str) -> None:
        if not self._is_disconnecting:
            self._is_disconnecting = True
            # After the deadline the hub itself ends the program, and the reason is not that its pipes closed.
            self.why_over = self._too_slow if self._handshake.expired() else why
            self._disconnected()

    @property
    def _too_slow(self) -> str:
        where = self._deps.terms.where
        hint = f" {_MAY_FETCH}" if isinstance(where, StdioTerms) and where.is_launcher else ""
        return f"It did not answer the handshake within {self._deps.terms.connect_timeout_s:g} s.{hint}"

    def diagnostics(self) -> list[str]:
        return self._program.diagnostics() if self._program else []

    async def _connect(self, stack: AsyncExitStack) -> None:
        wanted = self._deps.terms.protocol
        try:
            async with self._handshake:
                dispatcher, session = await stack.enter_async_context(self._session())
        except TimeoutError:
            raise NotConnected(self._too_slow) from None
        spoken = session.protocol_version or ""
        # Compared by generation: within one, servers may answer with a neighbouring date (the handshake allows it).
        if wanted != "auto" and is_modern(wanted) != is_modern(spoken):
            raise NotConnected(f"The server speaks protocol {spoken}, but the source requires {wanted}.")
        if self._bounded is not None and self._bounded.was_away and not is_modern(spoken):
            raise NotConnected(self._bounded.last_error)  # An outage during the probe says nothing of the version.
        if is_modern(spoken):
            if _announces_list_changes(session):
                await stack.enter_async_context(following_lists(session, self._deps))
            stack.push_async_callback(_ended, asyncio.create_task(_follow_resources(session, self._deps)))
        if not self._is_disconnecting:
            self.was_connected = True
            declared = ClientCapabilities(elicitation=_MAY_BE_ASKED if self._declared else None)
            exchanges = self._bounded.exchanges if self._bounded is not None else None
            self._connected(session, RequestSender(dispatcher, spoken, _CLIENT, declared, self._fast, exchanges))

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[tuple[Outbound, ClientSession]]:
        """The SDK's session after the handshake, and the dispatcher that it shares with the hub's own requests."""
        async with self._dispatcher() as dispatcher:
            session = ClientSession(
                dispatcher=dispatcher,
                client_info=_CLIENT,
                elicitation_callback=self._callbacks.elicitation(self._declared),
                sampling_callback=self._callbacks.sampling(),
                list_roots_callback=self._callbacks.roots(),
                logging_callback=self._callbacks.logging(),
                message_handler=self._on_message,
            )
            async with session:
                await negotiate(session, self._deps.terms.protocol)
                yield dispatcher, session

    @asynccontextmanager
    async def _dispatcher(self) -> AsyncIterator[JSONRPCDispatcher[Any]]:
        where = self._deps.terms.where
        if isinstance(where, StdioTerms):
            program = self._program = PipeProtocol(self._deps.terms.max_message_bytes, self.disconnect)
            async with program.running(where):
                yield JSONRPCDispatcher(program.inbox, program.outbox)
            return
        assert self._deps.http is not None
        async with self._deps.http.connected(self.disconnect_soon) as (dispatcher, bounded, self._fast):
            self._bounded = bounded
            try:
                yield dispatcher
            except Exception as error:  # noqa: BLE001  the SDK's reason hides what the transport knows
                raise NotConnected(bounded.last_error or reason_of(error)) from None

    async def _on_message(self, message: IncomingMessage) -> None:
        match message:
            case ToolListChangedNotification() | PromptListChangedNotification():
                self._deps.changed()
            case ResourceListChangedNotification():
                self._deps.resource_changed("")
                self._deps.changed()
            case ResourceUpdatedNotification():
                self._deps.resource_changed(message.params.uri)
            case _:
                pass


async def negotiate(session: ClientSession, wanted: Protocol) -> None:
    """Agree on a protocol version, as the SDK's `Client` does in its modes `auto` and `legacy`.

    A server that does not answer server/discover as a modern one does gets the handshake of 2025-11-25. A fixed
    2026-07-28 is probed as well: adopted unasked, a dead server would count as connected.

    Raises MCPError, ValidationError or RuntimeError when there is no version in common.
    """
    if wanted == "2025-11-25":
        await session.initialize()
        return
    try:
        await session.discover()
    except (MCPError, ValidationError, RuntimeError) as error:
        # A handshake of 2025-11-25 would only bring the same refusal in other words.
        if isinstance(error, MCPError) and _is_modern_only(error):
            raise
        try:
            await session.initialize()
        except MCPError as refused:
            # A modern server that started slowly: it answered the probe after its timeout, and refuses a handshake.
            if refused.code != UNSUPPORTED_PROTOCOL_VERSION:
                raise
            await session.discover()


def _is_modern_only(error: MCPError) -> bool:
    """Whether the server refused each version that the hub speaks, the handshake's among them."""
    if error.code != UNSUPPORTED_PROTOCOL_VERSION:
        return False
    try:
        supported = UnsupportedProtocolVersionErrorData.model_validate(error.error.data).supported
    except ValidationError:
        return False
    # One that lists an older version, too, is worth the older handshake.
    return not any(version in HANDSHAKE_PROTOCOL_VERSIONS for version in supported)


def server_of(session: ClientSession) -> str:
    """`name version`, printable and cut; empty when the server does not name itself."""
    info = session.server_info
    shown = f"{info.name} {info.version}" if info else ""
    return "".join(character if character.isprintable() else "�" for character in shown)[:_NAME_MAX_CHARS].strip()


# In 2026-07-28 changes of lists come on a `subscriptions/listen` stream, opened again when it breaks. That it breaks
# says nothing of the connection (a proxy may cut idle streams), so calls in flight are left alone; what was missed
# meanwhile is unknown, so each new stream counts as a change.

_ACKNOWLEDGED_WITHIN_S = 10.0
_FIRST_WITHIN_S = 1.0  # How long a connection waits for its first stream before it is used without one


def _announces_list_changes(session: ClientSession) -> bool:
    known = session.server_capabilities
    listing = (known.tools, known.prompts, known.resources) if known else ()
    return any(feature is not None and feature.list_changed is True for feature in listing)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


@asynccontextmanager
async def following_lists(session: ClientSession, deps: Deps) -> AsyncIterator[None]:
    """Listens between entering and leaving, in a task of its own."""
    loop, backoff, is_open = asyncio.get_running_loop(), Backoff(deps.randomness), asyncio.Event()
    changed = deps.changed
    is_connected = False

    async def follow() -> None:
        subscription = listen(session, tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)
        async with asyncio.timeout(_ACKNOWLEDGED_WITHIN_S):
            events = await subscription.__aenter__()
        try:
            is_open.set()
            if is_connected:  # A stream that opens later than the connection may have missed changes.
                changed()
            async for event in events:
                if isinstance(event, ResourcesListChanged):
                    deps.resource_changed("")
                changed()
        finally:
            await subscription.__aexit__(None, None, None)

    async def follow_again_and_again() -> None:
        while True:
            began_s = loop.time()
            with suppress(MCPError, SubscriptionLost, TimeoutError):  # however it was lost, it is opened again
                await follow()
            await asyncio.sleep(backoff.after_loss(loop.time() - began_s))

    task = asyncio.create_task(follow_again_and_again())
    try:
        with suppress(TimeoutError):  # a server that never acknowledges the stream is used all the same
            async with asyncio.timeout(_FIRST_WITHIN_S):
                await is_open.wait()
        is_connected = True
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _follow_resources(session: ClientSession, deps: Deps) -> None:
    """One stream for all resources that are watched, opened anew when there is another. Until cancelled."""
    watched, backoff = deps.watched, Backoff(deps.randomness)

    async def follow(uris: tuple[str, ...]) -> None:
        with suppress(MCPError, SubscriptionLost, TimeoutError):  # its end is the news: the loop below opens another
            async with listen(session, resource_subscriptions=uris) as events:
                for uri in uris:
                    if (asked := watched.uris.get(uri)) is not None:
                        asked.set()
                async for event in events:
                    if isinstance(event, ResourceUpdated):
                        deps.resource_changed(event.uri)

    while True:
        watched.changed.clear()
        uris, began_s = tuple(watched.uris), asyncio.get_running_loop().time()
        waiting = asyncio.create_task(watched.changed.wait())
        following = {asyncio.create_task(follow(uris))} if uris else set()
        try:
            await asyncio.wait({waiting, *following}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (waiting, *following):
                task.cancel()
            await asyncio.wait({waiting, *following})
        if not watched.changed.is_set():  # it was lost: what was missed meanwhile is unknown
            await asyncio.sleep(backoff.after_loss(asyncio.get_running_loop().time() - began_s))
            for uri in uris:
                deps.resource_changed(uri)
