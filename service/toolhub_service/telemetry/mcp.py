"""MCP requests as metrics and spans, under OpenTelemetry's names for MCP.

https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/mcp.md (Development). The histogram
is `mcp.server.operation.duration` as Prometheus spells it; its count is the number of requests. No label has a value
chosen by a client.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry.trace import Status, StatusCode
from prometheus_client import Histogram

from toolhub_service.domain.call import Principal
from toolhub_service.telemetry import names
from toolhub_service.telemetry.metrics import Metrics
from toolhub_service.telemetry.tracing import RpcTrace, Tracing

TOOL_ERROR: Final = "tool_error"
"""A result marked as an error."""
CANCELLED: Final = "cancelled"
"""Cancelled by its client, or by the end of its connection."""

_METHODS: Final = frozenset(
    "initialize ping server/discover subscriptions/listen tools/list tools/call prompts/list prompts/get "
    "resources/list resources/templates/list resources/read resources/subscribe resources/unsubscribe "
    "completion/complete logging/setLevel skills/list skills/get tasks/get tasks/list tasks/result tasks/update "
    "tasks/cancel notifications/initialized notifications/cancelled notifications/progress "
    "notifications/roots/list_changed".split()
)
_TARGETS: Final = {
    "tools/call": ("name", names.ATTRIBUTE_TOOL),
    "prompts/get": ("name", names.ATTRIBUTE_PROMPT),
    "resources/read": ("uri", names.ATTRIBUTE_MCP_RESOURCE),
}
_SERIES_MAX: Final = 200
_WORD_MAX_CHARS: Final = 256


class McpTelemetry:
    def __init__(self, metrics: Metrics, tracing: Tracing) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._seconds: dict[tuple[str, str, str], Histogram] = {}

    def begin(
        self,
        method: str,
        version: str,
        params: Mapping[str, Any],
        sent: Sequence[tuple[str, str]],
        *,
        session_id: str = "",
        request_id: str | int | None = None,
    ) -> McpRequest:
        """Begin a request. `sent`: the trace context of its `_meta`, which is current from here on."""
        shown = method if method in _METHODS else names.OTHER
        name, attributes = shown, {names.ATTRIBUTE_MCP_METHOD: shown, names.ATTRIBUTE_MCP_VERSION: version}
        if self._tracing.tracer is not None:
            place, attribute = _TARGETS.get(method, ("", ""))
            target = params.get(place)
            if isinstance(target, str):
                attributes[attribute] = target[:_WORD_MAX_CHARS]
                # There are too many resource URIs for names of spans.
                name = name if attribute == names.ATTRIBUTE_MCP_RESOURCE else f"{shown} {target[:_WORD_MAX_CHARS]}"
            if method == "tools/call":
                attributes[names.ATTRIBUTE_OPERATION] = "execute_tool"
            if session_id:
                attributes[names.ATTRIBUTE_MCP_SESSION] = session_id[:_WORD_MAX_CHARS]
            if request_id is not None:
                attributes[names.ATTRIBUTE_REQUEST] = str(request_id)[:_WORD_MAX_CHARS]
        trace = self._tracing.rpc(name, sent, attributes)
        trace.is_one_call = method == "tools/call"
        return McpRequest(self, trace, shown, version)

    def open_now(self, sessions: int, streams: int) -> None:
        """Set the numbers of sessions and streams of this process."""
        self._metrics.family(names.MCP_SESSIONS).set(sessions)
        self._metrics.family(names.MCP_STREAMS).set(streams)

    def observe(self, method: str, version: str, error_type: str, seconds: float) -> None:
        key = (method, version, error_type)
        child = self._seconds.get(key)
        if child is None:
            # Versions and error codes come from clients; only methods are from a fixed list.
            if len(self._seconds) >= _SERIES_MAX:
                key = (names.OTHER, names.OTHER, names.OTHER)
            child = self._seconds[key] = self._metrics.family(names.MCP_SECONDS).labels(*key)
        child.observe(seconds)


class McpRequest:
    """One request, until `end`."""

    __slots__ = ("_began_s", "_method", "_telemetry", "_trace", "_version")

    def __init__(self, telemetry: McpTelemetry, trace: RpcTrace, method: str, version: str) -> None:
        self._telemetry = telemetry
        self._trace = trace
        self._method = method
        self._version = version
        self._began_s = time.perf_counter()

    def end(self, principal: Principal, error_type: str) -> None:
        """`error_type`: `TOOL_ERROR`, `CANCELLED`, the code of a JSON-RPC error, or empty."""
        self._telemetry.observe(self._method, self._version, error_type, time.perf_counter() - self._began_s)
        span = self._trace.span
        if span is not None and error_type:
            span.set_attribute(names.ATTRIBUTE_ERROR, error_type)
            span.set_status(Status(StatusCode.ERROR))
            # JSON-RPC codes are negative numbers; the other types are the hub's own words.
            if error_type.startswith("-"):
                span.set_attribute(names.ATTRIBUTE_RPC_STATUS, error_type)
        self._trace.end("", "", principal)
