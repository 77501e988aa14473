"""Logins of callers at sources by pages of the hub, for MCP clients that can ask their user to open a link.

    /login/TICKET      GET: who will act with whose account. POST, by its button: to the authorization server
    /login/callback    where the authorization server redirects to: the tokens are stored for the ticket's caller

Whoever opens a link that was made for another caller would lend that caller their account. Therefore the page names the
caller, only its button begins a login, and only the browser that pressed it can complete it (a cookie). Tickets are in
memory, bounded, and valid for ten minutes; a caller has one for each source.
"""

from __future__ import annotations

import asyncio
import html
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs

from toolhub_service.credentials.vault import Vault
from toolhub_service.domain.call import Principal
from toolhub_service.domain.credential import StoredCredential
from toolhub_service.domain.errors.failure import HubFailure, ToolFailure

PREFIX: Final = "/login/"
CALLBACK: Final = f"{PREFIX}callback"
TICKET_S: Final = 600.0
TICKETS_MAX: Final = 1_000
_COOKIE: Final = "toolhub_login"
_QUERY_MAX_BYTES: Final = 16 * 1024
_HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # Of the same origin, because a browser that sends no referrer sends no Origin with a form either.
    (b"referrer-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
)
_PAGE: Final = (
    "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    "<title>tool-hub: {title}</title>"
    "<body style='font:1rem/1.5 sans-serif;max-width:36rem;margin:4rem auto;padding:1rem'>"
    "<h1>{title}</h1>{body}</body></html>"
)


class Ticket:
    """One caller's login at one source."""

    def __init__(self, principal: Principal, source: str, server: str, ends_s: float) -> None:
        self.ticket_id = secrets.token_urlsafe(24)
        self.principal = principal
        self.source = source
        self.server = server
        """Origin of the source's server, for the person."""
        self.ends_s = ends_s
        self.browser = ""
        """The cookie of the browser that pressed the button last."""
        self.login = ""
        self.is_done = asyncio.Event()


class LoginPages:
    """Serves the pages, and gives tickets for them."""

    def __init__(
        self,
        vault: Vault,
        kept: Callable[[StoredCredential, Principal], Awaitable[None]],
        read: Callable[[str], Awaitable[object]],
    ) -> None:
        """`kept` records a login; `read` reads a source that waited for one."""
        self._vault = vault
        self._kept = kept
        self._read = read
        self._tickets: OrderedDict[str, Ticket] = OrderedDict()
        self.base = ""
        """`https://host` under which browsers reach the pages; empty: they do not."""

    def ticket(self, principal: Principal, source: str) -> Ticket | None:
        """Return the caller's ticket for a login at the source; None where no page of the hub can complete one."""
        server = self._vault.server_of_logins(principal, source, self._callback) if self.base else ""
        if not server:
            return None
        now_s = asyncio.get_running_loop().time()
        for ticket in tuple(self._tickets.values()):
            if ticket.ends_s < now_s:
                del self._tickets[ticket.ticket_id]
            elif ticket.principal == principal and ticket.source == source and not ticket.is_done.is_set():
                return ticket
        if len(self._tickets) >= TICKETS_MAX:
            self._tickets.popitem(last=False)
        ticket = Ticket(principal, source, server, now_s + TICKET_S)
        self._tickets[ticket.ticket_id] = ticket
        return ticket

    def url(self, ticket: Ticket) -> str:
        return f"{self.base}{PREFIX}{ticket.ticket_id}"

    async def wait_for_login(self, ticket_id: str, principal: Principal, within_s: float) -> bool:
        """Wait for the end of a login, and return whether it came."""
        ticket = self._tickets.get(ticket_id)
        if ticket is None or ticket.principal != principal:
            return False
        try:
            async with asyncio.timeout(within_s):
                await ticket.is_done.wait()
        except TimeoutError:
            return False
        return True

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        """Answer a request below `PREFIX`, whose Host and Origin are the hub's own."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["path"]
        method = scope["method"]
        if path == CALLBACK and method == "GET":
            await self._complete(scope["query_string"], headers.get("cookie", ""), send)
            return
        ticket = self._tickets.get(path.removeprefix(PREFIX))
        if ticket is None or ticket.ends_s < asyncio.get_running_loop().time():
            await _show(send, 404, "This link is used up", "Call the tool again: its answer has another one.")
        elif method == "POST" and "origin" in headers:
            await self._begin(ticket, send)
        elif method == "GET":
            await _show(send, 200, f"Log in at {ticket.source}?", _question(ticket), button="Go on to the login")
        else:
            await _show(send, 405, "Method not allowed", "Open the link in a browser.")

    @property
    def _callback(self) -> str:
        return f"{self.base}{CALLBACK}"

    async def _begin(self, ticket: Ticket, send: Any) -> None:
        try:
            page, ticket.login = await self._vault.begin_login(ticket.principal, ticket.source, self._callback)
        except HubFailure as refused:
            await _show(send, 502, "The login cannot begin", refused.message)
            return
        ticket.browser = secrets.token_urlsafe(24)
        secure = "; Secure" if self.base.startswith("https:") else ""
        cookie = f"{_COOKIE}={ticket.browser}; Path={PREFIX}; Max-Age={TICKET_S:.0f}; HttpOnly; SameSite=Lax{secure}"
        location = [(b"location", page.encode("ascii")), (b"set-cookie", cookie.encode("ascii"))]
        await _show(send, 303, "Go on", "Your browser goes on to the login.", location)

    async def _complete(self, query: bytes, cookie: str, send: Any) -> None:
        browser = _cookie_in(cookie)
        ticket = next((each for each in self._tickets.values() if browser and each.browser == browser), None)
        if ticket is None or len(query) > _QUERY_MAX_BYTES:
            await _show(send, 400, "Not in this browser", "The login was begun in another browser, or has ended.")
            return
        given = {name: values[0] for name, values in parse_qs(query.decode("latin-1")).items()}
        if "code" not in given:
            why = given.get("error_description") or given.get("error") or "no code came back"
            await _show(send, 400, "The login failed", why[:300])
            return
        ticket.browser = ""  # a code is redeemed once
        try:
            stored = await self._vault.complete_login(
                ticket.principal, ticket.login, given["code"], given.get("state", ""), given.get("iss", "")
            )
        except HubFailure as refused:
            await _show(send, 400, "The login failed", refused.message)
            return
        except ToolFailure as failure:
            await _show(send, 503, "The login failed", failure.error.message)
            return
        await self._kept(stored, ticket.principal)
        await self._read(ticket.source)
        ticket.is_done.set()
        text = f"Calls of {ticket.principal.id} to {ticket.source} carry your token now. "
        await _show(send, 200, "Logged in", f"{text}Close this page and go back to your client.")


def _question(ticket: Ticket) -> str:
    return (
        f"{ticket.principal.id}, a caller of this hub, will act with your account at {ticket.server} (source "
        f"{ticket.source}). Go on only if this caller is you, and your own client has just asked you."
    )


async def _show(
    send: Any, status: int, title: str, text: str, extra: Sequence[tuple[bytes, bytes]] = (), *, button: str = ""
) -> None:
    """Answer with a page; `button`: posts to the same address."""
    body = f"<p>{html.escape(text)}</p>"
    if button:
        body += f"<form method=post><button style='font:inherit;padding:.5rem 1rem'>{button}</button></form>"
    page = _PAGE.format(title=html.escape(title), body=body).encode()
    headers = [*_HEADERS, *extra, (b"content-length", str(len(page)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": page})


def _cookie_in(header: str) -> str:
    try:
        found = SimpleCookie(header).get(_COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""
