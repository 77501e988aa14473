"""MCP on standard input and output, by the hub in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from mcp.server.stdio import stdio_server

from toolhub_service.domain.call import Principal
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.face import Face

_QUIET: Final = "mcp"


async def serve(engine: Engine, identify: Callable[[], Principal]) -> None:
    """Until standard input ends. `identify` is asked at each request, and raises AccessRefused."""
    logging.getLogger(_QUIET).setLevel(logging.CRITICAL)  # what a client could make it say
    face = Face(engine, lambda _: identify())
    face.start()
    try:
        async with stdio_server() as (received, sent):
            await face.server.run(received, sent, face.server.create_initialization_options())
    finally:
        face.close()
