"""The hub's tools as tools of pydantic-ai: `pip install "clients/python[pydantic-ai]"`.

async with connect() as hub:
    agent = Agent(model, tools=await load_tools(hub, tags=["files"], purpose="answer the user"))
"""

from __future__ import annotations

from typing import Any, Unpack

from pydantic_ai import Tool

from toolhub_client.context import ToolFields
from toolhub_client.hub import Hub
from toolhub_client.tool_calls import to_text


async def load_tools(hub: Hub, *, purpose: str = "", **where: Unpack[ToolFields]) -> list[Tool[Any]]:
    """One tool for each that `where` selects and the caller could be allowed.

    A refused call is shown to the model as the tool's answer, with what to do about it. `purpose` is sent with every
    call: tools that change something want one.
    """
    definitions, names = await hub.export("anthropic", **where)
    return [_tool(hub, definition, names[definition["name"]], purpose) for definition in definitions]


def _tool(hub: Hub, definition: dict[str, Any], name: str, purpose: str) -> Tool[Any]:
    async def call(**args: Any) -> str:
        return to_text(await hub.invoke(name, args, purpose=purpose, args_form="anthropic"))

    return Tool.from_schema(call, definition["name"], definition["description"], definition["input_schema"])
