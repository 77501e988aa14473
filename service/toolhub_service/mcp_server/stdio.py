"""MCP on standard input and output, served by the hub in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from mcp.server.stdio import stdio_server

from toolhub_service.domain.call import Principal
from toolhub_service.mcp_server.endpoint import Endpoint
from toolhub_service.mcp_server.engine import Engine

_QUIET: Final = "mcp"


async def serve(engine: Engine, identify: Callable[[], Principal]) -> None:
    """Serve until standard input ends. `identify` is called for each request, and raises AccessRefused."""
    logging.getLogger(_QUIET).setLevel(logging.CRITICAL)  # what a client could make it say
    endpoint = Endpoint(engine, lambda _: identify())
    endpoint.start()
    try:
        async with stdio_server() as (received, sent):
            await endpoint.server.run(received, sent, endpoint.server.create_initialization_options())
    finally:
        endpoint.close()
