"""Where messages arrive: an SMTP server that asks for a password, and a webhook receiver, on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from email.policy import default
from typing import Any

from aiohttp import web
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

PASSWORD = "correct-Horse-77"
TOKEN = "hookToken-4711-abcdef"


@dataclass
class Receivers:
    """What has arrived, and how to be reached."""

    smtp_port: int = 0
    http_port: int = 0
    mails: list[Message] = field(default_factory=list)
    posts: list[dict[str, Any]] = field(default_factory=list)
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a request to /stall waits for its answer."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client of /stall has left."""

    def mail(self, to: str, password: str = PASSWORD) -> str:
        return f"mailto://robot:{password}@127.0.0.1:{self.smtp_port}?mode=insecure&from=hub@example.com&to={to}"

    def hook(self, path: str) -> str:
        return f"json://127.0.0.1:{self.http_port}/{path}?+X-Token={TOKEN}"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address.startswith("nobody"):
            return "550 5.1.1 No such user here"
        if address.startswith("later"):
            return "451 4.3.0 Try again later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.mails.append(message_from_bytes(bytes(envelope.original_content or b""), policy=default))
        if envelope.rcpt_tos[0].startswith("silent"):
            assert isinstance(server.transport, asyncio.WriteTransport)
            server.transport.abort()
        return "250 OK"

    def authenticate(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        is_right = isinstance(data, LoginPassword) and data.password == PASSWORD.encode()
        return AuthResult(success=is_right, handled=False)

    async def post(self, request: web.Request) -> web.StreamResponse:
        what = request.match_info["what"]
        self.posts.append({"path": what, "headers": dict(request.headers), **json.loads(await request.read())})
        if what == "stall":
            self.stalled.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.gone.set()
        if what == "away":
            return web.Response(status=302, headers={"Location": f"http://127.0.0.1:{self.http_port}/ok"})
        if what == "cut":
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=int(what) if what.isdigit() else 200, text=f"secret {TOKEN}")


def attached(mail: Message) -> dict[str, tuple[str, bytes]]:
    """By file name: media type and content."""
    parts = [part for part in mail.walk() if part.get_filename()]
    return {str(part.get_filename()): (part.get_content_type(), part.get_payload(decode=True)) for part in parts}  # type: ignore[misc]


def posted_files(post: dict[str, Any]) -> dict[str, bytes]:
    return {file["filename"]: base64.b64decode(file["base64"]) for file in post["attachments"]}


@asynccontextmanager
async def receiving() -> AsyncIterator[Receivers]:
    receivers, loop = Receivers(), asyncio.get_running_loop()

    def smtp() -> SMTP:
        with warnings.catch_warnings(action="ignore"):  # of passwords without TLS, which on loopback are no danger
            return SMTP(
                receivers, loop=loop, authenticator=receivers.authenticate, auth_required=True, auth_require_tls=False
            )

    mail_server = await loop.create_server(smtp, "127.0.0.1", 0)
    receivers.smtp_port = mail_server.sockets[0].getsockname()[1]
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{what}", receivers.post)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receivers.http_port = runner.addresses[0][1]
    try:
        yield receivers
    finally:
        await runner.cleanup()
        mail_server.close()
