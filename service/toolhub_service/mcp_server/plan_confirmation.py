"""How a call over MCP commits the plan that it needs.

The refusal contains the plan (`runtime/plan_offers.py`). A client that can ask its user shows it to them: "accept"
commits exactly this plan, and the model never gets its digest. With any other client the model gets the digest, and may
send it in an argument of the same call, as a program may over gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import structs

from toolhub_service.domain.call import Call
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.json import JsonObject
from toolhub_service.guards.foreign_text import on_one_line
from toolhub_service.mcp_server.elicitation import Prompt
from toolhub_service.schema import canonical_json

PLAN_STATE: Final = "plan:"
"""Begins the state of a call whose user is asked about its plan."""
_ARGUMENTS_MAX_CHARS: Final = 500
# More than is shown, so that no secret is cut in half; hiding those of megabytes takes seconds.
_REDACTED_CHARS: Final = 8_000


class OfferedPlan(NamedTuple):
    digest: str
    effects: tuple[str, ...]

    def prompt(self, tool: str, arguments: str) -> Prompt:
        """Return the question to the user. `tool`: as listed. `arguments`: as `show_arguments` returns them."""
        would = " ".join(self.effects) or "The tool does not say what it would do."
        message = f"{tool} would do this: {would} Its arguments: {arguments} Accept to do exactly this, decline not to."
        return Prompt("", message, "")

    @property
    def state(self) -> str:
        return PLAN_STATE + self.digest


def read_offered_plan(error: ToolError | None) -> OfferedPlan | None:
    """Return the plan that a refusal offers; None: it offers none."""
    if error is None or error.kind is not ErrorKind.PLAN_REQUIRED or "plan_argument" not in error.details:
        return None
    effects = error.details.get("effects")
    shown = tuple(map(str, effects)) if isinstance(effects, list) else ()
    return OfferedPlan(str(error.details["plan_digest"]), shown)


def refuse_declined(tool: str) -> ToolError:
    """Return the refusal of a call whose plan the user did not accept: without the digest that would commit it."""
    message = (
        f"{tool}: the user was asked whether to do this, and did not agree. Nothing has been done. Do not make this "
        "call again unless the user asks for it."
    )
    return ToolError(kind=ErrorKind.PLAN_REQUIRED, message=message, details={"declined": True})


def refuse_changed(tool: str, error: ToolError) -> ToolError:
    """Return the refusal of a call whose user agreed to a plan that does not fit any more."""
    hidden = ("plan_digest", "plan_argument", "remedy")
    details: JsonObject = {name: value for name, value in error.details.items() if name not in hidden}
    message = (
        f"{tool}: what the call would do has changed since the user agreed to it, or the plan has expired. Nothing has "
        "been done. Make the same call again: the user is shown the new plan."
    )
    return structs.replace(error, message=message, details=details)


async def show_arguments(call: Call, redact: Callable[[str], str]) -> str:
    """Return the call's arguments for its user: without secrets, of long ones the beginning and how much follows."""
    unread = call.unread
    if unread is None:
        return _show(call.args, redact)
    return await asyncio.to_thread(lambda: _show(unread()[0], redact))  # large: the hub has not read them yet


def _show(args: JsonObject, redact: Callable[[str], str]) -> str:
    text = canonical_json.dumps(args).decode()
    beginning = on_one_line(redact(text[:_REDACTED_CHARS]))
    return excerpt(beginning, _ARGUMENTS_MAX_CHARS, left_out=max(0, len(text) - _REDACTED_CHARS))
