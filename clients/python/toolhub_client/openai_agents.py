"""The hub's tools as tools of the OpenAI Agents SDK: `pip install "clients/python[openai-agents]"`.

async with connect() as hub:
    agent = Agent(name="clerk", tools=await load_tools(hub, tags=["files"], purpose="answer the user"))
"""

from __future__ import annotations

from typing import Any, Unpack

from agents import FunctionTool, Tool

from toolhub_client.context import ToolFields
from toolhub_client.hub import Hub


async def load_tools(hub: Hub, *, purpose: str = "", **where: Unpack[ToolFields]) -> list[Tool]:
    """One tool for each that `where` selects and the caller could be allowed.

    A refused call is shown to the model as the tool's answer, with what to do about it. `purpose` is sent with every
    call: tools that change something want one.
    """
    definitions, _ = await hub.export("openai", **where)
    return [_tool(hub, definition["function"], purpose) for definition in definitions]


def _tool(hub: Hub, definition: dict[str, Any], purpose: str) -> Tool:
    async def call(_: object, arguments: str) -> str:
        item = {"type": "function_call", "call_id": "", "name": definition["name"], "arguments": arguments}
        return str((await hub.run_tool_call(item, purpose=purpose))["output"])

    return FunctionTool(
        name=definition["name"],
        description=definition["description"],
        params_json_schema=definition["parameters"],
        on_invoke_tool=call,
        strict_json_schema=False,  # the hub's schemas have arguments that may be left out
    )
