"""One connection to an MCP server. The task of `run` enters and leaves the SDK's session.

The SDK's session belongs to the task that enters it: its cancel scopes must be left there, and it cancels that task
when a server dies. So that task does nothing else, a connection is never reused, and `run` returns whatever the SDK
did; it raises only when it is cancelled from outside.
"""

from __future__ import annotations

import asyncio
import logging
import re
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
    InitializeRequest,
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
from toolhub_service.adapters.mcp.failures import NotConnected, breakage_of, reason_of, reason_of_answer
from toolhub_service.adapters.mcp.kind import McpTerms, Protocol, StdioTerms
from toolhub_service.adapters.mcp.questions.elicitation import elicitation_callback, form_of
from toolhub_service.adapters.mcp.questions.relay import Callbacks, Running
from toolhub_service.adapters.mcp.requests import FastClient, RequestSender, is_modern
from toolhub_service.adapters.mcp.wire.http import BoundedTransport, HttpTransport
from toolhub_service.adapters.mcp.wire.launchers import broken_cache_advice, installing, last_line
from toolhub_service.adapters.mcp.wire.stdio import PIPE_REASONS, PipeProtocol
from toolhub_service.adapters.upstream import is_cancelled, written
from toolhub_service.domain.ports import Randomness

# Reconnects are exponential with full jitter (Brooker, "Exponential Backoff And Jitter"). The first is immediate; a
# waiting caller may bring the next one forward, but not to less than `FLOOR_S` after the last; a connection that lasted
# `LASTED_S` resets the count.

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
        """Count a failure. Return the seconds until the next attempt."""
        ceiling_s = min(CAP_S, FIRST_S * 2.0 ** min(self._failures, _EXPONENT_MAX))
        self._failures += 1
        return max(FLOOR_S, self._randomness.uniform(0.0, ceiling_s))

    def after_loss(self, for_s: float) -> float:
        """Count a lost connection. Return the seconds until the next attempt; 0 after one that had lasted a while."""
        if for_s >= LASTED_S:
            self._failures = 0
        if self._failures:
            return self.failed()
        self._failures = 1
        return 0.0


for _name in ("client", "httpcore2", "httpx2", "mcp"):
    # These loggers write what servers send, and URLs with their queries.
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_LAST_ANSWERS_S = 0.1
_MAY_FETCH = (
    "Its launcher may still be fetching the package (raise connect_timeout_s), or cannot reach its registry: set the "
    "variables of the proxy or CA in the hub's environment, or name others in pass_env."
)
_SAID_NOTHING = "It wrote nothing on standard error: run its command in a shell to see why."
_CLIENT = Implementation(name="tool-hub", version=__version__)
_NAME_MAX_CHARS = 100
_VERSION = re.compile(r"\b20\d\d-\d\d-\d\d\b")
# What the SDK declares for a session with a callback for questions.
_MAY_BE_ASKED = ElicitationCapability(form=FormElicitationCapability(), url=UrlElicitationCapability())


WATCHED_MAX = 1_000


class Watched:
    """Resources whose changes the server should report; beyond `WATCHED_MAX` the oldest are dropped."""

    def __init__(self) -> None:
        self.uris: dict[str, asyncio.Event] = {}
        """By URI, an event that is set once the server has been asked."""
        self.changed = asyncio.Event()

    def add(self, uri: str) -> asyncio.Event:
        if uri not in self.uris:
            if len(self.uris) >= WATCHED_MAX:
                # Drop the oldest: a client that still wants it subscribes again at its next read.
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
    """Called with the URI; an empty one stands for the list of resources."""
    watched: Watched
    running: Running = field(default_factory=Running)


class Connection:
    """Runs once. It calls `connected` when it is usable, and `disconnected` as soon as it is lost or left."""

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
        self._began_s = asyncio.get_running_loop().time()
        self.was_connected = False
        self.why_over = ""  # for people and models; empty while nothing is wrong

    async def run(self) -> None:
        """Connect, wait until `leave` is called or the server is gone, and disconnect."""
        try:
            async with AsyncExitStack() as stack:
                await self._connect(stack)
                await self._over.wait()
        except asyncio.CancelledError:
            # Not cancelled from outside: a stray cancellation from the SDK's scope around this task, after the scope
            # was left.
            if is_cancelled():
                raise
            self.disconnect("The connection broke.")
        except Exception as error:  # noqa: BLE001  whatever the SDK raises ends this connection and nothing else
            self.disconnect(reason_of(error))
        finally:
            if self._program is not None and self.why_over in PIPE_REASONS:
                self.why_over = self._program.ended or self.why_over
                if not self.was_connected:
                    self.why_over = f"{self.why_over} {last_line(self._program.errors()) or _SAID_NOTHING}"
            if self._may_install and self._program is not None and not self.was_connected:
                advice = broken_cache_advice(self._program.errors())
                self.why_over = f"{self.why_over} {advice}".strip()

    def disconnect(self, why: str) -> None:
        """Make `run` end once the connection is made; calls must not begin on it. The first reason counts."""
        self._disconnect(why)
        self._over.set()

    def disconnect_soon(self, why: str) -> None:
        """Disconnect once the answer that contains the reason has reached the call that waits for it."""
        self._disconnect(why)
        asyncio.get_running_loop().call_later(_LAST_ANSWERS_S, self._over.set)

    def _disconnect(self, why: str) -> None:
        if not self._is_disconnecting:
            self._is_disconnecting = True
            # After the deadline the hub itself ends the program, so closed pipes are not the reason.
            self.why_over = self._too_slow if self._handshake.expired() else why
            self._disconnected()

    @property
    def installing(self) -> str:
        """Return what a launcher says that has not answered yet; empty for other programs, and at any other time."""
        if not self._may_install or self._program is None or self.was_connected or self.why_over:
            return ""
        return installing(self._program.errors(), asyncio.get_running_loop().time() - self._began_s)

    @property
    def _may_install(self) -> bool:
        where = self._deps.terms.where
        return isinstance(where, StdioTerms) and where.may_install

    @property
    def _too_slow(self) -> str:
        where = self._deps.terms.where
        hint = f" {_MAY_FETCH}" if isinstance(where, StdioTerms) and where.is_launcher else ""
        return f"It did not answer the handshake within {self._deps.terms.connect_timeout_s:g} s.{hint}"

    @property
    def was_unauthorized(self) -> bool:
        """Return whether it could not be made because the server wants other credentials, or any (401)."""
        return not self.was_connected and self._bounded is not None and self._bounded.was_unauthorized

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
        # Compared by generation: within one, servers may answer with a neighbouring date, as the handshake allows.
        if wanted != "auto" and is_modern(wanted) != is_modern(spoken):
            raise NotConnected(f"The server speaks protocol {spoken}, but the source requires {wanted}.")
        if self._bounded is not None and self._bounded.was_away and not is_modern(spoken):
            raise NotConnected(self._bounded.last_error)  # an outage during the probe does not reveal the version
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
        """Yield the SDK's session after the handshake, and the dispatcher that it shares with the hub's own
        requests."""
        async with self._dispatcher() as dispatcher:
            session = _Session(
                dispatcher=dispatcher,
                client_info=_CLIENT,
                elicitation_callback=self._callbacks.elicitation(self._declared),
                sampling_callback=self._callbacks.sampling(),
                list_roots_callback=self._callbacks.roots(),
                logging_callback=self._callbacks.logging(),
                message_handler=self._on_message,
            )
            async with session:
                await negotiate(session, self._deps.terms.protocol, self._refusal_text)
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
                url = self._deps.http.url
                refused = reason_of_answer(bounded.refusal, url) if bounded.refusal else reason_of(error)
                raise NotConnected(bounded.last_error or refused) from None

    def _refusal_text(self) -> str:
        """Return what an HTTP answer says by which the server refused the handshake; empty without one."""
        refusal = self._bounded.refusal if self._bounded is not None else None
        return refusal["text"] if refusal else ""

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


async def negotiate(session: ClientSession, wanted: Protocol, refusal_text: Callable[[], str]) -> None:
    """Agree on a protocol version, as the SDK's `Client` does in its modes `auto` and `legacy`.

    A server that does not answer server/discover like a modern one gets the handshake of 2025-11-25, and where its
    refusal names older versions, that of the newest of them. A fixed 2026-07-28 is probed as well: without that, a dead
    server would count as connected. `refusal_text` returns what an HTTP answer says that was no JSON-RPC.

    Raises MCPError, ValidationError or RuntimeError when there is no version in common.
    """
    if wanted == "2025-11-25":
        await _initialize(session, refusal_text)
        return
    try:
        await session.discover()
    except (MCPError, ValidationError, RuntimeError) as error:
        # A handshake of 2025-11-25 would be refused in the same way.
        if isinstance(error, MCPError) and _is_modern_only(error):
            raise
        try:
            await _initialize(session, refusal_text)
        except MCPError as refused:
            # A modern server that started slowly answers the probe after its timeout, and refuses a handshake.
            if refused.code != UNSUPPORTED_PROTOCOL_VERSION:
                raise
            await session.discover()


async def _initialize(session: ClientSession, refusal_text: Callable[[], str]) -> None:
    """Make the handshake with the newest version, or with one that the refusal names. Raises as `negotiate`."""
    try:
        await session.initialize()
    except MCPError as refused:
        version = named_version(f"{refused.error.message} {written(refused.error.data)!r} {refusal_text()}")
        if not version or breakage_of(refused) or not isinstance(session, _Session):
            raise
        session.offered_version = version
        await session.initialize()


class _Session(ClientSession):
    """The SDK's session, which can offer an older version than its newest."""

    offered_version = ""
    """Offered by the next handshake; empty: the newest."""

    async def send_request(self, request: Any, *more: Any, **options: Any) -> Any:
        if self.offered_version and isinstance(request, InitializeRequest):
            request.params.protocol_version = self.offered_version
        return await super().send_request(request, *more, **options)


def named_version(text: str) -> str:
    """Return the newest version of the older handshake that a refusal names, besides the refused one; empty: none."""
    named = set(_VERSION.findall(text))
    return max((version for version in HANDSHAKE_PROTOCOL_VERSIONS[:-1] if version in named), default="")


def _is_modern_only(error: MCPError) -> bool:
    """Return whether the server refused each version that the hub speaks, the handshake's included."""
    if error.code != UNSUPPORTED_PROTOCOL_VERSION:
        return False
    try:
        supported = UnsupportedProtocolVersionErrorData.model_validate(error.error.data).supported
    except ValidationError:
        return False
    # If it also lists an older version, the older handshake is tried.
    return not any(version in HANDSHAKE_PROTOCOL_VERSIONS for version in supported)


def server_of(session: ClientSession) -> str:
    """Return `name version`, printable and truncated; empty when the server does not name itself."""
    info = session.server_info
    shown = f"{info.name} {info.version}" if info else ""
    return "".join(character if character.isprintable() else "�" for character in shown)[:_NAME_MAX_CHARS].strip()


# In 2026-07-28 changes of lists arrive on a `subscriptions/listen` stream, which is reopened when it breaks. A broken
# stream does not mean a broken connection (a proxy may cut idle streams), so running calls are left alone. Changes may
# have been missed meanwhile, so each new stream counts as a change.

_ACKNOWLEDGED_WITHIN_S = 10.0
_FIRST_WITHIN_S = 1.0  # how long a connection waits for its first stream before it is used without one


def _announces_list_changes(session: ClientSession) -> bool:
    known = session.server_capabilities
    listing = (known.tools, known.prompts, known.resources) if known else ()
    return any(feature is not None and feature.list_changed is True for feature in listing)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


@asynccontextmanager
async def following_lists(session: ClientSession, deps: Deps) -> AsyncIterator[None]:
    """Listen while the context is active, in a separate task."""
    loop, backoff, is_open = asyncio.get_running_loop(), Backoff(deps.randomness), asyncio.Event()
    changed = deps.changed
    is_connected = False

    async def follow() -> None:
        subscription = listen(session, tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)
        async with asyncio.timeout(_ACKNOWLEDGED_WITHIN_S):
            events = await subscription.__aenter__()
        try:
            is_open.set()
            if is_connected:  # a stream that opens later than the connection may have missed changes
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
            with suppress(MCPError, SubscriptionLost, TimeoutError):  # reopened, whatever the reason of the loss
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
    """Keep one stream for all watched resources, reopened when another one is added. Runs until cancelled."""
    watched, backoff = deps.watched, Backoff(deps.randomness)

    async def follow(uris: tuple[str, ...]) -> None:
        with suppress(MCPError, SubscriptionLost, TimeoutError):  # whatever ended it, the loop below opens another
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
        if not watched.changed.is_set():  # it was lost, and changes may have been missed meanwhile
            await asyncio.sleep(backoff.after_loss(asyncio.get_running_loop().time() - began_s))
            for uri in uris:
                deps.resource_changed(uri)
