"""An MCP server that repeats its secrets in every output: `Echoing` in a test, or this module as a program.

The program reads them from its own arguments and environment: every argument after `--secrets`, and every variable
whose name begins with `LEAK`. It speaks 2026-07-28, so that it may ask.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.fakes.mcp_servers.scripted import Refusal, Script, Send, ServerDied, asks, question, speak, text, tool


@dataclass
class Echoing(Script):
    secrets: tuple[str, ...] = ()
    is_page_missing: bool = True
    pages: list[list[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        text = self.secrets_text
        form = {
            "type": "object",
            "title": text,
            "properties": {"how": {"type": "string", "description": text, "default": text, "enum": [text, "x"]}},
        }
        names = ("say", "structured", "fails", "refuses", "asks", "reports", "resource", "exits")
        described = {"description": f"Logged in with {text}.", "title": text, "annotations": {"title": text}}
        tools = [{**tool(name), **described} for name in names]
        tools += [{**tool("shaped", inputSchema=form, outputSchema=form), **described}]
        tools += [{**tool("broken", inputSchema={"type": text}), **described}]
        tools += [{**tool(f"get_{secret}"), **described} for secret in self.secrets]
        tools += [{**tool("two words"), **described}, {**tool(f"two-words-{text}"), **described}, {"name": 5}]
        self.pages = [tools, []]

    @property
    def secrets_text(self) -> str:
        return " ".join(self.secrets)

    async def _result(self, method: str, params: dict[str, Any], send: Send) -> dict[str, Any]:
        if method == "server/discover":
            found = await super()._result(method, params, send)
            info = {"name": f"echo {self.secrets_text}", "version": self.secrets_text}
            return {**found, "_meta": {"io.modelcontextprotocol/serverInfo": info}, "instructions": self.secrets_text}
        if method == "tools/list" and "cursor" in params and self.is_page_missing:
            raise Refusal(-32603, f"the session of {self.secrets_text} has expired")
        return await super()._result(method, params, send)

    async def _tool_say(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        return text(f"result {self.secrets_text}")

    _tool_shaped = _tool_say

    async def _tool_structured(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        return {**text(self.secrets_text), "structuredContent": {"told": self.secrets_text, "token": self.secrets_text}}

    async def _tool_fails(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        return {**text(f"401 for {self.secrets_text}"), "isError": True}

    async def _tool_refuses(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        raise Refusal(-32000, f"You sent Authorization: {self.secrets_text}")

    async def _tool_asks(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        if params.get("inputResponses"):
            return text("answered")
        form = {"type": "object", "properties": {"name": {"type": "string", "description": self.secrets_text}}}
        return asks({"one": question(f"Is {self.secrets_text} you?", form)}, "sealed")

    async def _tool_reports(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        news = {
            "progressToken": params["_meta"]["progressToken"],
            "progress": 1,
            "total": 2,
            "message": self.secrets_text,
        }
        await send({"jsonrpc": "2.0", "method": "notifications/progress", "params": news})
        return text("reported")

    async def _tool_resource(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        held = {"uri": f"file:///{self.secrets[0]}", "mimeType": "text/plain", "text": self.secrets_text * 1_000}
        return {"content": [{"type": "resource", "resource": held}]}

    async def _tool_exits(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        print(f"Traceback: token {self.secrets_text}", file=sys.stderr, flush=True)
        raise ServerDied


def _own_secrets() -> tuple[str, ...]:
    own = [value for name, value in os.environ.items() if name.startswith("LEAK")]
    return (*own, *sys.argv[2:])


if __name__ == "__main__":
    for word in _own_secrets():
        print(f"started with {word}", file=sys.stderr)
    print("the environment is", dict(os.environ), file=sys.stderr, flush=True)
    asyncio.run(speak(Echoing(secrets=_own_secrets())))
