"""The MCP adapter does what every adapter must."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.mcp_servers.scripted import Script, Send, text
from tests.fakes.mcp_stage import mcp_tool, over_http
from tests.ports.adapter_suite import AdapterSuite, Prepared
from toolhub_service.adapters.definitions import Override, Overrides


class Waiting(Script):
    """Its tool `waits` until it is let go."""

    let_go: asyncio.Event

    async def _tool_waits(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        self.started.set()
        try:
            await self.let_go.wait()
        finally:
            self.stopped.set()
        return text("let go")

    async def _tool_crashes(self, params: dict[str, Any], args: dict[str, Any], send: Send) -> dict[str, Any]:
        return text(args["text"])


class Brittle(Overrides):
    """Breaks over what the tool `crashes` says."""

    def of(self, own_name: str) -> Override:
        return Override(finds_error=_break) if own_name == "crashes" else super().of(own_name)


def _break(text: str) -> bool:
    raise RuntimeError(text)


class TestMcpAdapter(AdapterSuite):
    @pytest.fixture
    async def prepared(self) -> AsyncIterator[Prepared]:
        script = Waiting()
        script.let_go = asyncio.Event()
        async with over_http(script) as stage:
            stage.server.overrides = Brittle()
            await stage.run("echo", {"text": "warm"})
            echo, refuses, crashes, waits = (mcp_tool(name) for name in ("echo", "refuses", "crashes", "waits"))
            events = (script.started, script.let_go, script.stopped)
            yield Prepared(stage.adapter, echo, refuses, crashes, waits, *events)
