"""How a server's questions (elicitation) are answered when nobody is there to ask.

`decline` does not declare the capability at all, so that a server knows beforehand. `ask` declares it, so that servers
of the modern era send InputRequiredResult, which the adapter turns into an approval; what comes as a request of its own
(the era of 2025-11-25 holds the call open meanwhile) is declined. `defaults` accepts with the defaults of the schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult

from toolhub_service.adapters.mcp.terms import Elicitation

if TYPE_CHECKING:
    from mcp.client.session import ClientRequestContext, ElicitationFnT


def answering(elicitation: Elicitation) -> ElicitationFnT | None:
    """The SDK's callback; None leaves the capability undeclared."""
    if elicitation == "decline":
        return None
    return _by_defaults if elicitation == "defaults" else _decline


def defaults_of(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The defaults of an object schema's properties; None when a required property has none."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return None if schema.get("required") else {}
    given = {name: rule["default"] for name, rule in properties.items() if isinstance(rule, dict) and "default" in rule}
    return given if all(name in given for name in schema.get("required") or ()) else None


def answer_by_defaults(params: ElicitRequestParams) -> ElicitResult:
    """What `defaults` says to a question, whichever way it came."""
    content = defaults_of(params.requested_schema) if isinstance(params, ElicitRequestFormParams) else None
    return ElicitResult(action="decline") if content is None else ElicitResult(action="accept", content=content)


async def _decline(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:  # noqa: ARG001
    return ElicitResult(action="decline")


async def _by_defaults(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:  # noqa: ARG001
    return answer_by_defaults(params)
