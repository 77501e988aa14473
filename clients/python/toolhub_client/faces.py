"""Calls under the names of CountBot or local-tools: the hub maps them onto its own tools (docs/faces.md)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal, Unpack

from toolhub.v1 import tool_service_pb2
from toolhub_client.answer import Answer
from toolhub_client.channel import Connection
from toolhub_client.context import CallOptions
from toolhub_client.failures import (
    ConnectionLost,
    DeadlineExceeded,
    HubError,
    HubUnavailable,
    InvalidRequest,
    PermissionDenied,
    Unauthenticated,
)

FaceName = Literal["countbot", "local-tools"]
_HEADER = "toolhub-face"
# The code of local-tools for an RPC that failed.
_CODES: tuple[tuple[type[HubError], str], ...] = (
    (InvalidRequest, "INVALID_INPUT"),
    (PermissionDenied, "PERMISSION_DENIED"),
    (Unauthenticated, "PERMISSION_DENIED"),
    (DeadlineExceeded, "TIMEOUT"),
    (ConnectionLost, "OUTCOME_UNKNOWN"),
    (HubUnavailable, "NETWORK_ERROR"),
)


class Face:
    """One face of a hub; `Hub.face` makes it."""

    def __init__(
        self,
        name: FaceName,
        connection: Connection,
        rpcs: Any,
        request: Callable[..., tool_service_pb2.InvokeRequest],
        invoke: Callable[..., Awaitable[Answer]],
    ) -> None:
        metadata = ((_HEADER, name),)
        self.name = name
        self._connection = connection
        self._export = partial(rpcs.ExportTools, metadata=metadata)
        self._rpc = partial(rpcs.Invoke, metadata=metadata)
        self._request = request
        self._invoke = invoke

    async def definitions(self, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """The tools of the face that can run now, in the form of OpenAI's function calling. Raises HubError."""
        request = tool_service_pb2.ExportToolsRequest(format=tool_service_pb2.EXPORT_FORMAT_OPENAI)
        response = await self._connection.unary(self._export, request, timeout_s=timeout)
        found: list[dict[str, Any]] = json.loads(response.tools_json)
        return found

    async def invoke(self, tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> Answer:
        """One call by the face's names: `Answer.value` is the face's answer, also of a failure. Raises HubError
        and, for arguments that are no JSON, TypeError or ValueError."""
        return await self._invoke(self._request(tool, args, options), self._rpc, timeout_s=options.get("timeout"))

    async def execute(self, name: str, arguments: Mapping[str, Any] | None = None) -> str:
        """The answer as one text. Never raises: an error is a text, too."""
        try:
            value = (await self.invoke(name, arguments)).value
        except Exception as error:  # noqa: BLE001 - a loop of an agent goes on, whatever is wrong
            value = self._failed(error)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    async def run(self, request: Mapping[str, Any]) -> Any:
        """The answer to `{"tool": …, "args": {…}}`: of local-tools `{"success": …}`. Never raises."""
        try:
            args = request.get("args", {})
            if not isinstance(request.get("tool"), str) or not isinstance(args, Mapping):
                raise TypeError('a request is {"tool": NAME, "args": {…}}')  # noqa: TRY301 - answered as all the rest
            return (await self.invoke(request["tool"], args)).value
        except Exception as error:  # noqa: BLE001 - as of execute
            return self._failed(error)

    def _failed(self, error: Exception) -> Any:
        if isinstance(error, HubError):
            code = next((code for kind, code in _CODES if isinstance(error, kind)), "EXECUTION_ERROR")
        else:
            code = "INVALID_INPUT"
        if self.name == "countbot":
            return f"Error ({code}): {error}"
        return {
            "success": False,
            "error": {"error_code": code, "message": str(error), "details": {"exception": type(error).__name__}},
        }
