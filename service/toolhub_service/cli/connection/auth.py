"""`toolhub auth …`: who the caller is to a hub, the token that calls are made with, and the check of a token."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.connection.chosen_context import ContextKey
from toolhub_service.cli.connection.client import connect_by_options, connection_options
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import (
    explaining,
    note,
    print_json,
    print_line,
    print_table,
    text_option,
    wants_json,
)

_TOKEN_MAX_CHARS = 64 * 1024


@click.group(cls=SuggestingGroup)
def auth() -> None:
    """Check tokens, print one, and show your identity."""


@auth.command()
@text_option
@connection_options
def whoami(as_json: bool, **options: Any) -> None:
    """Show your identity at the hub: principal, roles, tenant, groups, the context and credential in
    use, its expiry, and the bytes you store.

    \b
    Example:
      toolhub auth whoami
    """
    from toolhub.v1 import tool_service_pb2 as pb

    with connect_by_options(options) as hub:
        answer = hub.call(hub.tools.GetServerInfo, pb.GetServerInfoRequest(storage=True))
    key = options["api_key"]
    used = key if isinstance(key, ContextKey) else None
    login = _login_of(used) if used is not None and used.context.login is not None else {}
    if wants_json(as_json):
        known = {"context": options["context_name"], "address": hub.hub.address}
        belongs = {"tenant": answer.tenant, "groups": list(answer.groups)}
        stored = {"storage": [_use(use) for use in answer.storage]}
        print_json({"principal": answer.principal, "roles": list(answer.roles), **belongs, **known, **login, **stored})
        return
    print_line(f"{answer.principal} ({', '.join(answer.roles)})")
    if answer.tenant:
        print_line("tenant: none" if answer.tenant == "-" else f"tenant: {answer.tenant}")
    if answer.groups:
        print_line(f"groups: {', '.join(answer.groups)}")
    for use in answer.storage:
        whose = f" of tenant {use.tenant}" if use.tenant else ""
        near = " (soft bound reached)" if use.used_bytes >= use.soft_bytes else ""
        print_line(f"{use.kind}{whose}: {use.used_bytes:,} of {use.max_bytes:,} bytes{near}")
    if options["context_name"]:
        # An option or a variable of the environment goes before the context's own.
        credential = used.context.credential if used is not None else "not that of the context"
        note(f"context {options['context_name']}: {hub.hub.address}, {credential}")
    if login:
        note(login["state"])


def _use(use: Any) -> dict[str, Any]:
    """Return a StorageUse as JSON."""
    names = ("kind", "tenant", "used_bytes", "soft_bytes", "max_bytes", "limit")
    return {name: getattr(use, name) for name in names}


def _login_of(key: ContextKey) -> dict[str, Any]:
    from toolhub_service.cli.connection.tokens import expiry_of, session_of, state_text

    session = session_of(key.name)
    until = expiry_of(session) if session is not None else None
    issuer = session.issuer if session is not None else ""
    return {"issuer": issuer, "expires": until.isoformat() if until else None, "state": state_text(key.name)}


@auth.command("token")
@click.option("--mcp", "for_mcp", is_flag=True, help="The token for the hub's MCP endpoint instead of that for gRPC.")
@connection_options
def print_token(for_mcp: bool, **options: Any) -> None:
    """Print the access token of the context's login, refreshed if necessary. Anyone who has it can call as you.

    \b
    Example:
      curl -H "authorization: Bearer $(toolhub auth token --mcp)" https://hub.example.com/mcp
    """
    from toolhub_service.cli.connection.tokens import access_token

    key = options["api_key"]
    if not isinstance(key, ContextKey) or key.context.login is None:
        raise click.UsageError("No login is in use: choose a context that has one, with --context NAME.")
    print_line(access_token(key.name, key.context.login, for_mcp=for_mcp))


@auth.command()
@click.argument("token")
@text_option
@settings_options
def check(token: str, as_json: bool, **options: Any) -> None:
    """Check TOKEN as a hub with this configuration would, and explain each check; - reads it from standard input.

    The issuer is asked for its keys. The token is never printed. Exit code 1: the token would be refused.

    \b
    Example:
      toolhub auth check -
    """
    from toolhub_service.app.listening import ListenRefused
    from toolhub_service.app.offline import OfflineRefused
    from toolhub_service.app.token_check import check_token
    from toolhub_service.identity.keys import NOT_INSTALLED, is_installed
    from toolhub_service.policy.parsing import InvalidPolicy

    settings = read_settings(**options)
    if not settings.auth.jwt.issuers:
        raise click.ClickException(
            "This configuration accepts no tokens: set auth.modes to [jwt] and auth.jwt.issuers."
        )
    if not is_installed():
        raise click.ClickException(f"{NOT_INSTALLED}.")
    # From standard input, a token stands neither in the shell's history nor in the list of processes.
    text = sys.stdin.read(_TOKEN_MAX_CHARS) if token == "-" else token  # noqa: S105 - a sign, no token
    # People copy the whole header.
    sent = text.strip().removeprefix("Bearer ").strip()
    with explaining(ListenRefused, OfflineRefused, InvalidPolicy):
        found = asyncio.run(check_token(settings, sent))
    if wants_json(as_json):
        print_json([{"check": each.check, "passed": each.is_passed, "text": each.text} for each in found])
    else:
        rows = (("ok" if each.is_passed else "REFUSED", each.check, each.text) for each in found)
        print_table(("RESULT", "CHECK", "WHY"), rows)
    if not all(each.is_passed for each in found):
        raise SystemExit(1)
