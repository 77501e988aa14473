"""Calls over a pipe: one line, and the line that answers it, beside the SDK's dispatcher on the same pipe.

The SDK makes two models, two memory streams and a span of each call, and validates each message with pydantic. Nothing
of a call over pipes needs that, in either version of the protocol: a call is named by an id that the dispatcher does
not use, and so is its progress. All other messages are the SDK's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import msgspec
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED

from toolhub_service.adapters.mcp.failures import Breakage, error_of
from toolhub_service.adapters.mcp.messages.json_rpc import (
    PROGRESS,
    encode_request,
    is_response,
    report_progress,
    result_of,
)

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT

    from toolhub_service.adapters.mcp.requests import OnLog

_FIRST_ID: Final = 1_000_000_000
"""Far above those of the SDK's dispatcher, which counts from 1."""
_YIELD_EVERY: Final = 32  # reports of progress in a row before other tasks run


class Outbox(Protocol):
    """Where lines are written."""

    async def send_line(self, line: bytes) -> None:
        """Write it when there is room. Raises anyio.BrokenResourceError when the pipe is gone."""

    def send_now(self, line: bytes) -> None:
        """Write it, or drop it while there is no room."""


class _Call:
    """What has arrived for one call."""

    def __init__(self) -> None:
        self._messages: deque[dict[str, Any]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._taken = 0
        self.is_answered = False

    def put(self, message: dict[str, Any]) -> None:
        self.is_answered = "method" not in message
        self._messages.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next_message(self) -> dict[str, Any]:
        if not self._messages:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._taken += 1
        if self._taken % _YIELD_EVERY == 0:
            await asyncio.sleep(0)
        return self._messages.popleft()


class PipeCalls:
    """The calls under way on one pipe."""

    def __init__(self, outbox: Outbox, on_sent: Callable[[], None], on_answered: Callable[[], None]) -> None:
        """`on_sent` and `on_answered` are called with each request and each response to one."""
        self._outbox = outbox
        self._on_sent = on_sent
        self._on_answered = on_answered
        self._ids = count(_FIRST_ID)
        self._calls: dict[int, _Call] = {}
        self.is_open = True

    async def send(
        self,
        method: str,
        params: dict[str, Any],
        fields: Mapping[str, str],
        on_progress: ProgressFnT | None = None,
        on_log: OnLog | None = None,
    ) -> dict[str, Any]:
        """Return the `result` member of the answer, not validated; `fields` are for HTTP. When the caller is cancelled,
        the server is told to cancel. Raises MCPError for an error response or a breakage (`breakage_of`)."""
        number, call = next(self._ids), _Call()
        line = encode_request(number, method, params, has_progress=on_progress is not None) + b"\n"
        is_sent = False
        self._calls[number] = call
        try:
            await self._outbox.send_line(line)
            is_sent = True
            self._on_sent()
            while "method" in (message := await call.next_message()):
                if on_progress is not None:
                    await report_progress(message.get("params"), number, on_progress)
            return result_of(message, number)
        except anyio.BrokenResourceError:
            raise _closed_error() from None
        except asyncio.CancelledError:
            if is_sent and not call.is_answered:
                self._outbox.send_now(_cancellation_of(number))
            raise
        finally:
            del self._calls[number]

    def expects(self, message: object) -> bool:
        """Return whether the message is the answer to one of these calls, or its progress."""
        if not self._calls or not isinstance(message, dict):
            return False
        if message.get("method") == PROGRESS and "id" not in message:
            params = message.get("params")
            return isinstance(params, dict) and _number_of(params.get("progressToken")) in self._calls
        return "method" not in message and _number_of(message.get("id")) in self._calls

    def take(self, message: dict[str, Any]) -> bool:
        """Pass on a message that is expected. Return whether it is a valid one."""
        if message.get("method") == PROGRESS:
            params = message["params"]
            params["progressToken"] = number = _number_of(params["progressToken"])
        else:
            number = _number_of(message.get("id"))
            message = _with_one_outcome({**message, "id": number})
            if not is_response(message):
                self.fail(message["id"], error_of(Breakage.UNDECODABLE))
                return False
            self._on_answered()
        if number is not None and not self._calls[number].is_answered:
            self._calls[number].put(message)
        return True

    def fail(self, answered: int | str, error: Mapping[str, Any]) -> bool:
        """Fail the call that this id names. Return whether there is one."""
        number = _number_of(answered)
        call = self._calls.get(number) if number is not None else None
        if call is None:
            return False
        if not call.is_answered:
            call.put({"jsonrpc": "2.0", "id": number, "error": error})
        return True

    def end(self) -> None:
        """Fail all calls under way, because the pipe is gone."""
        self.is_open = False
        for number in self._calls:
            self.fail(number, {"code": CONNECTION_CLOSED, "message": "Connection closed"})


def _with_one_outcome(message: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with a result and an error as the SDK reads it: as the error, where that is one."""
    if "result" not in message or "error" not in message:
        return message
    error = {name: value for name, value in message.items() if name != "result"}
    return error if is_response(error) else {name: value for name, value in message.items() if name != "error"}


def _number_of(value: object) -> int | None:
    """Return an id of the hub's own; some servers make text of numbers."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 18:
        return int(value)
    return None


def _cancellation_of(number: int) -> bytes:
    params = {"requestId": number, "reason": "the caller has given up"}
    return msgspec.json.encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}) + b"\n"


def _closed_error() -> MCPError:
    return MCPError(CONNECTION_CLOSED, "Connection closed")
