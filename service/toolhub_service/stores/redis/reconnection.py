"""Reconnection after a connection to Redis breaks, and the errors raised while it stays broken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

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

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.ports import Randomness

_FIRST_DELAY_S = 0.02
_LAST_DELAY_S = 1.0


async def stay_connected(
    connection: AbstractConnection,
    talk: Callable[[], Awaitable[None]],
    on_break: Callable[[Exception], None],
    randomness: Randomness,
    *,
    connect_within_s: float,
) -> None:
    """Connect and `talk`, repeatedly, with exponential backoff and jitter between attempts, until cancelled.

    `on_break` is called at each end of the connection, before the next attempt. `connect_within_s` is also the callers'
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
            on_break(_first(errors))
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
