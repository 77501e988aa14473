"""Connections of single callers to one MCP server: a caller with its own credential has its own session.

Sessions are not shared, because the state that a server keeps by session, or sends on it, belongs to one caller. There
are at most `SESSIONS_MAX`; one that has been unused for `IDLE_S` is closed, as is one whose caller has given another
credential.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from toolhub_service.adapters.callers import CallersOf
from toolhub_service.adapters.mcp.messages.http import Answer, HttpRequest, Origin, Transport
from toolhub_service.credentials.secret import CallerCredential
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.credential import CredentialKind
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse

SESSIONS_MAX: Final = 256
IDLE_S: Final = 300.0


class Closable(Protocol):
    def start(self) -> None: ...

    async def close(self) -> None: ...


Opened = TypeVar("Opened")


Renew = Callable[[CallerCredential], Awaitable[CallerCredential | None]]


class Holder:
    """The credential on a connection's requests: that of the caller's last call, or of the source's own login."""

    def __init__(self, credential: CallerCredential | None, renew: Renew) -> None:
        """`credential`: None: requests carry none. `renew` returns a new credential after the server refused one; None:
        there is none. Raises ToolFailure."""
        self.credential = credential
        self._renew = renew

    async def renew(self, used: CallerCredential) -> CallerCredential | None:
        # Another request has renewed it meanwhile.
        if self.credential is None or self.credential.secret != used.secret:
            return self.credential
        try:
            other = await self._renew(used)
        except ToolFailure:
            return None
        if other is not None:
            self.credential = other
        return other


class CallerTransport:
    """Puts the caller's credential on requests to the server itself, and on no others."""

    def __init__(self, inner: Transport, origin: Origin, holder: Holder) -> None:
        self._inner = inner
        self._origin = origin
        self._holder = holder

    async def send(self, request: HttpRequest) -> Answer:
        # A caller's credential is sent only to the source's server, not to other hosts that it refers to.
        used = self._holder.credential if request.place.origin == self._origin else None
        if used is None:
            return await self._inner.send(request)
        request.fields[used.header.lower()] = used.value
        answer = await self._inner.send(request)
        # A server answers 401 before it processes the request, so nothing runs twice.
        if answer.status != 401 or (other := await self._holder.renew(used)) is None:
            return answer
        answer.close()
        request.fields[other.header.lower()] = other.value
        return await self._inner.send(request)


@dataclass(slots=True, eq=False)
class _Session(Generic[Opened]):
    holder: Holder
    opened: Opened
    link: Closable
    users: int = 0
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class UserSessions(Generic[Opened]):
    """The sessions of one source."""

    callers: CallersOf
    make: Callable[[Holder], tuple[Opened, Closable]]
    """Makes another connection, not started."""
    sessions_max: int = SESSIONS_MAX
    idle_s: float = IDLE_S
    _sessions: OrderedDict[tuple[str, str, str], _Session[Opened]] = field(default_factory=OrderedDict)
    """The most recently used one is last."""
    _closing: set[asyncio.Task[None]] = field(default_factory=set)
    _is_closed: bool = False

    def __len__(self) -> int:
        return len(self._sessions)

    @asynccontextmanager
    async def use_session(self, call: GrantedCall) -> AsyncIterator[tuple[Opened, Holder] | None]:
        """Yield the caller's own connection and its credential; None where a caller without a credential is served as
        well.

        Raises ToolFailure.
        """
        credential = await self.callers.of(call)
        if credential is None:
            yield None
            return
        session = self._session_of(call, credential)
        session.users += 1
        try:
            yield session.opened, session.holder
        finally:
            session.users -= 1
            self._close_when_idle(_key(call, credential), session)

    async def close(self) -> None:
        self._is_closed = True
        for key in [*self._sessions]:
            self._leave(key)
        if self._closing:
            await asyncio.wait(self._closing)

    def _session_of(self, call: GrantedCall, credential: CallerCredential) -> _Session[Opened]:
        key = _key(call, credential)
        session = self._sessions.get(key)
        if session is None:
            if credential.kind is not CredentialKind.EXCHANGED:  # the user has given another one
                for former in [each for each in self._sessions if each[:2] == key[:2]]:
                    self._leave(former)
            session = self._open_session(call, credential)
            self._sessions[key] = session
        self._sessions.move_to_end(key)
        # The vault may have renewed it since the session was opened.
        session.holder.credential = credential
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        return session

    def _open_session(self, call: GrantedCall, credential: CallerCredential) -> _Session[Opened]:
        source = self.callers.terms.source
        if self._is_closed:
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, f"The source {source} has been stopped.", retryable=False)
        if len(self._sessions) >= self.sessions_max:
            # The least recently used idle one, as they are in order of use.
            idle = next((key for key, each in self._sessions.items() if not each.users), None)
            if idle is None:
                message = f"{call.spec.name} could not be called: {source} serves as many callers as it can at once. "
                raise refuse(ErrorKind.RATE_LIMITED, f"{message}Try again later.", retry_after_s=1.0, waits_for=source)
            self._leave(idle)
        principal, vault = call.call.principal, self.callers.vault

        async def renew(used: CallerCredential) -> CallerCredential | None:
            return await vault.renew(principal, source, used.secret)

        holder = Holder(credential, renew)
        opened, link = self.make(holder)
        link.start()
        return _Session(holder, opened, link)

    def _close_when_idle(self, key: tuple[str, str, str], session: _Session[Opened]) -> None:
        if not session.users and self._sessions.get(key) is session:
            session.timer = asyncio.get_running_loop().call_later(self.idle_s, self._leave, key)

    def _leave(self, key: tuple[str, str, str]) -> None:
        session = self._sessions.pop(key, None)
        if session is None:
            return
        if session.timer is not None:
            session.timer.cancel()
        task = asyncio.create_task(session.link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _key(call: GrantedCall, credential: CallerCredential) -> tuple[str, str, str]:
    principal = call.call.principal
    return principal.tenant, principal.id, credential.generation
