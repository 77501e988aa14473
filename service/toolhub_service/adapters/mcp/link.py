"""A warm connection to one MCP server, made again whenever it is lost.

One owner task a server starts one connection after another; the task of a connection alone enters and leaves the SDK's
`Client` (`connection.py`), so that what the SDK does to that task when a server dies (a stray cancellation, an
ExceptionGroup; python-sdk #3560, #3522) ends there: the owner itself is only ever cancelled by `close`.

How to call through a session. Use the session's client at the level of `send_request`:

    await session.client.session.send_request(
        CallToolRequest(params=CallToolRequestParams(name=…, arguments=…, input_responses=…, request_state=…, _meta=…)),
        _RESULT,                       # TypeAdapter(CallToolResult | InputRequiredResult), made once a module
        request_read_timeout_seconds=left_s,
        progress_callback=…,
    )

It stamps era, headers and trace context, and gives an InputRequiredResult as it is. `Client.call_tool` answers
questions by itself and sends the call again; `ClientSession.call_tool` validates outputs, which costs a hidden
tools/list for a tool that has not been listed on this connection and a RuntimeError where the schema does not fit; the
hub validates outputs itself. Listing: `client.list_tools(cursor=…)` (nothing is cached); in the modern era it also
teaches the session which arguments are mirrored into headers, so list once for each `session.generation` before the
first call, else a server may answer -32020 (HEADER_MISMATCH; it has not run the call: list, and send it once more).

What a call may raise: `MCPError` (`breakage.breakage_of(error)` says what broke on the way and whether the request can
have been taken; -32001 is its own timeout; -32000 a lost connection), `pydantic.ValidationError` (the answer is not
MCP), TimeoutError. When the server does not know the session any more the link notices that by itself (`NO_SESSION`);
for other signs of it call `lost(session, why)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mcp import Client
from mcp.client.extension import ClientExtension
from mcp.client.session import ElicitationFnT

from toolhub_service.adapters.mcp import era
from toolhub_service.adapters.mcp.backoff import FLOOR_S, Backoff
from toolhub_service.adapters.mcp.connection import Connection, Means
from toolhub_service.adapters.mcp.http import HttpRoad
from toolhub_service.adapters.mcp.questions import answering
from toolhub_service.adapters.mcp.terms import HttpTerms, McpTerms
from toolhub_service.adapters.mcp.wire import ShortWay
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.ports import Randomness
from toolhub_service.guards.secrets import Redactor

_LEAVE_WITHIN_S = 5.0
_STOPPED = "The hub has stopped the source."


@dataclass(frozen=True, slots=True, eq=False)
class McpSession:
    """A connection that stands. Valid until it is lost; calls on it fail then, at once."""

    client: Client
    is_modern: bool
    """The era of 2026-07-28: no sessions, questions by InputRequiredResult."""
    protocol: str
    """The version that was agreed on."""
    server: str
    """`name version` as the server calls itself, untrusted, at most 100 characters; empty when it does not."""
    generation: int
    """Counts the link's connections, from 1."""
    lane: ShortWay | None = None
    """A shorter way for calls; over HTTP in the modern era alone."""


class McpLink:
    """Keeps one server connected. All methods belong to the loop that `start` ran on."""

    def __init__(
        self,
        terms: McpTerms,
        randomness: Randomness,
        *,
        on_elicit: ElicitationFnT | None = None,
        extensions: Sequence[ClientExtension] = (),
    ) -> None:
        """`on_elicit` answers the server's questions instead of what `terms.elicitation` says; not with `decline`."""
        declines = terms.elicitation == "decline"
        self._terms = terms
        self._redactor = Redactor(terms.secrets)
        self._said: list[str] = []
        self._shown: tuple[str, ...] = ()
        self._means = Means(
            terms=terms,
            road=HttpRoad(terms.where, terms.max_message_bytes) if isinstance(terms.where, HttpTerms) else None,
            randomness=randomness,
            on_elicit=None if declines else on_elicit or answering(terms.elicitation),
            extensions=tuple(extensions),
            changed=self._tell_changed,
        )
        self._backoff = Backoff(randomness)
        self._changed: list[Callable[[], None]] = []
        self._owner: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        """Of the connection."""
        self._session: McpSession | None = None
        self._turn = asyncio.Event()
        """Set, and replaced, whenever an attempt has succeeded or failed."""
        self._hurry = asyncio.Event()
        self._connects = 0
        self._attempts = 0
        self._next_try_s = 0.0
        self._closed = asyncio.Event()
        self._trouble = ""

    @property
    def is_connected(self) -> bool:
        return self._session is not None

    @property
    def connects(self) -> int:
        """How many connections have stood."""
        return self._connects

    def listen(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when the server says that its tools changed, and whenever they may have: when a
        connection stands that is not the first, or not at the first try; and when a lost one could not be replaced at
        once, so that nobody takes the tools for callable until they are due to be read."""
        self._changed.append(changed)

    def start(self) -> None:
        """Begin to connect; returns at once."""
        if self._owner is None:
            self._owner = asyncio.get_running_loop().create_task(self._own(), name=f"mcp:{self._terms.name}")

    async def close(self) -> None:
        """Leave the server, end its processes; bounded (about 5 s). Calls in flight fail."""
        self._closed.set()
        self._hurry.set()
        if self._connection is not None:
            self._connection.leave(_STOPPED)
            if self._task is not None and not self._connection.stood:
                self._task.cancel()
        self._end_turn()
        if self._owner is not None:
            await asyncio.wait({self._owner}, timeout=_LEAVE_WITHIN_S)
            self._owner.cancel()
            await asyncio.wait({self._owner}, timeout=_LEAVE_WITHIN_S)

    async def session(self, deadline_s: float) -> McpSession:
        """The connection that stands, or the one that the attempt under way gives before `deadline_s` (loop clock).

        In a pause between attempts the next one is hurried.

        Raises:
            ToolFailure: TOOL_UNAVAILABLE, with `retry_after_s` and a reason fit for models and operators.
        """
        session = self._session or await self._next_session(deadline_s)
        if session is None:
            raise self._unavailable()
        return session

    def lost(self, session: McpSession, why: str) -> None:
        """This connection is of no use any more: leave it and make another. `why` without text of exceptions."""
        if session is self._session and self._connection is not None:
            self._connection.leave(why)

    def diagnostics(self) -> tuple[str, ...]:
        """The tail of standard error, state, what went wrong last; secrets hidden."""
        session = self._session
        state = f"connected: {session.server or 'a server'} speaks {session.protocol}" if session else "not connected"
        lines = [f"{self._terms.endpoint}: {state}", f"connections: {self._connects} in {self._attempts} attempts"]
        if self._trouble:
            lines.append(f"last trouble: {self._trouble}")
        said = self._connection.diagnostics() if self._connection else []
        return (*self._clean_tail(said), *map(self._redactor.text, lines))  # the last of them count most

    def _clean_tail(self, said: list[str]) -> tuple[str, ...]:
        """Looked through for secrets once, and together: one by one the lines take three times as long."""
        if said != self._said:
            self._said = said
            self._shown = tuple(self._redactor.text("\n".join(said)).split("\n")) if said else ()
        return self._shown

    async def _next_session(self, deadline_s: float) -> McpSession | None:
        if not self._closed.is_set():
            self._hurry.set()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline_s):
                    await self._turn.wait()
        return self._session

    async def _own(self) -> None:
        """One connection after another, each in a task of its own, until the link is closed."""
        has_stood = False
        while not self._closed.is_set():
            began_s = _now_s()
            self._attempts += 1
            connection = self._connection = Connection(self._means, self._stands, self._falls)
            await self._run(connection)
            self._trouble = connection.why_over
            if self._closed.is_set():
                return
            if has_stood and not connection.stood:
                self._tell_changed()
            has_stood = connection.stood
            pause_s = self._backoff.stood(_now_s() - began_s) if connection.stood else self._backoff.failed()
            await self._pause(pause_s, has_failed=not connection.stood)

    async def _run(self, connection: Connection) -> None:
        self._task = asyncio.create_task(connection.run(), name=f"mcp:{self._terms.name}:connection")
        try:
            await asyncio.wait({self._task})
        finally:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_LEAVE_WITHIN_S)
            self._session = None

    async def _pause(self, pause_s: float, *, has_failed: bool) -> None:
        """Wait for the next try; a caller who waits ends that after the floor."""
        self._next_try_s = _now_s() + pause_s
        if has_failed:
            self._hurry.clear()  # Who hurried this try hears now that it failed.
            self._end_turn()
        if pause_s <= 0:
            return
        await asyncio.sleep(min(FLOOR_S, pause_s))
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._next_try_s):
                await self._hurry.wait()

    def _stands(self, client: Client) -> None:
        self._hurry.clear()
        self._connects += 1
        protocol = client.protocol_version
        self._session = McpSession(
            client=client,
            is_modern=era.is_modern(protocol),
            protocol=protocol,
            server=era.server_of(client),
            generation=self._connects,
            lane=self._connection.lane(is_modern=era.is_modern(protocol)) if self._connection else None,
        )
        self._end_turn()
        if self._attempts > 1:
            self._tell_changed()

    def _falls(self) -> None:
        """No call may begin any more. The leaving is given a while, so that it cannot keep the next connection away."""
        self._session = None
        if self._task is not None:
            asyncio.get_running_loop().call_later(_LEAVE_WITHIN_S, self._task.cancel)

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    def _tell_changed(self) -> None:
        for changed in self._changed:
            changed()

    def _unavailable(self) -> ToolFailure:
        if self._closed.is_set():
            return refuse(
                ErrorKind.TOOL_UNAVAILABLE,
                f"The source {self._terms.name} has been stopped. Use another tool.",
                retryable=False,
                source=self._terms.name,
            )
        reason = self._trouble or "The connection is still being made."
        return refuse(
            ErrorKind.TOOL_UNAVAILABLE,
            f"The MCP server of {self._terms.name} is not connected. {reason} Use another tool, or try again later.",
            retry_after_s=round(max(FLOOR_S, self._next_try_s - _now_s()), 2),
            source=self._terms.name,
            reason=reason,
        )


def _now_s() -> float:
    return asyncio.get_running_loop().time()
