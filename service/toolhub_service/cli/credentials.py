"""`toolhub credentials …`: one's own credentials of sources, and for operators whose exist."""

from __future__ import annotations

import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import click

from toolhub.v1 import credential_service_pb2 as pb
from toolhub_service.cli.connection.client import Connection, connect_by_options, connection_options
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import (
    enum_name,
    footnote,
    message_as_json,
    note,
    print_json,
    print_line,
    print_table,
    text_option,
    utc,
    wants_json,
)
from toolhub_service.cli.terminal.questions import ask

_VALUE_MAX_CHARS = 16 * 1024
LOGIN_S = 600.0
"""How long a login can be completed."""


@click.group(cls=SuggestingGroup)
def credentials() -> None:
    """Store, list and revoke your own credentials for sources that need them (`auth.per_user`)."""


@credentials.command("set")
@click.argument("source")
@connection_options
def set_credential(source: str, **options: Any) -> None:
    """Store the header, token or key for SOURCE from standard input; it replaces an earlier one.

    \b
    Examples:
      toolhub credentials set shop
      pass show shop/token | toolhub credentials set shop
    """
    # Never from an argument: other users of the machine can see those, and shells store them.
    value = ask("Value", is_hidden=True) if sys.stdin.isatty() else sys.stdin.read(_VALUE_MAX_CHARS + 1)
    value = value.strip()
    if not value or len(value) > _VALUE_MAX_CHARS:
        raise click.UsageError(f"Standard input must hold the value, 1 to {_VALUE_MAX_CHARS:,} characters.")
    with connect_by_options(options) as hub:
        hub.call(hub.credentials.SetCredential, pb.SetCredentialRequest(source=source, value=value))
    note(f"Kept. Calls to {source} carry it from now on.")


def login_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that log in by a browser."""
    for flag, text in (
        ("--paste", "Ask for the URL at which the browser ended; for a browser on another machine."),
        ("--no-browser", "Print the URL and open no browser."),
    ):
        command = click.option(flag, is_flag=True, help=text)(command)
    return command


def log_in(
    hub: Connection, source: str, *, opens_browser: bool, paste: bool, for_source: bool = False
) -> pb.Credential:
    """Log in by a browser, and return what the hub keeps. Raises ClickException when nobody logged in."""
    with callback() as back:
        request = pb.BeginLoginRequest(source=source, redirect_uri=back.uri, for_source=for_source)
        begun = hub.call(hub.credentials.BeginLogin, request)
        page = _page(begun.authorization_url)
        note("Open this page and log in:", err=True)
        print_line(page, err=True)
        if opens_browser:
            webbrowser.open(page)
        pasted = ask("URL that the browser ended at") if paste else ""
        answer = query_of(pasted) if paste else back.answer(LOGIN_S)
    if "code" not in answer:
        words = answer.get("error_description") or answer.get("error") or "nothing came back within ten minutes"
        raise click.ClickException(f"The login failed: {words}")
    completed = pb.CompleteLoginRequest(
        login=begun.login,
        code=answer["code"],
        state=answer.get("state", ""),
        issuer=answer.get("iss", ""),
        for_source=for_source,
    )
    return hub.call(hub.credentials.CompleteLogin, completed).credential


def granted_scopes(kept: pb.Credential) -> str:
    return f" with {', '.join(kept.scopes)}" if kept.scopes else ""


@credentials.command()
@click.argument("source")
@login_options
@connection_options
def login(source: str, no_browser: bool, paste: bool, **options: Any) -> None:
    """Log in at the authorization server of SOURCE, in a browser.

    The browser comes back to a port of this machine, and the hub keeps the tokens.

    \b
    Example:
      toolhub credentials login shop
    """
    with connect_by_options(options) as hub:
        kept = log_in(hub, source, opens_browser=not (no_browser or paste), paste=paste)
    note(f"Logged in{granted_scopes(kept)}. Calls to {source} carry your token from now on.")


@credentials.command("list")
@click.option("--source", default="", help="Only those of this source.")
@click.option("--all", "everybody", is_flag=True, help="Those of all principals; for operators.")
@text_option
@connection_options
def list_credentials(source: str, everybody: bool, as_json: bool, **options: Any) -> None:
    """List stored credentials, without their secrets.

    \b
    Example:
      toolhub credentials list
    """
    with connect_by_options(options) as hub:
        found = _list_credentials(hub, source, everybody=everybody)
    if wants_json(as_json):
        print_json([message_as_json(each) for each in found])
    elif not found:
        footnote("There are no credentials. `toolhub credentials set SOURCE` or `login SOURCE` gives one.")
    else:
        headings = ("SOURCE", "PRINCIPAL", "TENANT", "KIND", "STATE", "CHANGED", "EXPIRES")
        print_table(headings, (_cells(each) for each in found))


@credentials.command()
@click.argument("source")
@click.option("--principal", default="", help="Principal whose credential it is; for operators. Default: you.")
@click.option("--tenant", help="Tenant of --principal; needed only where it has credentials of several.")
@connection_options
def revoke(source: str, principal: str, tenant: str | None, **options: Any) -> None:
    """Remove a credential of SOURCE, and revoke it at its authorization server if the server supports that.

    \b
    Example:
      toolhub credentials revoke shop
      toolhub credentials revoke shop --principal acme-bot
    """
    request = pb.RevokeCredentialRequest(source=source, principal=principal, tenant=tenant or "")
    with connect_by_options(options) as hub:
        if principal and tenant is None:
            request.tenant = _tenant_of(_list_credentials(hub, source, everybody=True), principal)
        answer = hub.call(hub.credentials.RevokeCredential, request)
    there = " and revoked at its authorization server" if answer.revoked_upstream else ""
    note(f"Removed{there}. Calls to {source} carry it no more.")


def _list_credentials(hub: Connection, source: str, *, everybody: bool) -> list[pb.Credential]:
    request = pb.ListCredentialsRequest(source=source, everybody=everybody, page_size=1_000)
    return [each for page in hub.pages(hub.credentials.ListCredentials, request) for each in page.credentials]


def _tenant_of(credentials: list[pb.Credential], principal: str) -> str:
    """Return the tenant of the principal's only credential for a source; empty if there is none.

    Raises ClickException.
    """
    tenants = sorted({each.tenant for each in credentials if each.principal == principal})
    if len(tenants) > 1:
        named = ", ".join(tenant or '"" (none)' for tenant in tenants)
        raise click.ClickException(f"{principal} has credentials of several tenants: {named}. Name one by --tenant.")
    return tenants[0] if tenants else ""


def _page(url: str) -> str:
    """Return the URL if it is a web page's: a hub must not open files or start programs here. Raises ClickException."""
    # The URL is passed to a browser and to the terminal, and comes from another server.
    if urlsplit(url).scheme not in ("http", "https") or not url.isascii() or not url.isprintable():
        raise click.ClickException(f"The hub names no page to log in at: {url}")
    return url


def _cells(credential: pb.Credential) -> tuple[str, ...]:
    return (
        credential.source,
        credential.principal or "(the source)",
        credential.tenant,
        enum_name(credential, "kind"),
        enum_name(credential, "state"),
        utc(credential.changed_at),
        utc(credential.expires_at) if credential.HasField("expires_at") else "",
    )


# The browser's redirect to a waiting command: one request to a port of loopback (RFC 8252 §7.3).

_PATH = "/callback"
_DONE = b"Done. You can close this window and go back to the terminal.\n"
_QUERY_MAX_CHARS = 16 * 1024


class Callback:
    """Listens on 127.0.0.1; `answer` waits for the browser."""

    def __init__(self) -> None:
        self._server = HTTPServer(("127.0.0.1", 0), _Handler)
        self.uri = f"http://127.0.0.1:{self._server.server_port}{_PATH}"

    def answer(self, timeout_s: float) -> dict[str, str]:
        """Return the query of the redirect; empty when none arrived in time."""
        ends_s = time.monotonic() + timeout_s
        while (left_s := ends_s - time.monotonic()) > 0:
            self._server.timeout = left_s
            _Handler.query = {}
            self._server.handle_request()
            # Browsers also request an icon, and other programs may send anything: only an answer ends the waiting.
            if _Handler.query:
                return _Handler.query
        return {}

    def close(self) -> None:
        self._server.server_close()


@contextmanager
def callback() -> Iterator[Callback]:
    opened = Callback()
    try:
        yield opened
    finally:
        opened.close()


def query_of(url: str) -> dict[str, str]:
    """Return the first value of each name in the query of a URL."""
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


class _Handler(BaseHTTPRequestHandler):
    query: ClassVar[dict[str, str]] = {}
    timeout = 10.0

    def do_GET(self) -> None:
        known = urlsplit(self.path).path == _PATH and len(self.path) <= _QUERY_MAX_CHARS
        if known:
            type(self).query = query_of(self.path)
        self.send_response(200 if known else 404)
        self.send_header("content-type", "text/plain; charset=utf-8")
        # The URL of this page holds a code, which no other page may learn.
        self.send_header("referrer-policy", "no-referrer")
        self.send_header("content-length", str(len(_DONE) if known else 0))
        self.end_headers()
        if known:
            self.wfile.write(_DONE)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the request line holds the code."""
