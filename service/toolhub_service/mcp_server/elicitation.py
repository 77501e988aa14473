"""How a client asks its user, by a form or a link, in any protocol version.

While an approver of the hub decides, the user is not the approver: "accept" says that the approver has decided, or that
the user wants to go on waiting; "decline" says that the call is not wanted any more. Such an answer grants nothing. Of
a plan, the answer is the decision (`plan_confirmation.py`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND

from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.mcp_server.convert_calls import Context

ACCEPT: Final = "accept"
NOT_ASKED: Final = "not asked"
# Errors of a client that cannot ask after all. Any other, such as that of a window which the user has closed, is no
# agreement.
_CANNOT_ASK: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, INVALID_REQUEST})
_NOTHING_ASKED: Final[Any] = {"type": "object", "properties": {}}
# Timeout for a person to answer an elicitation of the older protocol, which keeps its request open.
_PERSON_S: Final = 600.0


class Awaited(NamedTuple):
    """An approval that a call waits for."""

    approval_id: str
    is_granted: bool
    is_pending: bool


def awaited_approval(error: ToolError | None) -> Awaited | None:
    """Return the approval that a refused call waits for; None: it waits for none."""
    if error is None or error.kind is not ErrorKind.APPROVAL_REQUIRED:
        return None
    approval_id = str(error.details.get("approval_id", ""))
    state = str(error.details.get("approval_state", ""))
    # Without an id (the used one was another call's) there is nothing to wait for.
    return Awaited(approval_id, state == "APPROVED", state == "PENDING") if approval_id else None


def how_to_approve(approval_id: str, url: str) -> str:
    """Return a text that a user can pass on to an approver. `url`: of the page for the decision, if there is one."""
    return f"An approver decides with: toolhub approvals approve {approval_id}" + (f", or at {url}" if url else "")


class Prompt(NamedTuple):
    """What a client shows its user."""

    approval_id: str
    message: str
    url: str
    """URL of the page for the decision; empty: there is none."""

    def mode(self, context: Context) -> str:
        """Return `url` or `form`, as this request's client supports it; empty: neither."""
        known = context.session.client_capabilities
        elicitation = known.elicitation if known is not None else None
        if elicitation is None:
            return ""
        if elicitation.url is not None and self.url:
            return "url"
        # Neither mode named: the older form of the capability, which meant forms.
        return "form" if elicitation.form is not None or elicitation.url is None else ""

    def request(self, context: Context) -> dict[str, Any]:
        """Return an `elicitation/create`, for `inputRequests` of 2026-07-28. The client must have a mode."""
        if self.mode(context) == "url":
            params = {"mode": "url", "message": self.message, "url": self.url}
        else:
            params = {"mode": "form", "message": self.message, "requestedSchema": _NOTHING_ASKED}
        return {"method": "elicitation/create", "params": params}

    async def ask_user(self, context: Context) -> bool:
        """Return whether the user accepts; as `answer`."""
        return await self.answer(context) == ACCEPT

    async def answer(self, context: Context) -> str:
        """Ask by a request of the older protocol, for ten minutes at most, whether the call may go on. Return ACCEPT,
        NOT_ASKED, or what else the user did; empty after that time, and when the client failed."""
        session = context.session
        request_id = context.request_id
        with anyio.move_on_after(_PERSON_S):
            try:
                if self.mode(context) == "url":
                    result = await session.elicit_url(self.message, self.url, self.approval_id, request_id)
                else:
                    result = await session.elicit_form(self.message, _NOTHING_ASKED, request_id)
            except MCPError as refused:
                return NOT_ASKED if refused.code in _CANNOT_ASK else ""
            return str(result.action)
        return ""
