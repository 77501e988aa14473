"""A server of the SDK whose tools ask a person: questions by `Resolve`, their state sealed by a key of this server.

In the test's own process, on a port of loopback, so that a test sees what was ordered and can have the server die and
come back as another one (`restarted`): with other keys, at the same URL. Or on stdio: `python -m` this module.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import uvicorn
from mcp.server.mcpserver import Elicit, MCPServer, Resolve
from pydantic import BaseModel, Field

from tests.free_port import free_port


class Order(BaseModel):
    """A field of each kind that a form may have, most with defaults."""

    name: str = Field(description="Who eats it.", min_length=1)
    size: Literal["small", "large"] = "small"
    pieces: int = Field(default=2, ge=1, le=9)
    price: float = 4.5
    to_go: bool = False


class Confirmation(BaseModel):
    """Nothing but defaults."""

    word: str = "yes"


def whether(dish: str) -> Elicit[Confirmation]:
    return Elicit(f"Is {dish} what you want?", Confirmation)


def how(dish: str, agreed: Annotated[Confirmation, Resolve(whether)]) -> Elicit[Order]:
    return Elicit(f"You said {agreed.word}. How do you want your {dish}?", Order)


@dataclass
class AskingServer:
    """The server, and what was ordered of it."""

    is_modern: bool = True
    manner: str = "How"
    """How its first question begins."""
    port: int = field(default_factory=free_port)
    orders: list[dict[str, Any]] = field(default_factory=list)
    """Each time a tool came to its end: its effects."""
    _serving: asyncio.Task[None] | None = None
    _server: uvicorn.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def tools(self) -> MCPServer:
        manner = self.manner

        def what_to_order(dish: str) -> Elicit[Order]:
            return Elicit(f"{manner} do you want your {dish}?", Order)

        mcp = MCPServer("kitchen", version="1.0", log_level="CRITICAL")

        def order(dish: str, order: Any) -> str:
            """Order a dish, once somebody has said how."""
            self.orders.append({"dish": dish, **order.model_dump()})
            return f"{order.pieces} {order.size} {dish} for {order.name}"

        order.__annotations__["order"] = Annotated[Order, Resolve(what_to_order)]  # a local name, which no text finds
        mcp.add_tool(order)

        @mcp.tool()
        def sure(
            dish: str, agreed: Annotated[Confirmation, Resolve(whether)], order: Annotated[Order, Resolve(how)]
        ) -> str:
            """Order a dish, once somebody has agreed and then said how."""
            self.orders.append({"dish": dish, "agreed": agreed.word, **order.model_dump()})
            return f"{agreed.word}: {dish} for {order.name}"

        @mcp.tool()
        def agree(dish: str, agreed: Annotated[Confirmation, Resolve(whether)]) -> str:
            """Agree to a dish."""
            self.orders.append({"dish": dish, "agreed": agreed.word})
            return agreed.word

        if not self.is_modern:
            mcp._lowlevel_server._request_handlers.pop("server/discover")
        return mcp

    async def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        app = self.tools().streamable_http_app()
        config = uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._server.capture_signals = _no_signals  # type: ignore[method-assign]
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def stop(self) -> None:
        assert self._server is not None
        assert self._serving is not None
        self._server.should_exit = True
        await self._serving

    async def restarted(self) -> None:
        """It comes back as another process would: it knows nothing of what it has asked, and has other keys."""
        await self.stop()
        await self.start()


def _no_signals() -> Any:
    from contextlib import nullcontext

    return nullcontext()


@asynccontextmanager
async def asking_server(*, is_modern: bool = True) -> AsyncIterator[AskingServer]:
    server = AskingServer(is_modern)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


if __name__ == "__main__":
    asyncio.run(AskingServer().tools().run_stdio_async())
