"""Relays requests and notifications of an upstream server during a call to the client that makes the call.

Only what the source's `relay` names is relayed, and only to a client that declares it can answer. A server of
2026-07-28 learns with each call what its client can be asked. A server of 2025-11-25 learns it at the handshake and
sends its own requests, which do not name their call: they are relayed only while exactly one call runs there, and not
for a while after another principal's call was given up.

A form is rebuilt from members known to be harmless, and names the tool that asks. A client's answer is returned
unchanged: the server asked for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mcp import MCPError
from mcp_types import (
    INVALID_REQUEST,
    REQUEST_TIMEOUT,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
    LoggingMessageNotificationParams,
)
from pydantic import BaseModel, ValidationError

from toolhub_service.adapters.mcp import failures
from toolhub_service.adapters.mcp.idle import IdleLimit
from toolhub_service.adapters.mcp.kind import Relay
from toolhub_service.adapters.upstream import as_object, as_string, quote_foreign
from toolhub_service.domain.call import CallingClient, GrantedCall
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.secrets import Redact

if TYPE_CHECKING:
    from mcp.client.session import ElicitationFnT, ListRootsFnT, LoggingFnT, SamplingFnT

MISSING_CAPABILITY: Final = -32021
SOURCE_META: Final = "toolhub/source"

# A server that was told to cancel may continue for a while and ask for a call that no longer runs.
_GIVEN_UP_S: Final = 60.0

_KINDS: Final[Mapping[str, Relay]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
Reply = TypeVar("Reply", bound=BaseModel)
_NOT_ASKED: Final = ErrorData(
    code=INVALID_REQUEST,
    message="The user was not asked: this call runs as a job, its client declares no such capability, the form is not "
    "one of plain values, or several calls run on this server, which does not say for which of them it asks.",
)


class Relayed:
    """The relayed requests of one call."""

    def __init__(self, call: GrantedCall, client: CallingClient, allowed: frozenset[Relay], redact: Redact) -> None:
        self._call = call
        self._client = client
        self._allowed = allowed
        self._redact = redact
        self.idle = IdleLimit(0.0)
        """Of the call, which is not idle while its client is asked."""

    @property
    def principal_id(self) -> str:
        return self._call.call.principal.id

    @property
    def capabilities(self) -> dict[str, Any]:
        """Return what the server may ask, as MCP's ClientCapabilities."""
        known = self._client.capabilities
        return {kind: {} for kind in ("elicitation", "sampling", "roots") if kind in self._allowed and kind in known}

    def gives(self, requests: JsonObject) -> bool:
        """Return whether the client can be asked all of it."""
        kinds = {_KINDS.get(as_string((as_object(each) or {}).get("method"))) for each in requests.values()}
        return bool(kinds) and kinds <= self.capabilities.keys()

    async def answers(self, requests: JsonObject, form_of: Callable[[JsonObject], JsonObject | None]) -> JsonObject:
        """Return the client's answers, by key. Raises ToolFailure, also for a form that no person can be shown."""
        asked: dict[str, JsonObject] = {}
        for key, request in requests.items():
            shown = self._prepare_request(as_object(request) or {}, form_of)
            if shown is None:
                raise failures.cannot_be_asked(self._call, "it asks its user by a page or a form of nested values")
            asked[key] = shown
        with self.idle.suspend():
            return await self._client.ask(asked)

    def missing(self, data: object) -> None:
        """Note that the server requires the client to declare something (-32021) that it could declare."""
        required = as_object((as_object(data) or {}).get("requiredCapabilities")) or {}  # type: ignore[arg-type]
        lacking: dict[str, JsonValue] = {
            kind: {} for kind in required if kind in self._allowed and kind not in self._client.capabilities
        }
        if lacking:
            self._client.lacks(lacking)

    @property
    def on_log(self) -> Callable[[str, str, Any], None] | None:
        """Return what receives a line of the server's log; None: log lines are not relayed."""
        return self._log if "logging" in self._allowed else None

    def _log(self, level: str, logger: str, data: JsonValue) -> None:
        self._client.log(level, f"{self._call.spec.source}/{logger}" if logger else self._call.spec.source, data)

    def _prepare_request(
        self, request: JsonObject, form_of: Callable[[JsonObject], JsonObject | None]
    ) -> JsonObject | None:
        """Return the request as the client gets it; None: it cannot be shown."""
        params = dict(as_object(request.get("params")) or {})
        params["_meta"] = {SOURCE_META: self._call.spec.source}
        if request.get("method") == "elicitation/create":
            form = form_of(params)
            # A form that the hub cannot check is not shown to a person.
            if form is None:
                return None
            words = quote_foreign(as_string(params.get("message")), self._redact)
            message = f"{self._call.spec.name} asks: {words}"
            schema = {"type": "object", "properties": form.get("properties", {}), "required": form.get("required", [])}
            params = {"mode": "form", "message": message, "requestedSchema": schema, "_meta": params["_meta"]}
        return {"method": request.get("method"), "params": params}


class Running:
    """The calls that run on one server, and the tasks that are followed there."""

    def __init__(self) -> None:
        self._calls: list[Relayed | None] = []
        self._given_up_s: dict[str, float] = {}
        """By principal whose call was given up unanswered: until when (loop clock) its server may still ask for it."""

    @contextmanager
    def enter(self, relayed: Relayed | None, principal_id: str) -> Iterator[None]:
        self._calls.append(relayed)
        is_answered = False
        try:
            yield
            is_answered = True
        except MCPError as error:
            # Any other error is an answer: the server has finished the call.
            is_answered = error.error.code != REQUEST_TIMEOUT
            raise
        finally:
            self._calls.remove(relayed)
            if not is_answered:
                now_s = asyncio.get_running_loop().time()
                kept = {who: until_s for who, until_s in self._given_up_s.items() if until_s > now_s}
                self._given_up_s = kept | {principal_id: now_s + _GIVEN_UP_S}

    @property
    def only(self) -> Relayed | None:
        """Return the call whose client can be asked, if no other call runs and none of another principal may continue
        there."""
        # In 2025-11-25 a server's question names no call: with two running calls it could reach the wrong person.
        only = self._calls[0] if len(self._calls) == 1 else None
        now_s = asyncio.get_running_loop().time()
        others = (who for who, until_s in self._given_up_s.items() if until_s > now_s)
        return only if only is None or all(who == only.principal_id for who in others) else None


class Callbacks:
    """Callbacks of a session of 2025-11-25, in which a server sends requests of its own."""

    def __init__(
        self, relay: frozenset[Relay], running: Running, form_of: Callable[[JsonObject], JsonObject | None]
    ) -> None:
        self._relay = relay
        self._running = running
        self._form_of = form_of

    def elicitation(self, otherwise: ElicitationFnT | None) -> ElicitationFnT | None:
        if "elicitation" not in self._relay:
            return otherwise

        async def answer(context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
            if isinstance(params, ElicitRequestFormParams):
                reply = await self._ask_client("elicitation/create", params)
                if reply is not None:
                    return _parse_reply(ElicitResult, reply)
            # Never "decline": the server would take it for the user's own answer.
            return _NOT_ASKED if otherwise is None else await otherwise(context, params)

        return answer

    def sampling(self) -> SamplingFnT | None:
        async def answer(
            context: Any,  # noqa: ARG001
            params: CreateMessageRequestParams,
        ) -> CreateMessageResult | ErrorData:
            return _parse_reply(CreateMessageResult, await self._ask_client("sampling/createMessage", params))

        return answer if "sampling" in self._relay else None

    def roots(self) -> ListRootsFnT | None:
        async def answer(context: Any) -> ListRootsResult | ErrorData:  # noqa: ARG001
            return _parse_reply(ListRootsResult, await self._ask_client("roots/list", None))

        return answer if "roots" in self._relay else None

    def logging(self) -> LoggingFnT | None:
        async def show(params: LoggingMessageNotificationParams) -> None:
            relayed = self._running.only
            if relayed is not None and relayed.on_log is not None:
                relayed.on_log(params.level, params.logger or "", params.data)

        return show if "logging" in self._relay else None

    async def _ask_client(self, method: str, params: Any) -> JsonValue:
        """Return the answer of the only call's client; None: nobody can be asked."""
        relayed = self._running.only
        sent = {} if params is None else params.model_dump(mode="json", by_alias=True, exclude_none=True)
        requests: dict[str, JsonValue] = {"request": {"method": method, "params": sent}}
        if relayed is None or not relayed.gives(requests):
            return None
        try:
            return (await relayed.answers(requests, self._form_of)).get("request")
        except ToolFailure:
            return None


def _parse_reply(model: type[Reply], reply: JsonValue) -> Reply | ErrorData:
    if reply is None:
        return _NOT_ASKED
    try:
        return model.model_validate(reply)
    except ValidationError:
        return ErrorData(code=INVALID_REQUEST, message="The client's answer is not valid.")
