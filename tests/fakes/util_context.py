"""Surroundings for tools that need none, and a way to call a tool with arguments as they come over the wire."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.fakes.tool_context import RecordingSink
from toolhub_service.domain.errors.failure import ToolError, ToolFailure
from toolhub_service.domain.verdict import Constraints
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool
from toolhub_service.tools.workspace.workspace import Workspace


def _no_workspace() -> Workspace:
    raise AssertionError("this tool must not touch a workspace")


def bare_context() -> ToolContext:
    return ToolContext(
        call_id="call-1",
        principal_id="tester",
        request_id="request-1",
        deadline_s=0.0,
        constraints=Constraints(),
        sink=RecordingSink(),
        open_workspace=_no_workspace,
    )


async def called(tool: Tool[Any, Any, Any], context: ToolContext | None = None, /, **arguments: Any) -> dict[str, Any]:
    """The result of a call, both ways through JSON."""
    args = msgspec.convert(arguments, type=tool.In)
    result = await tool.run(args, context or bare_context())
    plain: dict[str, Any] = msgspec.to_builtins(result)
    return plain


async def refused(tool: Tool[Any, Any, Any], context: ToolContext | None = None, /, **arguments: Any) -> ToolError:
    """The error of a call that must fail."""
    try:
        result = await called(tool, context, **arguments)
    except ToolFailure as failure:
        return failure.error
    raise AssertionError(f"was not refused: {result}")
