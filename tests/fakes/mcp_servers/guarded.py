"""A server of the SDK that refuses unknown credentials and identifies its users by them.

In the test's own process. It keeps every request that came, so that a test can look for what must not have been sent.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import Tool

USER: ContextVar[str] = ContextVar("user", default="")


class _PerUser(MCPServer):
    shown: dict[str, dict[str, str]]

    async def list_tools(self) -> list[Tool]:
        tools, own = await super().list_tools(), self.shown.get(USER.get())
        if own is None:
            return tools
        return [tool.model_copy(update={"description": own[tool.name]}) for tool in tools if tool.name in own]


@dataclass
class Guarded:
    users: dict[str, str]
    """By the whole value of the header."""
    header: str = "authorization"
    user_of: Callable[[str], str] | None = None
    """Who a value stands for, in the place of `users`; empty: nobody."""
    challenge: str = ""
    """`WWW-Authenticate` of a refusal."""
    issuer: str = ""
    """Who makes its tokens, as its metadata says (RFC 9728); empty: it has none."""
    port: int = 0
    seen: list[dict[str, str]] = field(default_factory=list)
    """Headers of each request."""
    sessions: dict[str, set[str]] = field(default_factory=dict)
    """Users by the MCP session (2025-11-25) that their requests came in."""
    taken_back: set[str] = field(default_factory=set)
    """Values that are taken no more."""
    calls: list[str] = field(default_factory=list)
    """The users of the calls that ran."""
    shown: dict[str, dict[str, str]] = field(default_factory=dict)
    """Which tools a user is shown, by name the description; a user that is absent is shown all as they are."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def tools(self) -> MCPServer:
        mcp = _PerUser("guarded", version="1.0", log_level="CRITICAL")
        mcp.shown = self.shown

        @mcp.tool()
        def whoami() -> str:
            """Who calls."""
            self.calls.append(USER.get())
            return USER.get()

        @mcp.tool()
        def leak() -> str:
            """Say what the request carried."""
            return " | ".join(self.seen[-1].values())

        return mcp

    def guard(self, app: Any) -> Any:
        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.seen.append(headers)
            if self.issuer and scope["path"].startswith("/.well-known/oauth-protected-resource"):
                document = {
                    "resource": self.url,
                    "authorization_servers": [self.issuer],
                    "scopes_supported": ["toolhub"],
                }
                head = {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-type", b"application/json")],
                }
                await send(head)
                await send({"type": "http.response.body", "body": json.dumps(document).encode()})
                return
            sent = headers.get(self.header, "")
            user = self.user_of(sent) if self.user_of is not None else self.users.get(sent, "")
            if session := headers.get("mcp-session-id"):
                self.sessions.setdefault(session, set()).add(user)
            if not user:
                challenge = [(b"www-authenticate", self.challenge.encode())] if self.challenge else []
                await send({"type": "http.response.start", "status": 401, "headers": challenge})
                await send({"type": "http.response.body", "body": b"who are you?"})
                return
            USER.set(user)
            await app(scope, receive, send)

        return guarded


@asynccontextmanager
async def guarded_server(**options: Any) -> AsyncIterator[Guarded]:
    server = Guarded(**options)
    listener = socket.create_server(("127.0.0.1", server.port))
    server.port = listener.getsockname()[1]
    app = server.guard(server.tools().streamable_http_app())
    config = uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=1)
    serving = uvicorn.Server(config)
    serving.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
    task = asyncio.create_task(serving.serve(sockets=[listener]))
    try:
        yield server
    finally:
        serving.should_exit = True
        await task
