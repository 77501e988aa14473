"""Tools as functions of programs: what a model reads that writes a program for core/program.run."""

from __future__ import annotations

from typing import Literal, Unpack

from toolhub.v1 import tool_pb2, tool_service_pb2
from toolhub_client.context import ToolFields
from toolhub_client.hub import Hub

_FORMATS = {
    "python": tool_service_pb2.EXPORT_FORMAT_PYTHON_STUBS,
    "typescript": tool_service_pb2.EXPORT_FORMAT_TYPESCRIPT,
}


async def export_stubs(
    hub: Hub, language: Literal["python", "typescript"] = "python", **where: Unpack[ToolFields]
) -> str:
    """Stubs in Python, or declarations in TypeScript, of the tools that can be called and match."""
    asked = tool_service_pb2.ExportToolsRequest(format=_FORMATS[language], filter=tool_pb2.ToolFilter(**where))
    text = ""
    while True:
        page = await hub.tools.ExportTools(asked)
        text += page.text
        if not page.next_page_token:
            return text
        asked.page_token = page.next_page_token
