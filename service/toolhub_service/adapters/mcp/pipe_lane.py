"""The short way of a `tools/call` to a server over pipes: one line out, one line in, no task and no model between.

What the SDK's dispatcher does around a request (two models, a stream of its own, one more task that must wake) costs
more than the pipes do. What goes out is the SDK's to the letter (`wire.py` stamps it), and so are the errors that are
raised here. All else stays with the SDK: the handshake, lists, notifications, and requests of the server's own.

Its ids begin where those of the SDK, which count from one, never come; they are numbers like those, for there are
servers that take no others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from mcp import MCPError

from toolhub_service.adapters.mcp.breakage import CODE as CONNECTION_CLOSED
from toolhub_service.adapters.mcp.breakage import Breakage, error_of
from toolhub_service.adapters.mcp.failures import REQUEST_TIMEOUT
from toolhub_service.adapters.mcp.streams import Outbox

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT

FIRST_ID: Final = 1_000_000_001
CLOSED: Final = "Connection closed"
"""The SDK's own words."""
_PROGRESS: Final = "notifications/progress"
_PROGRESS_HELD_MAX: Final = 64
"""Steps that the call has not taken yet; the newest are kept."""

Step = tuple[float, float | None, str | None]


class _Asked:
    """One request under way."""

    __slots__ = ("_answer", "_steps", "_wake")

    def __init__(self) -> None:
        self._answer: dict[str, Any] | MCPError | TimeoutError | None = None
        self._steps: deque[Step] = deque(maxlen=_PROGRESS_HELD_MAX)
        self._wake: asyncio.Future[None] | None = None

    def answered(self, answer: dict[str, Any] | MCPError | TimeoutError) -> None:
        """The first answer counts."""
        if self._answer is None:
            self._answer = answer
            self._notify()

    def stepped(self, step: Step) -> None:
        self._steps.append(step)
        self._notify()

    async def result(self, on_progress: ProgressFnT | None) -> dict[str, Any]:
        """Raises MCPError or TimeoutError, whichever it was told."""
        while True:
            while self._steps and on_progress is not None:
                await on_progress(*self._steps.popleft())
            if isinstance(self._answer, Exception):
                raise self._answer
            if self._answer is not None:
                return self._answer
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class PipeLane:
    """Of one connection. `heard` and `failed` are told what came; they return whether it was for here."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._ids = count(FIRST_ID)
        self._asked: dict[int, _Asked] = {}
        self.is_open = True
        self.meta: dict[str, Any] | None = None
        """What the session puts into each request, once that is known (`wire.py`)."""

    def close(self) -> None:
        """No call may begin any more."""
        self.is_open = False

    async def ask(
        self,
        method: str,
        params: dict[str, Any],
        _fields: Mapping[str, str],
        *,
        timeout_s: float | None = None,
        on_progress: ProgressFnT | None = None,
    ) -> dict[str, Any]:
        """The `result` member of the answer: an object, of which nothing has been judged.

        When the caller is cancelled, or after `timeout_s`, the server is told to cancel.

        Raises:
            MCPError: an error response, -32001 after `timeout_s`, or what broke (`breakage_of`).
        """
        number = next(self._ids)
        if on_progress is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": number}}
        line = _line({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        loop, until_s = asyncio.get_running_loop(), None
        asked, timer = _Asked(), None
        self._asked[number] = asked
        if timeout_s is not None:  # a timer that answers: `asyncio.timeout` would cost as much as the pipe does
            until_s = loop.time() + timeout_s
            timer = loop.call_at(until_s, asked.answered, TimeoutError())
        try:
            if not self._outbox.line_if_open(line):
                async with asyncio.timeout_at(until_s):
                    await self._outbox.line(line)
            return await asked.result(on_progress)
        except TimeoutError:
            self._give_up(number, f"timed out after {timeout_s}s")
            raise MCPError(REQUEST_TIMEOUT, f"Request {method!r} timed out") from None
        except asyncio.CancelledError:
            self._give_up(number, "caller cancelled")
            raise
        except anyio.BrokenResourceError:
            raise _closed() from None
        finally:
            del self._asked[number]
            if timer is not None:
                timer.cancel()

    def heard(self, message: object) -> bool | None:
        """Take a message from the server; None: it is not for here, False: it is, and is none."""
        if not isinstance(message, dict):
            return None
        if "method" in message:
            return self._progressed(message.get("params")) if message["method"] == _PROGRESS else None
        asked = self._asked.get(_number(message.get("id")))
        if asked is None:
            return None
        answer = _answer(message)
        asked.answered(_broken(Breakage.UNDECODABLE) if answer is None else answer)
        return answer is not None

    def failed(self, number: int | str, breakage: Breakage) -> bool:
        """What the server answered to that request was of no use."""
        asked = self._asked.get(_number(number))
        if asked is not None:
            asked.answered(_broken(breakage))
        return asked is not None

    def end(self) -> None:
        """Nothing goes either way any more: what is under way fails."""
        self.close()
        for asked in self._asked.values():
            asked.answered(_closed())

    def _progressed(self, params: object) -> bool | None:
        if not isinstance(params, dict):
            return None
        asked = self._asked.get(_number(params.get("progressToken")))
        if asked is None:
            return None
        step, total, message = _real(params.get("progress")), _real(params.get("total")), params.get("message")
        if step is not None:
            asked.stepped((step, total, message if isinstance(message, str) else None))
        return True

    def _give_up(self, number: int, reason: str) -> None:
        params = {"requestId": number, "reason": reason}
        self._outbox.line_if_open(_line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))


def _line(message: dict[str, Any]) -> bytes:
    return _encode(message) + b"\n"


def _plain(value: object) -> object:
    """Arguments may be frozen."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


_encode: Final = msgspec.json.Encoder(enc_hook=_plain).encode


def _number(value: object) -> int:
    """The id of a request; 0, which is none, for what is not. Some servers give numbers back as text."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    return value if type(value) is int else 0


def _real(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _answer(message: dict[str, Any]) -> dict[str, Any] | MCPError | None:
    """What a response says; None when it is none. Of one that says both, the error counts, as to the SDK."""
    error, result = message.get("error"), message.get("result")
    if message.get("jsonrpc") != "2.0":
        return None
    if isinstance(error, dict) and type(error.get("code")) is int and isinstance(error.get("message"), str):
        return MCPError(error["code"], error["message"], error.get("data"))
    return result if isinstance(result, dict) and "error" not in message else None


def _closed() -> MCPError:
    return MCPError(CONNECTION_CLOSED, CLOSED)


def _broken(breakage: Breakage) -> MCPError:
    error = error_of(breakage)
    return MCPError(error["code"], error["message"], error["data"])
