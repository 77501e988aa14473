"""A warm connection to one MCP server, re-established whenever it is lost.

One owner task per server starts one connection after another. Each connection has a task, which alone enters and leaves
the SDK's session (`connection.py`), so that the SDK's reactions to a dying server (a stray cancellation, an
ExceptionGroup; python-sdk #3560, #3522) end there: only `close` cancels the owner.

Callers send by `send`, which leaves a connection that it finds broken, or whose session is unknown to the server; the
link itself notices a program that ended and a session that HTTP refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Unpack

from mcp import ClientSession, MCPError
from mcp.shared.inbound import x_mcp_header_map
from mcp_types import ServerCapabilities

from toolhub_service.adapters.definitions import Overrides
from toolhub_service.adapters.mcp import failures
from toolhub_service.adapters.mcp.backoff import FLOOR_S, Backoff
from toolhub_service.adapters.mcp.connection import Connection, server_of
from toolhub_service.adapters.mcp.failures import Breakage
from toolhub_service.adapters.mcp.kind import HttpTerms, McpTerms, StdioTerms
from toolhub_service.adapters.mcp.link_state import Deps, Watched
from toolhub_service.adapters.mcp.login.list_login import ListLogin
from toolhub_service.adapters.mcp.login.user_sessions import Holder, UserSessions
from toolhub_service.adapters.mcp.questions.elicitation import Answering
from toolhub_service.adapters.mcp.questions.relay import Running
from toolhub_service.adapters.mcp.requests import RequestSender, SendOptions, is_modern
from toolhub_service.adapters.mcp.transports.http import HttpTransport
from toolhub_service.adapters.upstream import is_cancelled, quote_foreign
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import Randomness
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.secrets import Redactor

_LEAVE_WITHIN_S = 5.0
_REASON_MAX_CHARS = 500
_FIRST_WORD_S = 15.0
_STOPPED = "The hub has stopped the source."
# Before the next attempt that nobody asked for at a server that wants a login.
_UNAUTHORIZED_PAUSE_S = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class McpSession:
    """A connection in use. It is valid until it is lost; then its calls fail at once."""

    requests: RequestSender
    is_modern: bool
    """It speaks 2026-07-28 or later: no sessions, questions by InputRequiredResult."""
    protocol: str
    """The negotiated version."""
    server: str
    """`name version` as the server calls itself, untrusted, at most 100 characters; empty when it does not."""
    extensions: frozenset[str] = frozenset()
    """Identifiers of the extensions that the server declares."""
    features: frozenset[str] = frozenset()
    """Declared features besides tools: `prompts`, `resources`, `resources.subscribe`, `completions`."""


class McpLink:
    """Keeps one server connected. All methods belong to the loop that `start` ran on."""

    def __init__(self, terms: McpTerms, randomness: Randomness, holder: Holder | None = None) -> None:
        """`holder`: of the credential of the one caller that the connection serves, or of the source's own login; None:
        the connection has the credentials of the configuration."""
        where = terms.where
        http = HttpTransport(where, terms.max_message_bytes, holder) if isinstance(where, HttpTerms) else None
        self.terms = terms
        self._redactor = Redactor(terms.secrets)
        self._tail: list[str] = []
        self._shown: tuple[str, ...] = ()
        self.watched = Watched()
        self.on_resource_change: Callable[[str], None] = lambda _: None
        """Called with a resource's URI when the server reports its change; empty: the list changed."""
        self._deps = Deps(
            terms=terms,
            http=http,
            randomness=randomness,
            changed=self._notify_changed,
            running=Running(),
            resource_changed=self._notify_resource_changed,
            watched=self.watched,
        )
        self._backoff = Backoff(randomness)
        self._changed: list[Callable[[], None]] = []
        self._reconnect_task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None  # of the connection
        self._session: McpSession | None = None
        self._attempt_done = asyncio.Event()  # set and replaced when an attempt has succeeded or failed
        self._retry_now = asyncio.Event()
        self.connects = 0  # how many connections were made
        self._attempts = 0
        self._next_try_s = 0.0
        self._closed = asyncio.Event()
        self._last_error = ""
        self._is_unauthorized = False  # why the last attempt failed
        self._carries_login = holder is not None

    @property
    def running(self) -> Running:
        """Return the calls that run on the server."""
        return self._deps.running

    @property
    def is_connected(self) -> bool:
        return self._session is not None

    def listen(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when the server reports that its tools changed, and whenever they may have: after each
        connection except the first one at the first attempt; and when a lost connection could not be replaced at once,
        so that its tools do not count as callable until the next scheduled reading."""
        self._changed.append(changed)

    def start(self) -> None:
        """Begin to connect; returns at once."""
        if self._reconnect_task is None:
            self._reconnect_task = asyncio.get_running_loop().create_task(
                self._keep_connected(), name=f"mcp:{self.terms.name}"
            )

    async def close(self) -> None:
        """Disconnect from the server and end its processes; takes at most about 5 s. Running calls fail."""
        self._closed.set()
        self._retry_now.set()
        if self._connection is not None:
            self._connection.disconnect(_STOPPED)
            if self._task is not None and not self._connection.was_connected:
                # Only while it connects: a working connection gets time to close properly.
                self._task.cancel()
        self._finish_attempt()
        if self._reconnect_task is not None:
            await asyncio.wait({self._reconnect_task}, timeout=_LEAVE_WITHIN_S)
            self._reconnect_task.cancel()
            await asyncio.wait({self._reconnect_task}, timeout=_LEAVE_WITHIN_S)

    async def session(self, deadline_s: float) -> McpSession:
        """Return the connection in use, or the one from the attempt under way, before `deadline_s` (loop clock).

        During a pause between attempts the next one is brought forward.

        Raises: ToolFailure: TOOL_UNAVAILABLE, with `retry_after_s` and a reason fit for models and operators.
        """
        session = self._session or await self._next_session(deadline_s)
        if session is None:
            raise self._unavailable()
        return session

    @property
    def _may_install(self) -> bool:
        where = self.terms.where
        return isinstance(where, StdioTerms) and where.may_install

    def reading_deadline_s(self) -> float:
        """Return until when a reading waits for the connection: what a launcher installs for minutes is told sooner."""
        return _now_s() + _FIRST_WORD_S if self._may_install else inf

    async def send(
        self, session: McpSession, method: str, params: dict[str, Any], **options: Unpack[SendOptions]
    ) -> JsonObject:
        """Send like `RequestSender.send`, which raises MCPError also for breakages. An unusable connection is left.

        A request whose session the server no longer knows has certainly not run: it is sent once more on the next
        connection, within its time.
        """
        deadline_s = _now_s() + (options.get("timeout_s") or inf)
        try:
            return await self._send_once(session, method, params, **options)
        except MCPError as error:
            if failures.breakage_of(error) is not Breakage.NO_SESSION:
                raise
            renewed = await self._next_session(deadline_s) if self._session is None else self._session
            if renewed is None or renewed is session or renewed.is_modern:
                raise
            if deadline_s != inf:
                options["timeout_s"] = deadline_s - _now_s()
            return await self._send_once(renewed, method, params, **options)

    async def _send_once(
        self, session: McpSession, method: str, params: dict[str, Any], **options: Unpack[SendOptions]
    ) -> JsonObject:
        try:
            return await session.requests.send(method, params, **options)
        except MCPError as error:
            if failures.is_closed(error):
                self.drop_session(session, "its connection is closed")
            elif failures.is_lost_session(error):
                self.drop_session(session, "the server no longer knows the session")
            raise
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            # The SDK cancels the tasks that wait on a dying connection (python-sdk #3560).
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            self.drop_session(session, "its connection broke")
            raise failures.breakage_error(Breakage.LOST) from error

    def drop_session(self, session: McpSession, why: str) -> None:
        """Leave an unusable connection and make another. `why` holds no text of exceptions."""
        if session is self._session and self._connection is not None:
            self._connection.disconnect(why)

    def leave(self, why: str) -> None:
        """Leave the connection in use, if there is one, and make another."""
        if self._session is not None:
            self.drop_session(self._session, why)

    def diagnostics(self) -> tuple[str, ...]:
        """Return the tail of standard error, the state and the last problem; secrets are masked."""
        session = self._session
        state = f"connected: {session.server or 'a server'} speaks {session.protocol}" if session else "not connected"
        lines = [f"{self.terms.endpoint}: {state}", f"connections: {self.connects} in {self._attempts} attempts"]
        if self._last_error:
            lines.append(f"last error: {self._last_error}")
        if not session and not self._closed.is_set():
            left_s = self._next_try_s - _now_s()
            lines.append(f"next try: in {left_s:.1f} s" if left_s > 0 else "next try: under way")
        lines_now = self._connection.diagnostics() if self._connection else []
        return (*self._clean_tail(lines_now), *map(self._redactor.text, lines))  # the last of them matter most

    def _clean_tail(self, tail: list[str]) -> tuple[str, ...]:
        # Redacted once for all lines: one by one they take three times as long.
        if tail != self._tail:
            self._tail = tail
            self._shown = tuple(self._redactor.text("\n".join(tail)).split("\n")) if tail else ()
        return self._shown

    async def _next_session(self, deadline_s: float) -> McpSession | None:
        if not self._closed.is_set():
            self._retry_now.set()
            with suppress(TimeoutError):  # the result None means that: the caller has no session
                async with asyncio.timeout_at(deadline_s):
                    await self._attempt_done.wait()
        return self._session

    async def _keep_connected(self) -> None:
        """Run one connection after another, each in its own task, until the link is closed."""
        had_connected = False
        while not self._closed.is_set():
            began_s = _now_s()
            self._attempts += 1
            connection = self._connection = Connection(self._deps, self._has_connected, self._has_disconnected)
            await self._run(connection)
            # It may hold what the server says.
            self._last_error = quote_foreign(connection.why_over, self._redactor.text, _REASON_MAX_CHARS)
            self._is_unauthorized = connection.was_unauthorized
            if self._closed.is_set():
                return
            # The server was there and is gone, so its tools must be shown as unavailable.
            if had_connected and not connection.was_connected:
                self._notify_changed()
            had_connected = connection.was_connected
            lasted_s = _now_s() - began_s
            pause_s = self._backoff.after_loss(lasted_s) if had_connected else self._backoff.count_failure()
            if self._is_unauthorized and self._carries_login:
                pause_s = _UNAUTHORIZED_PAUSE_S
            await self._pause(pause_s, has_failed=not had_connected)

    async def _run(self, connection: Connection) -> None:
        self._task = asyncio.create_task(connection.run(), name=f"mcp:{self.terms.name}:connection")
        try:
            await asyncio.wait({self._task})
        finally:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_LEAVE_WITHIN_S)
            self._session = None

    async def _pause(self, pause_s: float, *, has_failed: bool) -> None:
        """Wait for the next attempt; a waiting caller shortens that to the minimum pause."""
        self._next_try_s = _now_s() + pause_s
        if has_failed:
            self._retry_now.clear()  # the caller that hurried this attempt gets its failure now
            self._finish_attempt()
        if pause_s <= 0:
            return
        # Many callers may request an attempt at once; together they shorten the pause to this minimum and no further.
        await asyncio.sleep(min(FLOOR_S, pause_s))
        with suppress(TimeoutError):  # nobody asked during the pause
            async with asyncio.timeout_at(self._next_try_s):
                await self._retry_now.wait()

    def _has_connected(self, session: ClientSession, requests: RequestSender) -> None:
        self._retry_now.clear()
        self.connects += 1
        protocol, capabilities = session.protocol_version or "", session.server_capabilities
        self._session = McpSession(
            requests=requests,
            is_modern=is_modern(protocol),
            protocol=protocol,
            server=server_of(session),
            extensions=frozenset(capabilities.extensions or ()) if capabilities else frozenset(),
            features=features_of(capabilities),
        )
        self._finish_attempt()
        # A reading follows the first connection anyway, unless it did not wait for a launcher; after a gap the list may
        # have changed.
        if self._attempts > 1 or self._may_install:
            self._notify_changed()

    def _has_disconnected(self) -> None:
        """Let no further call begin. Closing has a time limit, so that it cannot delay the next connection for long."""
        self._session = None
        if self._task is not None:
            asyncio.get_running_loop().call_later(_LEAVE_WITHIN_S, self._task.cancel)

    def _finish_attempt(self) -> None:
        # Replaced before it is set, so that tasks waiting from now on wait for the next attempt.
        turn, self._attempt_done = self._attempt_done, asyncio.Event()
        turn.set()

    def _notify_changed(self) -> None:
        for changed in self._changed:
            changed()

    def _notify_resource_changed(self, uri: str) -> None:
        self.on_resource_change(uri)

    def _unavailable(self) -> ToolFailure:
        if self._closed.is_set():
            return refuse(
                ErrorKind.TOOL_UNAVAILABLE,
                f"The source {self.terms.name} has been stopped. Use another tool.",
                retryable=False,
                source=self.terms.name,
            )
        installing = self._connection.installing if self._connection else ""
        reason = (
            quote_foreign(installing, self._redactor.text) or self._last_error or "The connection is still being made."
        )
        failure = refuse(
            ErrorKind.TOOL_UNAVAILABLE,
            f"The MCP server of {self.terms.name} is not connected. {reason} Use another tool, or try again later.",
            retry_after_s=round(max(FLOOR_S, self._next_try_s - _now_s()), 2),
            source=self.terms.name,
            reason=reason,
        )
        return failures.CredentialsRefused(failure.error) if self._is_unauthorized else failure


def features_of(capabilities: ServerCapabilities | None) -> frozenset[str]:
    if capabilities is None:
        return frozenset()
    declared = {
        "prompts": capabilities.prompts is not None,
        "resources": capabilities.resources is not None,
        "resources.subscribe": capabilities.resources is not None and capabilities.resources.subscribe is True,
        "completions": capabilities.completions is not None,
    }
    return frozenset(name for name, is_declared in declared.items() if is_declared)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


HeaderMap = Mapping[tuple[str, ...], str]
_MAPS_MAX: Final = 4_096


def _do_nothing() -> None: ...


@dataclass(slots=True, eq=False)
class McpServer:
    """State that `McpAdapter` and `McpToolSource` share; one per source."""

    link: McpLink
    overrides: Overrides
    task_support: dict[str, str] = field(default_factory=dict)
    """By own name, `required` or `optional`, as in the last reading; other tools are absent."""
    skills: Mapping[str, Any] = field(default_factory=dict)
    """The skills that the server serves, by the resource id of the tool that reads each."""
    has_task_extension: bool = False
    """Whether it may answer any call with a task (2026-07-28)."""
    resource_changes: int = 0
    """Number of changes of its resources that the server has announced or that may have been missed."""
    changed: Callable[[], None] = _do_nothing
    """Called when a tool's definition turns out to differ from the known one."""
    users: UserSessions[Any] | None = None
    """Sessions where callers have credentials of their own; None: `link` serves all."""
    login: ListLogin[McpLink] | None = None
    """Where the configuration holds no credentials: whose token the list is read with."""
    _header_maps: dict[str, HeaderMap] = field(default_factory=dict)

    async def close(self) -> None:
        if self.login is not None:
            await self.login.close()
        if self.users is not None:
            await self.users.close()
        await self.link.close()

    def follow_resources(self, publish: Callable[[str], None]) -> None:
        """Have `publish` called with the URI of each resource that changes; empty: the list changed."""

        def count_change(uri: str) -> None:
            self.resource_changes += not uri
            publish(uri)

        self.link.on_resource_change = count_change

    @property
    def elicitation(self) -> Answering:
        """What happens to a question that is not put to the client of its call."""
        terms = self.link.terms
        return "refuse" if terms.elicitation == "decline" and "elicitation" in terms.relay else terms.elicitation

    def runs_as_task(self, spec: ToolSpec) -> bool:
        """Return whether a job of this tool runs as a task of the server."""
        return spec.cost.is_async or self.has_task_extension or spec.resource_id in self.task_support

    def headers_of(self, spec: ToolSpec) -> HeaderMap:
        """Return which arguments are mirrored into headers (2026-07-28, `x-mcp-header`); nearly always none."""
        known = self._header_maps.get(spec.digest)
        if known is None:
            if len(self._header_maps) >= _MAPS_MAX:
                # Keyed by digest of the schema and cleared: lists that keep changing would otherwise fill the memory.
                self._header_maps.clear()
            schema: Any = spec.input_schema
            known = self._header_maps[spec.digest] = x_mcp_header_map(schema)
        return known
