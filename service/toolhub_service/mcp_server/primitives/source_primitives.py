"""Prompts and resources of sources, which are tools of the catalog: their listing for a caller, and calls of them.

Every request for one is an ordinary call: checked, bounded and recorded under the caller's own rights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.tool import Primitive, ToolSpec
from toolhub_service.mcp_server.calling import Calling
from toolhub_service.mcp_server.convert_calls import META_PREFIX, Context, error_to_dict, invoke
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.offer import Offer
from toolhub_service.mcp_server.relay import Client

SOURCE_META: Final = f"{META_PREFIX}source"
"""Which source an answer comes from."""

# Errors that the client can fix by another request.
_ITS_OWN: Final = frozenset({ErrorKind.INVALID_INPUT, ErrorKind.INPUT_SCHEMA_INVALID, ErrorKind.NOT_FOUND})


class Requester(NamedTuple):
    """The caller, and its request."""

    context: Context
    principal: Principal
    session_id: str
    client: Client | None = None
    """The client, if it can be asked during the request."""
    resumed: ToolResult | None = None
    """The answer of a call that waited for the client."""


class Primitives:
    def __init__(self, engine: Engine, offer: Offer, calling: Calling) -> None:
        self._engine = engine
        self._offer = offer
        self._calling = calling
        self._known: dict[Primitive, dict[str, ToolSpec]] = {}
        self._known_version = -1

    def all(self, primitive: Primitive) -> Mapping[str, ToolSpec]:
        """Return tools of that kind in any state, for any caller, by their names and in the order of these."""
        # The version, which is one comparison; the revision would have to be worked out at each request.
        if self._known_version != self._engine.catalog.version:
            self._known = {}
            for spec in self._engine.catalog.all():
                if spec.primitive is not Primitive.TOOL:
                    self._known.setdefault(spec.primitive, {})[spec.name] = spec
            self._known_version = self._engine.catalog.version
        return self._known.get(primitive, {})

    def of_source(self, primitive: Primitive, source: str) -> ToolSpec | None:
        return next((spec for spec in self.all(primitive).values() if spec.source == source), None)

    def may_see(self, principal: Principal, spec: ToolSpec) -> bool:
        return self._offer.may_see(principal, spec)

    def is_unprefixed(self, name: str) -> bool:
        return self._offer.is_unprefixed(name)

    def is_hidden(self, principal: Principal, spec: ToolSpec) -> bool:
        """Return whether policy could never allow it."""
        return not self._engine.policy.could_allow(principal, spec)

    async def call(self, requester: Requester, spec: ToolSpec, args: Mapping[str, Any]) -> ToolResult:
        """Call it; an approval that was granted for exactly this call is used."""
        if requester.resumed is not None:
            return requester.resumed
        call = self._calling.call(
            requester.context, requester.principal, requester.session_id, spec.name, args, client=requester.client
        )
        answer = await self._invoke(requester, call)
        error = answer.error
        if error is not None and error.kind is ErrorKind.APPROVAL_REQUIRED and not call.approval_id:
            granted = error.details.get("approval_id") if error.details.get("approval_state") == "APPROVED" else None
            if isinstance(granted, str) and granted:
                again = call._replace(call_id=self._engine.call_ids.next(), approval_id=granted)
                return await self._invoke(requester, again)
        return answer

    async def _invoke(self, requester: Requester, call: Any) -> ToolResult:
        if requester.client is not None:
            return await self._calling.relay.invoke(call, requester.context)
        answer = await invoke(self._engine.invoker, call, requester.context)
        assert isinstance(answer, ToolResult)  # no dry run was asked for
        return answer


def meta_of(answer: ToolResult, spec: ToolSpec) -> dict[str, Any]:
    meta: dict[str, Any] = {META_PREFIX + "call_id": answer.call_id, SOURCE_META: spec.source}
    if answer.truncated:
        meta[META_PREFIX + "truncated"] = True
    return meta


def protocol_error(error: ToolError) -> MCPError:
    """Return a refusal as a protocol error that says what to do, with the same structure as a tool's."""
    # The protocol has no code for "refused": the message and `_meta` carry the reason.
    code = INVALID_PARAMS if error.kind in _ITS_OWN else INTERNAL_ERROR
    return MCPError(code, f"{error.kind.value}: {error.message}", error_to_dict(error)["_meta"])
