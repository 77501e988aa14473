"""`toolhub login` and `toolhub logout`: a token for the hub of a context, by the browser or by a code."""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from toolhub_service.cli.connection.contexts import Context, Login, complete_context, keep_login, read_contexts
from toolhub_service.cli.terminal.output import note, print_line

if TYPE_CHECKING:
    import httpx

    from toolhub_service.cli.connection.oauth import Issuer, Request, Tokens

_MCP_PORT: Final = 50052
_pause = time.sleep
_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"

_context_option = click.option(
    "--context",
    "context_name",
    envvar="TOOLHUB_CONTEXT",
    shell_complete=complete_context,
    help="The context; default: the current one. Also TOOLHUB_CONTEXT.",
)


@click.command()
@_context_option
@click.option("--device", "by_code", is_flag=True, help="Show a code to enter on another device.")
@click.option("--no-browser", is_flag=True, help="Print the address to visit instead of opening a browser.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1, 3_600),
    default=300.0,
    show_default=True,
    help="Seconds to wait for the browser.",
)
def login(context_name: str | None, by_code: bool, no_browser: bool, timeout_s: float) -> None:
    """Log in at the issuer of the hub's tokens; commands then call with its token, and refresh it.

    A browser is opened, or a code is shown if there is none (RFC 8628). The hub is asked for the issuer, client and
    scopes that the context does not name. No token is printed.

    \b
    Examples:
      toolhub context add prod --address hub.example.com:50051 --login
      toolhub login
      toolhub --context prod login --device
    """
    from toolhub_service.cli.connection.oauth import discover_issuer, open_http, register_client
    from toolhub_service.cli.connection.tokens import Session, keep, state_text

    name, context, wanted = _login_of_context(context_name)
    with open_http() as http:
        wanted = _complete_login(context, wanted)
        issuer = discover_issuer(http, wanted.issuer)
        if not wanted.client_id:
            wanted = replace(wanted, client_id=register_client(http, issuer))
            # The next login shall not register another one.
            keep_login(name, replace(_login_of_context(name)[2], issuer=issuer.issuer, client_id=wanted.client_id))
        request = _request(wanted, issuer)
        note(f"Logging in to {name} at {issuer.issuer}{_describe_request(request)}", err=True)
        tokens = _tokens(http, issuer, request, by_code=by_code, no_browser=no_browser, timeout_s=timeout_s)
    session = Session(
        issuer.issuer,
        wanted.client_id,
        issuer.token_endpoint,
        issuer.revocation_endpoint,
        wanted.resource,
        wanted.mcp_resource,
    )
    keep(name, session.with_tokens(wanted.resource, tokens))
    print_line(f"Logged in to {name}: {state_text(name)}")


def _login_of_context(context_name: str | None) -> tuple[str, Context, Login]:
    """Return name and content of the context, and its login. Raises click.UsageError."""
    contexts = read_contexts()
    name = context_name or contexts.current
    if not name:
        raise click.UsageError("Name the hub first: toolhub context add NAME --address HOST:PORT --login")
    context = contexts.find(name)
    if context.login is None:
        raise click.UsageError(
            f"The context {name} has no login (credential: {context.credential}). To give it one: "
            f"toolhub context add {name} --replace --address {context.address} --login"
        )
    return name, context, context.login


def _request(wanted: Login, issuer: Issuer) -> Request:
    from toolhub_service.cli.connection.oauth import Request

    scopes = dict.fromkeys(wanted.scopes)
    if "offline_access" in issuer.scopes:
        scopes["offline_access"] = None  # where it is known, there is no refresh token without
    resources = dict.fromkeys(filter(None, (wanted.resource, wanted.mcp_resource)))
    return Request(wanted.client_id, tuple(scopes), tuple(resources), wanted.audience)


def _describe_request(request: Request) -> str:
    """Show what the hub made the login request, which its user should know."""
    words = [f"as {request.client_id}", *(f"for {each}" for each in (*request.resources, request.audience) if each)]
    return f" ({', '.join([*words, *request.scopes])})"


def _tokens(
    http: httpx.Client, issuer: Issuer, request: Request, *, by_code: bool, no_browser: bool, timeout_s: float
) -> Tokens:
    from toolhub_service.cli.connection.loopback import by_browser
    from toolhub_service.cli.connection.oauth import LoginFailed, by_device

    has_codes = bool(issuer.device_authorization_endpoint)
    if by_code and not has_codes:
        raise LoginFailed(f"{issuer.issuer} gives out no device codes. Leave out --device.")
    if not issuer.authorization_endpoint and not has_codes:
        raise LoginFailed(f"{issuer.issuer} has neither a page to log in at nor device codes.")
    if by_code or not issuer.authorization_endpoint or (has_codes and not no_browser and not _has_browser()):
        return by_device(http, issuer, request, _show_code, _pause)

    def visit(url: str) -> None:
        is_open = not no_browser and _has_browser() and webbrowser.open(url)
        words = "If no page opens, visit" if is_open else "Visit, in a browser of this machine"
        print_line(f"{words}:", err=True)
        print_line(f"  {url}", err=True)

    return by_browser(http, issuer, request, visit, timeout_s)


def _has_browser() -> bool:
    """Return whether the user who types sees a browser that is opened here."""
    if os.environ.get("BROWSER"):
        return True
    # A browser there would open on the other machine's screen, if it has any.
    if os.environ.get("SSH_CONNECTION"):
        return False
    has_screen = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if not has_screen:
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def _show_code(url: str, code: str, complete: str) -> None:
    print_line(f"Visit {url} on any device and enter the code {code}", err=True)
    if complete:
        print_line(f"or visit {complete}", err=True)


@dataclass(frozen=True, slots=True)
class _HubMetadata:
    """The hub's metadata about its tokens (RFC 9728)."""

    resource: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...]
    logins: tuple[Mapping[str, Any], ...]
    """By issuer: client and resource for this command, if the operator named them."""


def _complete_login(context: Context, wanted: Login) -> Login:
    """Return the login, completed from the hub's metadata. Raises LoginFailed, IssuerUnreachable."""
    from toolhub_service.cli.connection.oauth import LoginFailed

    if wanted.issuer and wanted.client_id and (wanted.resource or wanted.audience):
        return wanted
    metadata, tried = _metadata_of(context)
    if metadata is None:
        if wanted.issuer:
            return wanted
        raise LoginFailed(
            f"The hub does not say who issues its tokens: no OAuth metadata at {' or '.join(tried)}. Name its MCP "
            "endpoint (--mcp-url), or the issuer (--issuer and --client-id), with `toolhub context add --replace`."
        )
    if not wanted.issuer and len(metadata.issuers) != 1:
        known = ", ".join(metadata.issuers) or "none"
        raise LoginFailed(f"The hub names these issuers: {known}. Choose one with --issuer.")
    issuer = wanted.issuer or metadata.issuers[0]
    own = next((each for each in metadata.logins if each.get("issuer") == issuer), {})
    resource = str(own.get("resource", "")) or metadata.resource
    named = (*(() if wanted.resource else (resource,)), *(() if wanted.scopes else metadata.scopes))
    if other := next((each for each in named if _is_of_another(each, context)), ""):
        # The operator of one hub would get tokens of all users who log in there for any other (RFC 8707 §3, RFC 9728
        # §7.3).
        raise LoginFailed(
            f"The hub wants a token for {other}, which is another server's: nobody was asked for one. "
            "If that is right, name it yourself: `toolhub context add … --replace --login --resource URL --scope …`."
        )
    return Login(
        issuer,
        wanted.client_id or str(own.get("client_id", "")),
        wanted.scopes or metadata.scopes,
        wanted.resource or resource,
        wanted.mcp_resource or metadata.resource,
        wanted.audience,
    )


def _is_of_another(named: str, context: Context) -> bool:
    """Return whether a resource or scope is the URL of another machine than the hub's; a hub on this one may have
    any."""
    hosts = {urlsplit(url).hostname for url in (*mcp_urls(context), f"//{context.address.removeprefix('dns:///')}")}
    if hosts <= {"127.0.0.1", "::1", "localhost", None}:
        return False
    parts = urlsplit(named)
    return parts.scheme in ("http", "https") and parts.hostname not in hosts


def _metadata_of(context: Context) -> tuple[_HubMetadata | None, list[str]]:
    """Return the metadata, None when there is none, and the addresses that were tried."""
    from toolhub_service.cli.connection.oauth import IssuerUnreachable, fetch_json, open_http

    tried: list[str] = []
    with open_http(mcp_verify(context)) as http:
        for url in mcp_urls(context):
            parts = urlsplit(url)
            place = f"{parts.scheme}://{parts.netloc}"
            tried.append(f"{place}{_WELL_KNOWN}{parts.path.rstrip('/')}")
            try:
                status, found = fetch_json(http, "GET", tried[-1])
            except IssuerUnreachable:
                continue  # `tried` shows the user this address when no other answers
            resource = str(found.get("resource", ""))
            # RFC 9728 §3.3: a page of one server must not describe another.
            if status == 200 and resource.startswith(f"{place}/"):
                lists = [found.get(each) for each in ("authorization_servers", "scopes_supported", "toolhub_logins")]
                issuers, scopes, logins = (each if isinstance(each, list) else [] for each in lists)
                own = tuple(each for each in logins if isinstance(each, dict))
                return _HubMetadata(resource, tuple(map(str, issuers)), tuple(map(str, scopes)), own), tried
    return None, tried


def mcp_urls(context: Context) -> list[str]:
    """Return where the hub's MCP endpoint may be, likeliest first; none for a socket without further information."""
    if context.mcp_url:
        return [context.mcp_url]
    if context.address.startswith("unix"):
        return []
    host = context.address.removeprefix("dns:///").rpartition(":")[0]
    scheme = "https" if context.tls else "http"
    # Behind a proxy the endpoint is usually at the host's standard port for https.
    return [f"{scheme}://{host}:{_MCP_PORT}/mcp", *([f"https://{host}/mcp"] if context.tls else [])]


def mcp_verify(context: Context) -> Any:
    """Return httpx's `verify`: the context's CA and client certificate. Raises click.ClickException."""
    if not context.ca_file and not context.cert_file:
        return True
    import ssl

    try:
        tls = ssl.create_default_context(cafile=context.ca_file or None)
        if context.cert_file:
            tls.load_cert_chain(context.cert_file, context.key_file)
    except (OSError, ssl.SSLError) as unfit:
        raise click.ClickException(f"The CA or certificate of the context cannot be used: {unfit}") from unfit
    return tls


@click.command()
@_context_option
def logout(context_name: str | None) -> None:
    """Revoke the login's tokens at the issuer (RFC 7009), and forget them here.

    \b
    Example:
      toolhub --context prod logout
    """
    from toolhub_service.cli.connection.tokens import log_out, session_of

    name = _login_of_context(context_name)[0]
    if session_of(name) is None:
        print_line(f"Nobody is logged in to {name}.")
        return
    if problem := log_out(name):
        raise click.ClickException(
            f"{problem} The tokens were forgotten here; the access token holds until it expires, and whoever else has "
            "the refresh token can use it."
        )
    print_line(f"Logged out of {name}.")
