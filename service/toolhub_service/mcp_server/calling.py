"""One call on behalf of a client: judged and run by the pipeline, and the ladder where a person must approve it.

An approval belongs to one principal and one call with these arguments, so a call that comes again finds its own: once
granted it is used without the client naming it. A client that can ask its user is asked meanwhile, by an elicitation
in the older era and an `input_required` result in the newer one; any other is refused with the approval's id. The user
is never the approver: only an approver of the hub decides, and the user says when that has been done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import InputResponses

from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import ToolResult
from toolhub_service.mcp_server.calls import (
    Context,
    answer_of,
    call_of,
    context_of,
    failed,
    id_of,
    invoke,
    purpose_of,
)
from toolhub_service.mcp_server.content import blocks_of, is_blocks
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.offer import Offer
from toolhub_service.runtime.attach_evidence import cut_to
from toolhub_service.runtime.route import not_found
from toolhub_service.schema import canonical_json

INLINE_MAX_BYTES: Final = 256 * 1024
"""Of a result: it is sent twice, once as a text within JSON."""

_INPUT: Final = "approval"
_NOTHING_ASKED: Final[Any] = {"type": "object", "properties": {}}
# For a person to answer an elicitation of the older era, which keeps its request open.
_PERSON_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back with a call that an `input_required` result had asked for."""

    approval_id: str
    """From the state that the SDK has sealed for this principal, tool and arguments."""
    is_accepted: bool


def answered(request_state: str | None, responses: InputResponses | None) -> Answered | None:
    if request_state is None:
        return None
    response: Any = (responses or {}).get(_INPUT)
    return Answered(request_state, getattr(response, "action", "") == "accept")


class Calling:
    def __init__(self, engine: Engine, offer: Offer) -> None:
        self._engine = engine
        self._offer = offer

    def call(
        self,
        context: Context,
        principal: Principal,
        session_id: str,
        name: str,
        arguments: Mapping[str, Any],
        approval_id: str = "",
    ) -> Call:
        return call_of(
            self._offer.tool_of(name),
            arguments,
            principal,
            context_of(context, principal, session_id),
            call_id=self._engine.call_ids.next(),
            purpose=purpose_of(context),
            approval_id=approval_id or id_of(context, "approval_id"),
            idempotency_key=id_of(context, "idempotency_key"),
        )

    async def make(self, context: Context, call: Call, came_back: Answered | None = None) -> dict[str, Any]:
        """A CallToolResult, or an InputRequiredResult where a person must do something first."""
        if came_back is not None and came_back.is_accepted:
            call = call._replace(approval_id=came_back.approval_id)
        answer = await self._invoke(context, call)
        approval_id, state = _asked(answer.error)
        if approval_id and state == "APPROVED" and not call.approval_id:
            return await self.told(call, await self._invoke(context, self._again(call, approval_id)))
        if approval_id and state == "PENDING" and came_back is None and _asks_people(context):
            assert answer.error is not None
            message = f"{answer.error.message} When it has been approved, accept to go on."
            if not context.session.can_send_request:
                return _input_required(message, approval_id)
            if await _accepted(context, message):
                answer = await self._invoke(context, self._again(call, approval_id))
        return await self.told(call, answer)

    async def told(self, call: Call, answer: ToolResult) -> dict[str, Any]:
        """The answer, in which what is hidden looks like what does not exist. It has been recorded as it was."""
        if answer.error is not None:
            spec = self._engine.catalog.get(call.tool)
            if spec is None or not self._engine.policy.could_allow(call.principal.id, spec):
                return failed(not_found(call, self._engine.catalog, self._engine.policy).error)
        answer = await self._fitting(call, answer)
        blocks = await blocks_of(answer, call.principal.id, self._engine.artifacts) if is_blocks(answer) else None
        return answer_of(answer, blocks)

    async def _fitting(self, call: Call, answer: ToolResult) -> ToolResult:
        """The answer as it fits an event of a stream, of which clients take 1 MiB: what is larger is cut, and kept."""
        value, cut = answer.value, None
        if answer.error is None and _is_long(value):
            value, cut = await asyncio.to_thread(cut_to, value, INLINE_MAX_BYTES)
        if cut is None:
            return answer
        kept: tuple[ArtifactRef, ...] = ()
        if not answer.truncated:  # else the pipeline has kept the whole
            with suppress(ToolFailure):  # a courtesy: the answer stands without
                kept = (await self._engine.artifacts.keep_whole(call, cut.whole),)
        return answer._replace(value=value, artifacts=(*answer.artifacts, *kept), truncated=True)

    async def _invoke(self, context: Context, call: Call) -> ToolResult:
        answer = await invoke(self._engine.invoker, call, context)
        assert isinstance(answer, ToolResult)  # no dry run was asked for
        return answer

    def _again(self, call: Call, approval_id: str) -> Call:
        return call._replace(call_id=self._engine.call_ids.next(), approval_id=approval_id)


def _is_long(value: JsonValue) -> bool:
    return len(canonical_json.dumps(value)) > INLINE_MAX_BYTES


def _asked(error: ToolError | None) -> tuple[str, str]:
    """(id, state) of the approval that the call waits for; empty: it waits for none."""
    if error is None or error.kind is not ErrorKind.APPROVAL_REQUIRED:
        return "", ""
    return str(error.details.get("approval_id", "")), str(error.details.get("approval_state", ""))


def _asks_people(context: Context) -> bool:
    """Whether the client can show its user a form."""
    known = context.session.client_capabilities
    elicitation = known.elicitation if known is not None else None
    # Neither mode named: the older form of the capability, which meant forms.
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _input_required(message: str, approval_id: str) -> dict[str, Any]:
    form = {"mode": "form", "message": message, "requestedSchema": _NOTHING_ASKED}
    return {
        "resultType": "input_required",
        "inputRequests": {_INPUT: {"method": "elicitation/create", "params": form}},
        "requestState": approval_id,
    }


async def _accepted(context: Context, message: str) -> bool:
    """Whether the user says that the call may go on."""
    with anyio.move_on_after(_PERSON_S):
        try:
            result = await context.session.elicit_form(message, _NOTHING_ASKED, related_request_id=context.request_id)
        except MCPError:
            return False  # the client cannot after all
        return result.action == "accept"
    return False
