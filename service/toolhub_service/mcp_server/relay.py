"""Relays requests that an upstream server makes during a call to the calling client.

In 2025-11-25 by a request to the client, while its own is open. In 2026-07-28 the request is answered `input_required`
and the call goes on waiting: the client's next request, with what it was asked for and the state that the SDK has
sealed for this principal, tool and arguments, joins the call that waits. So it stays one call, with one pass through
the nine steps, one approval, one budget and one record, however often its server asks.

Answers without a state belong to the first question, if it asks for nothing else.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    GetPromptRequestParams,
    ListRootsRequest,
    ListRootsResult,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolhub_service.aio.waits import shield_until_done
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import Invoker
from toolhub_service.domain.result import ToolResult
from toolhub_service.mcp_server.convert_calls import Context, invoke

STATE_PREFIX: Final = "waiting:"
"""Of a request's state that names a call which waits for its client."""
MISSING_CAPABILITY: Final = -32021

_WAITING_MAX: Final = 512
_OF_ONE_MAX: Final = 32
_PERSON_S: Final = 600.0
_LINES_MAX: Final = 100
_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_LEVELS_MAX: Final = 1_000
# For the last lines of a call to be sent.
_FLUSH_S: Final = 1.0


class InputRequired(Exception):
    """The call waits for its client, which is to be answered with `result`."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__("the client is asked")
        self.result = result


def is_waiting(request_state: str | None) -> bool:
    """Return whether it names a call that waits for its client."""
    return request_state is not None and request_state.startswith(STATE_PREFIX)


def given_in(params: CallToolRequestParams | GetPromptRequestParams) -> dict[str, JsonValue]:
    """Return answers that come with a call, by key."""
    return {
        key: each.model_dump(mode="json", by_alias=True, exclude_none=True)
        for key, each in (params.input_responses or {}).items()
    }


class Client:
    """The client of one call; implements `CallingClient`."""

    def __init__(self, context: Context, level: str, given: Mapping[str, JsonValue]) -> None:
        """`level`: lowest log level that it wants; empty: none. `given`: answers that came with the call."""
        known = context.session.client_capabilities
        declared = {} if known is None else known.model_dump(mode="json", by_alias=True, exclude_none=True)
        self._context = context
        self._given = given
        self._level = _LEVELS.index(level) if level in _LEVELS else len(_LEVELS)
        self._lines: asyncio.Queue[LoggingMessageNotificationParams] = asyncio.Queue(_LINES_MAX)
        # A client of the older protocol that cannot be reached (several workers) would not know `input_required`.
        is_reached = context.session.can_send_request or context.protocol_version in MODERN_PROTOCOL_VERSIONS
        self.capabilities: JsonObject = {kind: declared[kind] for kind in _ASKED if is_reached and kind in declared}
        self.lacking: JsonObject = {}
        self.question: Mapping[str, JsonObject] = {}
        """What it is asked, while it waits (2026-07-28)."""
        self.is_asked = asyncio.Event()
        self._answer: asyncio.Future[Mapping[str, JsonValue]] | None = None

    async def ask(self, requests: Mapping[str, JsonObject]) -> Mapping[str, JsonValue]:
        given = self._given
        self._given = {}
        # A client may send expected answers along with the call: then it does not wait.
        if requests.keys() <= given.keys():
            return {key: given[key] for key in requests}
        if self._context.session.can_send_request:
            return {key: await self._send_to_client(request) for key, request in requests.items()}
        self.question = requests
        self._answer = asyncio.get_running_loop().create_future()
        self.is_asked.set()
        return await self._answer

    def answer(self, responses: Mapping[str, JsonValue]) -> bool:
        """Take an answer; return whether it was the last one, so that the call goes on."""
        if self._answer is None or self._answer.done() or not self.question.keys() <= responses.keys():
            return False
        self.is_asked.clear()
        self._answer.set_result({key: responses[key] for key in self.question})
        return True

    def lacks(self, capabilities: JsonObject) -> None:
        self.lacking = capabilities

    def log(self, level: str, logger: str, data: JsonValue) -> None:
        if level in _LEVELS and _LEVELS.index(level) >= self._level:
            # Excess lines are dropped: a server that logs without end must not fill the hub's memory.
            with suppress(asyncio.QueueFull):
                self._lines.put_nowait(LoggingMessageNotificationParams(level=level, logger=logger, data=data))  # type: ignore[arg-type]

    async def send_lines(self) -> None:
        """Until cancelled."""
        while True:
            line = await self._lines.get()
            try:
                notification = LoggingMessageNotification(params=line)
                await self._context.session.send_notification(notification, self._context.request_id)
            finally:
                self._lines.task_done()

    async def flush(self) -> None:
        with suppress(TimeoutError):  # log lines are optional: a client that reads none must not delay the answer
            async with asyncio.timeout(_FLUSH_S):
                await self._lines.join()

    @property
    def wants_lines(self) -> bool:
        return self._level < len(_LEVELS)

    async def _send_to_client(self, request: JsonObject) -> JsonValue:
        """Raises ToolFailure."""
        sent, params, results = _ASKED_BY[str(request["method"])]
        related = ServerMessageMetadata(related_request_id=self._context.request_id)
        try:
            made = sent() if params is None else sent(params=params.model_validate(request["params"]))
            async with asyncio.timeout(_PERSON_S):
                reply = await self._context.session.send_request(made, results[bool(_tools(request))], metadata=related)
        except (MCPError, ValueError, TimeoutError) as refused:  # ValueError: of what is not to the protocol
            message = f"The client did not answer {request['method']}, which the tool's server asked for."
            raise refuse(ErrorKind.UPSTREAM_ERROR, message, retryable=False) from refused
        dumped: JsonValue = reply.model_dump(mode="json", by_alias=True, exclude_none=True)
        return dumped


def _tools(request: JsonObject) -> bool:
    params = request.get("params")
    return isinstance(params, Mapping) and "tools" in params


_ASKED: Final = ("elicitation", "sampling", "roots")
_ASKED_BY: Final[Mapping[str, tuple[Any, Any, tuple[Any, Any]]]] = {
    "elicitation/create": (ElicitRequest, ElicitRequestFormParams, (ElicitResult, ElicitResult)),
    "sampling/createMessage": (
        CreateMessageRequest,
        CreateMessageRequestParams,
        (CreateMessageResult, CreateMessageResultWithTools),
    ),
    "roots/list": (ListRootsRequest, None, (ListRootsResult, ListRootsResult)),
}


@dataclass(slots=True)
class _Waiting:
    call: Call
    client: Client
    running: asyncio.Task[ToolResult]
    expiry: asyncio.TimerHandle


class Relay:
    """Calls whose clients can be asked; `close` ends those that wait."""

    def __init__(self, invoker: Invoker) -> None:
        self._invoker = invoker
        self._waiting: dict[str, _Waiting] = {}
        self._levels: OrderedDict[str, str] = OrderedDict()

    def set_level(self, session_id: str, level: str) -> None:
        """Set the log level for a session of the older protocol."""
        self._levels[session_id] = level
        self._levels.move_to_end(session_id)
        if len(self._levels) > _LEVELS_MAX:
            self._levels.popitem(last=False)

    def client(self, context: Context, session_id: str, level: str, given: Mapping[str, JsonValue]) -> Client:
        """`level`: as the request says, in 2026-07-28."""
        return Client(context, self._levels.get(session_id, "") if session_id else level, given)

    async def invoke(self, call: Call, context: Context) -> ToolResult:
        """Make the call. Raises InputRequired, and MCPError when the client lacks a required capability."""
        client = call.client
        assert isinstance(client, Client)
        running = asyncio.create_task(self._run(call, client, context))
        try:
            await self._until_asked(running, client)
        except BaseException:
            running.cancel()
            await shield_until_done(_wait_until_done(running))
            raise
        return self._outcome(call, client, running)

    async def resume(
        self, principal: Principal, state: str, responses: Mapping[str, JsonValue]
    ) -> tuple[Call, ToolResult]:
        """Return the answer of a waiting call. Raises InputRequired when it asks again, MCPError when there is none."""
        waiting = self._waiting.get(state.removeprefix(STATE_PREFIX))
        if waiting is None or waiting.call.principal.id != principal.id:
            message = "The call that asked for this waits no longer. Make it again."
            raise MCPError(INVALID_PARAMS, message)
        if not waiting.client.answer(responses) and not waiting.running.done():
            raise InputRequired(_asking(waiting.client, state))
        # Before it is awaited: the same answer sent twice must not join the call a second time.
        self._forget(state.removeprefix(STATE_PREFIX))
        try:
            await self._until_asked(waiting.running, waiting.client)
        except BaseException:
            waiting.running.cancel()
            await shield_until_done(_wait_until_done(waiting.running))
            raise
        return waiting.call, self._outcome(waiting.call, waiting.client, waiting.running)

    def close(self) -> None:
        for key in list(self._waiting):
            self._waiting[key].running.cancel()
            self._forget(key)

    async def _run(self, call: Call, client: Client, context: Context) -> ToolResult:
        sending = asyncio.create_task(client.send_lines()) if client.wants_lines else None
        try:
            answer = await invoke(self._invoker, call, context)
            assert isinstance(answer, ToolResult)  # no dry run was asked for
            return answer
        finally:
            if sending is not None:
                await client.flush()
                sending.cancel()
                await asyncio.wait({sending})

    async def _until_asked(self, running: asyncio.Task[ToolResult], client: Client) -> None:
        asked = asyncio.ensure_future(client.is_asked.wait())
        try:
            await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()

    def _outcome(self, call: Call, client: Client, running: asyncio.Task[ToolResult]) -> ToolResult:
        if running.done():
            answer = running.result()
            if answer.error is not None and client.lacking:
                data = {"requiredCapabilities": dict(client.lacking)}
                raise MCPError(MISSING_CAPABILITY, answer.error.message, data)
            return answer
        key = self._keep_waiting(call, client, running)
        raise InputRequired(_asking(client, STATE_PREFIX + key))

    def _keep_waiting(self, call: Call, client: Client, running: asyncio.Task[ToolResult]) -> str:
        """Return the name under which it waits. Raises MCPError when too many do."""
        of_one = Counter(each.call.principal.id for each in self._waiting.values())[call.principal.id]
        if len(self._waiting) >= _WAITING_MAX or of_one >= _OF_ONE_MAX:
            running.cancel()
            raise MCPError(INVALID_PARAMS, "Too many calls wait for an answer. Answer some of them first.")
        key = secrets.token_urlsafe(16)
        # Otherwise a client that never returns would keep a call and its slot for ever.
        expiry = asyncio.get_running_loop().call_later(_PERSON_S, self._expire, key)
        self._waiting[key] = _Waiting(call, client, running, expiry)
        return key

    def _expire(self, key: str) -> None:
        self._waiting[key].running.cancel()
        self._forget(key)

    def _forget(self, key: str) -> None:
        self._waiting.pop(key).expiry.cancel()


async def _wait_until_done(running: asyncio.Task[ToolResult]) -> None:
    await asyncio.wait({running})


def _asking(client: Client, state: str) -> dict[str, Any]:
    return {"resultType": "input_required", "inputRequests": dict(client.question), "requestState": state}
