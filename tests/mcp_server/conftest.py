"""A hub with tools that work until a test lets them go on; tests of other tools open one of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.mcp_server.mcp_hub import ASKING, WITH_KEYS, McpHub, Picking, Working, mcp_hub


@pytest.fixture
async def working() -> Working:
    return Working()


@pytest.fixture
async def picking() -> Picking:
    return Picking()


@pytest.fixture
async def hub(tmp_path: Path, working: Working, picking: Picking) -> AsyncIterator[McpHub]:
    async with mcp_hub(tmp_path, policy=ASKING, settings=WITH_KEYS, tools=[working, picking]) as opened:
        yield opened
