"""A hub with tools that work until a test lets them go on; tests of other tools open one of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.mcp_server.mcp_hub import ASKING, WITH_KEYS, HeldJob, HeldTool, McpHub, mcp_hub


@pytest.fixture
async def working() -> HeldTool:
    return HeldTool()


@pytest.fixture
async def picking() -> HeldJob:
    return HeldJob()


@pytest.fixture
async def hub(tmp_path: Path, working: HeldTool, picking: HeldJob) -> AsyncIterator[McpHub]:
    async with mcp_hub(tmp_path, policy=ASKING, settings=WITH_KEYS, tools=[working, picking]) as opened:
        yield opened
