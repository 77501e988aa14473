"""One connection to an MCP server. The task of `run` enters and leaves the SDK's session.

The SDK's session belongs to the task that enters it: its cancel scopes must be left there, and it cancels that task
when a server dies. So that task does nothing else, a connection is never reused, and `run` returns whatever the SDK
did; it raises only when it is cancelled from outside.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from mcp import ClientSession, MCPError
from mcp.client.session import IncomingMessage
from mcp.shared.dispatcher import Outbound
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
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
from toolhub_service.adapters.mcp.kind import Protocol, StdioTerms
from toolhub_service.adapters.mcp.link_state import Deps
from toolhub_service.adapters.mcp.list_changes import (
    announces_list_changes,
    cancel_and_wait,
    follow_resources,
    following_lists,
)
from toolhub_service.adapters.mcp.questions.elicitation import form_of
from toolhub_service.adapters.mcp.questions.relay import Callbacks
from toolhub_service.adapters.mcp.questions.session_callback import elicitation_callback
from toolhub_service.adapters.mcp.requests import FastClient, RequestSender, is_modern
from toolhub_service.adapters.mcp.transports.http import BoundedTransport
from toolhub_service.adapters.mcp.transports.launchers import broken_cache_advice, installing, last_line
from toolhub_service.adapters.mcp.transports.stdio import PIPE_REASONS, PipeProtocol
from toolhub_service.adapters.upstream import is_cancelled, write_json

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
            if announces_list_changes(session):
                await stack.enter_async_context(following_lists(session, self._deps))
            stack.push_async_callback(cancel_and_wait, asyncio.create_task(follow_resources(session, self._deps)))
        if not self._is_disconnecting:
            self.was_connected = True
            declared = ClientCapabilities(elicitation=_MAY_BE_ASKED if self._declared else None)
            exchanges = self._bounded.exchanges if self._bounded is not None else None
            # Over HTTP a call of the older version belongs to a session, which is the SDK's.
            fast = self._program.calls if self._program is not None else self._fast if is_modern(spoken) else None
            self._connected(session, RequestSender(dispatcher, spoken, _CLIENT, declared, fast, exchanges))

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
        async with self._deps.http.connect(self.disconnect_soon) as (dispatcher, bounded, self._fast):
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
        version = named_version(f"{refused.error.message} {write_json(refused.error.data)!r} {refusal_text()}")
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
