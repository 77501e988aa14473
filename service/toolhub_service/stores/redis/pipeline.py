"""One connection for the commands of a whole process, in the order of their callers: instead of a pool of connections.

Commands of one iteration of the loop are sent in one write and their answers come back in the same order, so that
hundreds of callers share a round trip (pipelining, https://redis.io/docs/latest/develop/using-commands/pipelining). A
cancelled caller only leaves its answer unread: no connection is lost with it, and there is no pool to exhaust.

When the connection breaks, unanswered commands are sent again over the next one until their caller's timeout. So a
command may run twice: the stores' scripts recognise their own repetition, and other commands are run `once`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as NoAnswer

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.ports import Randomness

# Reconnection after a connection to Redis breaks, and the errors raised while it stays broken.

_FIRST_DELAY_S = 0.02
_LAST_DELAY_S = 1.0


async def stay_connected(
    connection: AbstractConnection,
    talk: Callable[[], Awaitable[None]],
    broken: Callable[[Exception], None],
    randomness: Randomness,
    *,
    connect_within_s: float,
) -> None:
    """Connect and `talk`, repeatedly, with exponential backoff and jitter between attempts, until cancelled.

    `broken` is called at each end of the connection, before the next attempt. `connect_within_s` is also the callers'
    timeout: it holds several attempts, so that no caller is refused when the server has been back for most of that
    time.
    """
    loop = asyncio.get_running_loop()
    last_delay_s = min(_LAST_DELAY_S, connect_within_s / 4)
    delay_s = 0.0
    while True:
        began_s = loop.time()
        try:
            async with asyncio.timeout(connect_within_s):
                await connection.connect()  # type: ignore[no-untyped-call]
            await talk()
        except* (RedisError, OSError) as errors:
            broken(_first(errors))
        finally:
            await connection.disconnect(nowait=True)
        if loop.time() - began_s > last_delay_s:
            delay_s = 0.0
        delay_s = min(last_delay_s, delay_s * 2 or _FIRST_DELAY_S)
        await asyncio.sleep(randomness.uniform(delay_s / 2, delay_s))


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def reason_of(error: Exception) -> str:
    """Return the kind of failure for operators, never the error's own text, which may quote an address or a
    password."""
    match error:
        case AuthenticationError() | AuthorizationError():
            return "it refuses the user or the password"
        case BusyLoadingError():
            return "it is loading its data"
        case ResponseError() if _is(error, OutOfMemoryError, "-OOM "):
            return "its memory is full"
        case ResponseError() if is_demoted(error):
            return "it is not the primary"
        case ResponseError():
            code = str(error).partition(" ")[0]
            return f"it answered {code}" if code.isalpha() and code.isupper() else "it refused a command"
        case TimeoutError():
            return "no connection in time"
        case _:
            return f"no connection ({type(error).__name__})"


def is_demoted(error: ResponseError) -> bool:
    """Return whether the server says that it is no longer the primary: another one is, behind the same name."""
    return _is(error, ReadOnlyError, "-READONLY ")


def _is(error: Exception, kind: type[ResponseError], code: str) -> bool:
    """Before Redis 7 an error inside a script is reported as the script's, with the code somewhere in its text."""
    return isinstance(error, kind) or code in str(error)


def unavailable(reason: str) -> ToolFailure:
    """Return the caller's error; `reason` is for operators and names no address."""
    return refuse(
        ErrorKind.TOOL_UNAVAILABLE,
        "The hub's shared store (Redis) cannot be used at the moment, and what depends on it is refused rather than "
        "guessed. Try again in a moment; an operator finds the cause under `reason`.",
        retry_after_s=1.0,
        store="redis",
        reason=reason,
    )


class _Command:
    __slots__ = ("answer", "is_sent", "once", "packed")

    def __init__(self, packed: Iterable[bytes], answer: asyncio.Future[Any], once: bool) -> None:
        self.packed = packed
        self.answer = answer
        self.once = once
        self.is_sent = False


class Pipeline:
    """Connects at the first command, and again whenever it has to, with backoff."""

    def __init__(
        self, connection: AbstractConnection, randomness: Randomness, *, patience_s: float, max_waiting: int
    ) -> None:
        """`patience_s`: the timeout of a caller, outages included."""
        self._connection = connection
        self._randomness = randomness
        self._patience_s = patience_s
        self._max_waiting = max_waiting
        self._outbox: deque[_Command] = deque()
        # Sent and not answered, in order; also those whose caller has gone.
        self._sent: deque[_Command] = deque()
        self._called = asyncio.Event()
        self._stalled = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._trouble = ""

    async def run(self, *command: bytes | str | int, once: bool = False) -> Any:
        """Return the answer, with RESP2's types. `once`: never send it a second time.

        Raises ResponseError, and ToolFailure TOOL_UNAVAILABLE: the command may have run then.
        """
        if len(self._outbox) + len(self._sent) >= self._max_waiting:
            raise unavailable("too many commands wait for it")
        entry = _Command(self._connection.pack_command(*command), asyncio.get_running_loop().create_future(), once)
        self._outbox.append(entry)
        self._called.set()
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve(), name="redis-pipeline")
        try:
            async with asyncio.timeout(self._patience_s):
                return await entry.answer
        except TimeoutError:
            if entry.is_sent:
                self._stalled.set()
            raise unavailable(self._trouble or "no answer in time") from None

    async def close(self) -> None:
        """Close; callers that still wait get the error that the store cannot be reached."""
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
            await asyncio.wait((serving,))
        for entry in (*self._sent, *self._outbox):
            if not entry.answer.done():
                entry.answer.set_exception(unavailable("the hub stops"))
        self._sent.clear()
        self._outbox.clear()
        await self._connection.disconnect(nowait=True)

    async def _serve(self) -> None:
        await stay_connected(
            self._connection,
            self._exchange,
            self._broken,
            randomness=self._randomness,
            connect_within_s=self._patience_s,
        )

    async def _exchange(self) -> None:
        """Send and read until the connection breaks."""
        self._trouble = ""
        self._stalled.clear()
        async with asyncio.TaskGroup() as both_ways:
            both_ways.create_task(self._write())
            both_ways.create_task(self._read())
            both_ways.create_task(self._watch())

    async def _write(self) -> None:
        while True:
            await self._called.wait()
            self._called.clear()
            batch = [entry for entry in self._outbox if not entry.answer.done()]
            self._outbox.clear()
            self._sent.extend(batch)
            chunks: list[bytes] = []
            for entry in batch:
                entry.is_sent = True
                chunks.extend(entry.packed)
            await self._connection.send_packed_command(chunks, check_health=False)

    async def _read(self) -> None:
        while True:
            try:
                answer = await self._connection.read_response(disable_decoding=True)
            except ResponseError as error:
                if is_demoted(error):
                    raise
                answer = error
            future = self._sent.popleft().answer
            if future.done():
                continue
            if isinstance(answer, ResponseError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    async def _watch(self) -> None:
        """Break the connection when the peer is silent for longer than its callers' timeout."""
        await self._stalled.wait()
        raise NoAnswer

    def _broken(self, error: Exception) -> None:
        self._trouble = reason_of(error)
        for entry in self._sent:
            entry.is_sent = False
            if entry.once and not entry.answer.done():
                entry.answer.set_exception(unavailable(self._trouble))
        waiting = [entry for entry in (*self._sent, *self._outbox) if not entry.answer.done()]
        self._sent.clear()
        self._outbox = deque(waiting)
        if waiting:
            self._called.set()
