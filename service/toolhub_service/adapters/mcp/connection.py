"""One connection to an MCP server, from entering to leaving the SDK's client: all in the task of `run`.

The SDK's client lives in the task that enters it: its cancel scopes must be left there, and when a server dies it
cancels that very task. So that task does nothing else, a connection is never revived, and `run` ends by returning,
whatever the SDK did: the one exception that leaves it is a cancellation from outside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mcp import Client
from mcp.client.extension import ClientExtension
from mcp.client.session import ElicitationFnT, IncomingMessage
from mcp_types import Implementation, ToolListChangedNotification

from toolhub_service import __version__
from toolhub_service.adapters.mcp import era
from toolhub_service.adapters.mcp.bounded import BoundedTransport
from toolhub_service.adapters.mcp.http import HttpRoad
from toolhub_service.adapters.mcp.lane import Lane
from toolhub_service.adapters.mcp.listening import Listening
from toolhub_service.adapters.mcp.reasons import NotConnected, reason_of
from toolhub_service.adapters.mcp.stdio import PIPE_REASONS, StdioTransport
from toolhub_service.adapters.mcp.terms import McpTerms, StdioTerms
from toolhub_service.adapters.mcp.wire import ShortWay
from toolhub_service.domain.ports import Randomness

for _name in ("client", "httpcore2", "httpx2", "mcp"):
    # They log what servers send, and URLs with their queries.
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_LAST_ANSWERS_S = 0.1


@dataclass(frozen=True, slots=True)
class Means:
    """What the connections of one link share."""

    terms: McpTerms
    road: HttpRoad | None
    """None for stdio."""
    randomness: Randomness
    on_elicit: ElicitationFnT | None
    extensions: Sequence[ClientExtension]
    changed: Callable[[], None]


class Connection:
    """Run once. `stands` is told when it stands, `falls` at once when it is lost or left."""

    def __init__(self, means: Means, stands: Callable[[Client], None], falls: Callable[[], None]) -> None:
        self._means = means
        self._stands = stands
        self._falls = falls
        self._over = asyncio.Event()
        self._is_falling = False
        self._program: StdioTransport | None = None
        self._bounded: BoundedTransport | None = None
        self._lane: Lane | None = None
        self._handshake = asyncio.timeout(means.terms.connect_timeout_s)
        self.stood = False
        self.why_over = ""
        """For people and models; empty while nothing is wrong."""

    async def run(self) -> None:
        """Connect, stand until `leave` is called or the server is gone, and leave."""
        try:
            async with AsyncExitStack() as stack:
                await self._connected(stack)
                await self._over.wait()
        except asyncio.CancelledError:
            # Stray, from the SDK's scope around this very task, when it is not counted here after the scope was left.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self.leave("The connection broke.")
        except Exception as error:  # noqa: BLE001  whatever the SDK raises ends this connection and nothing else
            self.leave(reason_of(error))
        finally:
            if self._program is not None and self.why_over in PIPE_REASONS:
                self.why_over = self._program.ended or self.why_over

    def leave(self, why: str) -> None:
        """Have `run` end once the connection stands; calls must not begin on it. The first reason counts."""
        self._fall(why)
        self._over.set()

    def leave_soon(self, why: str) -> None:
        """Leave once the answer that told why has reached the call that waits for it."""
        self._fall(why)
        asyncio.get_running_loop().call_later(_LAST_ANSWERS_S, self._over.set)

    def _fall(self, why: str) -> None:
        if not self._is_falling:
            self._is_falling = True
            # After the deadline it is the hub that ends the program, of which its pipes tell.
            self.why_over = self._too_slow if self._handshake.expired() else why
            self._falls()

    @property
    def _too_slow(self) -> str:
        return f"It did not answer the handshake within {self._means.terms.connect_timeout_s:g} s."

    def lane(self, *, is_modern: bool) -> ShortWay | None:
        """Over HTTP only where there is no session."""
        if self._program is not None:
            return self._program.wire.lane
        return self._lane if is_modern else None

    def diagnostics(self) -> list[str]:
        return self._program.diagnostics() if self._program else []

    async def _connected(self, stack: AsyncExitStack) -> None:
        terms = self._means.terms
        try:
            async with self._handshake:
                client = await stack.enter_async_context(self._client())
        except TimeoutError:
            raise NotConnected(self._too_slow) from None
        if not era.fits(terms.protocol, client.protocol_version):
            raise NotConnected(f"It speaks {client.protocol_version}, the source is fixed to {terms.protocol}.")
        if self._bounded is not None and self._bounded.was_away and not era.is_modern(client.protocol_version):
            raise NotConnected(self._bounded.trouble)  # An outage during the probe says nothing of the era.
        if era.is_modern(client.protocol_version) and era.announces_changes(client):
            await stack.enter_async_context(Listening(client, self._means.randomness, self._means.changed))
        if not self._is_falling:
            self.stood = True
            self._stands(client)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        means = self._means
        async with self._transport() as streams:
            client = Client(
                _Given(streams),
                mode=era.mode_of(means.terms.protocol),
                cache=None,
                client_info=Implementation(name="tool-hub", version=__version__),
                elicitation_callback=means.on_elicit,
                message_handler=self._heard,
                extensions=means.extensions or None,
            )
            async with client:
                yield client

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        where = self._means.terms.where
        if isinstance(where, StdioTerms):
            self._program = StdioTransport(where, self._means.terms.max_message_bytes, self.leave)
            async with self._program as streams:
                yield streams
            return
        assert self._means.road is not None
        async with self._means.road.transport(self.leave_soon) as (streams, bounded, self._lane):
            self._bounded = bounded
            try:
                yield streams
            except Exception as error:  # noqa: BLE001  the SDK's reason hides what the transport knows
                raise NotConnected(bounded.trouble or reason_of(error)) from None

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._means.changed()


class _Given:
    """Streams that stand already, as the SDK's client wants to enter them."""

    def __init__(self, streams: Any) -> None:
        self._streams = streams

    async def __aenter__(self) -> Any:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        return None
