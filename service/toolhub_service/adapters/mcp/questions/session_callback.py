"""The session's callback for elicitation/create requests, and answers from the defaults of a schema.

`elicitation: decline` does not declare the capability, so that servers know beforehand. `ask` declares it: servers of
2026-07-28 send InputRequiredResult, which becomes an approval; an elicitation/create request (2025-11-25), during
which the call stays open, is declined. `defaults` accepts with the defaults of the schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult

from toolhub_service.adapters.mcp.kind import Elicitation

if TYPE_CHECKING:
    from mcp.client.session import ClientRequestContext, ElicitationFnT


def elicitation_callback(elicitation: Elicitation) -> ElicitationFnT | None:
    """Return the SDK's callback; None leaves the capability undeclared."""
    if elicitation == "decline":
        return None

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:  # noqa: ARG001
        content = None
        if elicitation == "defaults" and isinstance(params, ElicitRequestFormParams):
            content = defaults_of(params.requested_schema)
        return ElicitResult(action="decline") if content is None else ElicitResult(action="accept", content=content)

    return answer


def defaults_of(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the defaults of an object schema's properties; None when a required property has none."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return None if schema.get("required") else {}
    given = {name: rule["default"] for name, rule in properties.items() if isinstance(rule, dict) and "default" in rule}
    return given if all(name in given for name in schema.get("required") or ()) else None
