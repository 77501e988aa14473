"""The MCP server that the suite's server scenarios are written for, upstream of the hub: its tools, prompts and
resources have the names that the suite asks for (SEP numbers are those of its scenarios).

On the SDK's low-level server, in the test's own process, by either protocol. What a tool asks of the client is an
`input_required` result in 2026-07-28 and a request of the server's own in 2025-11-25.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final

import uvicorn
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, PromptsListChanged, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    LOG_LEVEL_META_KEY,
    CallToolRequestParams,
    CompleteRequestParams,
    EmptyResult,
    GetPromptRequestParams,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    SetLevelRequestParams,
    SubscribeRequestParams,
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tests.conformance.everything_asks import ASKING, asks

PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV: Final = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
_PNG_BLOCK: Final = {"type": "image", "data": PNG, "mimeType": "image/png"}
_STEP_S: Final = 0.15  # Longer than the hub's pause between two reports
_MISSING_CAPABILITY: Final = -32021
_NOT_FOUND_ONCE: Final = -32002

PLAIN: Final[Mapping[str, list[dict[str, Any]]]] = {
    "test_simple_text": [{"type": "text", "text": "This is a simple text response for testing."}],
    "test_image_content": [_PNG_BLOCK],
    "test_audio_content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}],
    "test_embedded_resource": [
        {"type": "resource", "resource": {"uri": "test://embedded", "mimeType": "text/plain", "text": "Embedded."}}
    ],
    "test_multiple_content_types": [
        {"type": "text", "text": "Multiple content types test:"},
        _PNG_BLOCK,
        {
            "type": "resource",
            "resource": {"uri": "test://mixed", "mimeType": "application/json", "text": '{"test":"data","value":123}'},
        },
    ],
    "test_reconnection": [{"type": "text", "text": "Answered."}],
    "test_x_mcp_header": [{"type": "text", "text": "Headers and arguments agree."}],
    "json_schema_2020_12_tool": [{"type": "text", "text": "Called."}],
}
"""What tools that only answer answer."""

# SEP-1613 and SEP-2106: each keyword has to reach the client.
_JSON_SCHEMA_2020_12: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
_SCHEMAS: Final[Mapping[str, dict[str, Any]]] = {
    "json_schema_2020_12_tool": _JSON_SCHEMA_2020_12,
    "test_x_mcp_header": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "required": ["region"],
    },
    "test_sampling": {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
    "test_elicitation": {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
}
_OTHERS: Final = (
    *("test_tool_with_logging", "test_logging_tool", "test_tool_with_progress", "test_error_handling"),
    *("test_missing_capability", "test_trigger_tool_change", "test_trigger_prompt_change"),
)

_PROMPTS: Final[Mapping[str, tuple[str, ...]]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}
"""Their arguments, by name."""

_RESOURCES: Final[Mapping[str, dict[str, Any]]] = {
    "test://static-text": {"mimeType": "text/plain", "text": "This is the content of the static text resource."},
    "test://static-binary": {"mimeType": "image/png", "blob": PNG},
    "test://watched-resource": {"mimeType": "text/plain", "text": "Watched resource content"},
}
_TEMPLATE: Final = ("test://template/", "/data")
_FRESH: Final = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}


class Everything:
    """One server; `server` answers on any transport."""

    def __init__(self, more: Mapping[str, list[dict[str, Any]]] | None = None) -> None:
        """`more`: tools that only answer, besides those of the suite."""
        self._plain = {**PLAIN, **(more or {})}
        self._bus = InMemorySubscriptionBus()
        self._more_tools: list[str] = []
        self._more_prompts: list[str] = []
        self.server = _Server("everything", version="1.0", on_subscriptions_listen=ListenHandler(self._bus))
        add = self.server.add_request_handler
        add("tools/list", PaginatedRequestParams, self._list_tools)
        add("tools/call", CallToolRequestParams, self._call_tool)
        add("prompts/list", PaginatedRequestParams, self._list_prompts)
        add("prompts/get", GetPromptRequestParams, self._get_prompt)
        add("resources/list", PaginatedRequestParams, self._list_resources)
        add("resources/templates/list", PaginatedRequestParams, self._list_templates)
        add("resources/read", ReadResourceRequestParams, self._read_resource)
        add("resources/subscribe", SubscribeRequestParams, _nothing)
        add("resources/unsubscribe", UnsubscribeRequestParams, _nothing)
        add("completion/complete", CompleteRequestParams, _complete)
        add("logging/setLevel", SetLevelRequestParams, _nothing)

    # Tools

    async def _list_tools(self, context: Any, params: Any) -> dict[str, Any]:
        names = [*self._plain, *_OTHERS, *ASKING, *self._more_tools]
        return {"tools": [_tool(name) for name in names], **_FRESH}

    async def _call_tool(self, context: Any, params: CallToolRequestParams) -> dict[str, Any]:
        name = params.name
        if name in self._plain:
            return _answer(self._plain[name])
        if name in ASKING:
            return await asks(context, params)
        return await getattr(self, f"_{name}")(context)  # type: ignore[no-any-return]

    async def _test_tool_with_logging(self, context: Any) -> dict[str, Any]:
        for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            # In 2026-07-28 a request says whether it wants lines.
            if context.protocol_version not in MODERN_PROTOCOL_VERSIONS or LOG_LEVEL_META_KEY in (context.meta or {}):
                line = LoggingMessageNotification(params=LoggingMessageNotificationParams(level="info", data=words))
                await context.session.send_notification(line, context.request_id)
        return _answer([{"type": "text", "text": "Logged."}])

    _test_logging_tool = _test_tool_with_logging

    async def _test_tool_with_progress(self, context: Any) -> dict[str, Any]:
        for step in (0, 50, 100):
            await context.session.report_progress(step, 100, f"{step} of 100")
            await asyncio.sleep(_STEP_S)
        return _answer([{"type": "text", "text": "Done."}])

    async def _test_error_handling(self, context: Any) -> dict[str, Any]:
        words = "This tool intentionally returns an error for testing"
        return _answer([{"type": "text", "text": words}]) | {"isError": True}

    async def _test_missing_capability(self, context: Any) -> dict[str, Any]:
        known = context.session.client_capabilities
        if known is None or known.sampling is None:
            raise MCPError(_MISSING_CAPABILITY, "It needs sampling", {"requiredCapabilities": {"sampling": {}}})
        return _answer([{"type": "text", "text": "It has sampling."}])

    async def _test_trigger_tool_change(self, context: Any) -> dict[str, Any]:
        """A tool comes, or goes again."""
        self._more_tools = [] if self._more_tools else ["test_dynamic_tool"]
        await self._bus.publish(ToolsListChanged())
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            await context.session.send_tool_list_changed()
        return _answer([{"type": "text", "text": "Changed."}])

    async def _test_trigger_prompt_change(self, context: Any) -> dict[str, Any]:
        self._more_prompts = [] if self._more_prompts else ["test_dynamic_prompt"]
        await self._bus.publish(PromptsListChanged())
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            await context.session.send_prompt_list_changed()
        return _answer([{"type": "text", "text": "Changed."}])

    # Prompts and resources

    async def _list_prompts(self, context: Any, params: Any) -> dict[str, Any]:
        named = {**_PROMPTS, **dict.fromkeys(self._more_prompts, ())}
        return {
            "prompts": [
                {
                    "name": name,
                    "description": f"The prompt {name}.",
                    "arguments": [
                        {"name": each, "description": f"Argument {each}.", "required": True} for each in args
                    ],
                }
                for name, args in named.items()
            ],
            **_FRESH,
        }

    async def _get_prompt(self, context: Any, params: GetPromptRequestParams) -> dict[str, Any]:
        args = params.arguments or {}
        text: dict[str, Any] = {"type": "text", "text": "This is a simple prompt for testing."}
        content: list[dict[str, Any]] = [text]
        if params.name == "test_prompt_with_arguments":
            text["text"] = f"Prompt with arguments: arg1='{args['arg1']}', arg2='{args['arg2']}'"
        elif params.name == "test_prompt_with_embedded_resource":
            resource = {"uri": args["resourceUri"], "mimeType": "text/plain", "text": "Embedded resource content."}
            content = [{"type": "resource", "resource": resource}, text]
        elif params.name == "test_prompt_with_image":
            content = [_PNG_BLOCK, text]
        elif params.name == "test_input_required_result_prompt":
            given: Any = (params.input_responses or {}).get("user_context")
            if given is None:
                return _prompt_asks()
            text["text"] = f"Prompt with context: {given.content['context']}"
        return {"messages": [{"role": "user", "content": each} for each in content], "resultType": "complete"}

    async def _list_resources(self, context: Any, params: Any) -> dict[str, Any]:
        return {
            "resources": [
                {"uri": uri, "name": uri.removeprefix("test://"), "mimeType": has["mimeType"]}
                for uri, has in _RESOURCES.items()
            ],
            **_FRESH,
        }

    async def _list_templates(self, context: Any, params: Any) -> dict[str, Any]:
        template = {"uriTemplate": "{id}".join(_TEMPLATE), "name": "template", "mimeType": "application/json"}
        return {"resourceTemplates": [template], **_FRESH}

    async def _read_resource(self, context: Any, params: ReadResourceRequestParams) -> dict[str, Any]:
        uri, (before, after) = str(params.uri), _TEMPLATE
        held = _RESOURCES.get(uri)
        if held is None and uri.startswith(before) and uri.endswith(after):
            held = {"mimeType": "application/json", "text": f'{{"id": "{uri[len(before) : -len(after)]}"}}'}
        if held is None:
            is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
            raise MCPError(INVALID_PARAMS if is_modern else _NOT_FOUND_ONCE, "Resource not found", {"uri": uri})
        return {"contents": [{"uri": uri, **held}], **_FRESH}


def _tool(name: str) -> dict[str, Any]:
    schema = _SCHEMAS.get(name, {"type": "object", "properties": {}})
    annotations = {"readOnlyHint": True}
    return {"name": name, "description": f"The tool {name}.", "inputSchema": schema, "annotations": annotations}


def _answer(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": content, "isError": False, "resultType": "complete"}


def _prompt_asks() -> dict[str, Any]:
    schema = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}
    params = {"mode": "form", "message": "What context should the prompt use?", "requestedSchema": schema}
    requests = {"user_context": {"method": "elicitation/create", "params": params}}
    return {"resultType": "input_required", "inputRequests": requests}


async def _nothing(context: Any, params: Any) -> EmptyResult:
    return EmptyResult()


async def _complete(context: Any, params: CompleteRequestParams) -> dict[str, Any]:
    begun = params.argument.value
    return {
        "completion": {"values": [word for word in ("test", "testing") if word.startswith(begun)]},
        "resultType": "complete",
    }


class _Server(Server[Any]):
    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        chosen = notification_options or NotificationOptions(prompts_changed=True, tools_changed=True)
        return super().create_initialization_options(chosen, experimental_capabilities, extensions)


@asynccontextmanager
async def served(more: Mapping[str, list[dict[str, Any]]] | None = None) -> AsyncIterator[str]:
    """The URL of one that listens on loopback; `more` as above."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        Everything(more).server.streamable_http_app(), log_level="critical", lifespan="on", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        await serving
        listener.close()
