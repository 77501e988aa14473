"""The hub's tools as tools of LangChain: `pip install "clients/python[langchain]"`.

async with connect() as hub:
    agent = create_agent(model, await load_tools(hub, tags=["search"]))
"""

from __future__ import annotations

from typing import Any, Unpack

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from toolhub_client.context import ToolFields
from toolhub_client.hub import Hub
from toolhub_client.tool_calls import failure_text, to_text


async def load_tools(hub: Hub, *, purpose: str = "", **where: Unpack[ToolFields]) -> list[BaseTool]:
    """One tool for each that `where` selects and the caller could be allowed. They are async only.

    A refused call is shown to the model as the tool's answer, with what to do about it. `purpose` is sent with every
    call: tools that change something want one.
    """
    definitions, names = await hub.export("anthropic", **where)
    return [_tool(hub, definition, names[definition["name"]], purpose) for definition in definitions]


def _tool(hub: Hub, definition: dict[str, Any], name: str, purpose: str) -> BaseTool:
    async def call(**args: Any) -> str:
        answer = await hub.invoke(name, args, purpose=purpose, args_form="anthropic")
        if answer.error is not None:
            raise ToolException(failure_text(answer.error)) from answer.error
        return to_text(answer)

    return StructuredTool(
        name=definition["name"],
        description=definition["description"],
        args_schema=definition["input_schema"],
        coroutine=call,
        handle_tool_error=True,
    )
