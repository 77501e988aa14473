"""Tools of `everything` that ask the client something in the middle of a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from mcp_types import (
    CallToolRequestParams,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    ListRootsRequest,
    ListRootsResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS


def _form(message: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": schema},
    }


def _words_of_model(prompt: str) -> dict[str, Any]:
    message = {"role": "user", "content": {"type": "text", "text": prompt}}
    return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 100}}


_TEXT: Final = {"type": "string"}
_ROOTS: Final = {"method": "roots/list", "params": {}}
_NAME: Final = _form("What is your name?", name=_TEXT)
_CONFIRM: Final = _form("Please confirm", ok={"type": "boolean"})
# SEP-1034
_DEFAULTS: Final = _form(
    "Please review the defaults",
    name={"type": "string", "description": "User name", "default": "John Doe"},
    age={"type": "integer", "description": "User age", "default": 30},
    score={"type": "number", "description": "User score", "default": 95.5},
    status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    verified={"type": "boolean", "description": "Verified", "default": True},
)
# SEP-1330
_ENUMS: Final = _form(
    "Please choose",
    untitledSingle={"type": "string", "enum": ["option1", "option2", "option3"]},
    titledSingle={
        "type": "string",
        "oneOf": [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)],
    },
    legacyEnum={"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
    untitledMulti={
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
    },
    titledMulti={
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {"anyOf": [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]},
    },
)

ASKING: Final[Mapping[str, list[dict[str, Any]]]] = {
    "test_elicitation": [{"user": _form("", username=_TEXT, email=_TEXT)}],
    "test_elicitation_sep1034_defaults": [{"form": _DEFAULTS}],
    "test_elicitation_sep1330_enums": [{"form": _ENUMS}],
    "test_sampling": [{"words": _words_of_model("")}],
    "test_streaming_elicitation": [{"user_name": _NAME}],
    "test_input_required_result_elicitation": [{"user_name": _NAME}],
    "test_input_required_result_sampling": [{"capital": _words_of_model("What is the capital of France?")}],
    "test_input_required_result_list_roots": [{"client_roots": _ROOTS}],
    "test_input_required_result_request_state": [{"confirm": _CONFIRM}],
    "test_input_required_result_tampered_state": [{"confirm": _CONFIRM}],
    "test_input_required_result_multiple_inputs": [
        {"user_name": _NAME, "greeting": _words_of_model("Generate a greeting"), "client_roots": _ROOTS}
    ],
    "test_input_required_result_multi_round": [
        {"step1": _form("Step 1: What is your name?", name=_TEXT)},
        {"step2": _form("Step 2: What is your favorite color?", color=_TEXT)},
    ],
    "test_input_required_result_capabilities": [{"words": _words_of_model("Say hello"), "user_name": _NAME}],
}
"""What each asks, round by round, by key."""


def _with_arguments(request: dict[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    if "message" in args:
        return {**request, "params": {**request["params"], "message": args["message"]}}
    if "prompt" in args:
        return _words_of_model(args["prompt"])
    return request


async def asks(context: Any, params: CallToolRequestParams) -> dict[str, Any]:
    """What it has been given, once it has been given all; before that it asks."""
    args = params.arguments or {}
    rounds = [
        {key: _with_arguments(request, args) for key, request in requests.items()} for requests in ASKING[params.name]
    ]
    if params.name == "test_input_required_result_capabilities":
        known = context.session.client_capabilities
        has = {"sampling/createMessage": known.sampling, "elicitation/create": known.elicitation}
        rounds = [{key: each for key, each in rounds[0].items() if has[each["method"]] is not None}]
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return _given([await _asked_once(context, request) for requests in rounds for request in requests.values()])
    had: dict[str, Any] = json.loads(params.request_state or "{}")
    had |= {
        key: each.model_dump(mode="json", by_alias=True, exclude_none=True)
        for key, each in (params.input_responses or {}).items()
    }
    for requests in rounds:
        if missing := {key: request for key, request in requests.items() if key not in had}:
            state = {key: had[key] for done in rounds for key in done if key in had}
            answer = {"resultType": "input_required", "inputRequests": missing}
            is_kept = bool(state) or "state" in params.name or "mult" in params.name
            return {**answer, "requestState": json.dumps(state)} if is_kept else answer
    return _given([had[key] for requests in rounds for key in requests])


async def _asked_once(context: Any, request: dict[str, Any]) -> Any:
    """By a request of the server's own, as in 2025-11-25."""
    if request["method"] == "sampling/createMessage":
        wanted = CreateMessageRequestParams.model_validate(request["params"])
        answer = await context.session.send_request(CreateMessageRequest(params=wanted), CreateMessageResult)
    elif request["method"] == "elicitation/create":
        form = ElicitRequestFormParams.model_validate(request["params"])
        answer = await context.session.send_request(ElicitRequest(params=form), ElicitResult)
    else:
        answer = await context.session.send_request(ListRootsRequest(), ListRootsResult)
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)


def _given(answers: list[Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(answers)}], "isError": False, "resultType": "complete"}
