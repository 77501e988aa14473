"""`toolhub auth …`: who one is to a hub, and what becomes of a token."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from toolhub_service.cli.client import connected_by, connection_options
from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.output import explaining, legible, print_json, print_table, text_option, wants_json
from toolhub_service.cli.root import SuggestingGroup

_TOKEN_MAX_CHARS = 64 * 1024


@click.group(cls=SuggestingGroup)
def auth() -> None:
    """Check tokens, and see who one is to the hub."""


@auth.command()
@text_option
@connection_options
def whoami(as_json: bool, **options: Any) -> None:
    """Ask the hub who calls: the principal and its roles.

    \b
    Example:
      toolhub auth whoami
    """
    from toolhub.v1 import tool_service_pb2 as pb

    with connected_by(options) as hub:
        answer = hub.call(hub.tools.GetServerInfo, pb.GetServerInfoRequest())
    if wants_json(as_json):
        print_json({"principal": answer.principal, "roles": list(answer.roles)})
    else:
        click.echo(f"{legible(answer.principal)} ({', '.join(answer.roles)})")


@auth.command()
@click.argument("token")
@text_option
@settings_options
def check(token: str, as_json: bool, **options: Any) -> None:
    """Judge TOKEN as a hub with this configuration would, and explain each check; - reads it from standard input.

    The issuer is asked for its keys. The token is never printed. Exit code 1: the token would be refused.

    \b
    Example:
      toolhub auth check -
    """
    from toolhub_service.app.listening import ListenRefused
    from toolhub_service.app.offline import OfflineRefused
    from toolhub_service.app.token_check import judgements
    from toolhub_service.identity.keys import NOT_INSTALLED, is_installed
    from toolhub_service.policy.parsing import InvalidPolicy

    settings = read_settings(**options)
    if not settings.auth.jwt.issuers:
        raise click.ClickException(
            "This configuration accepts no tokens: set auth.modes to [jwt] and auth.jwt.issuers."
        )
    if not is_installed():
        raise click.ClickException(f"{NOT_INSTALLED}.")
    text = sys.stdin.read(_TOKEN_MAX_CHARS) if token == "-" else token  # noqa: S105 - a sign, no token
    sent = text.strip().removeprefix("Bearer ").strip()
    with explaining(ListenRefused, OfflineRefused, InvalidPolicy):
        found = asyncio.run(judgements(settings, sent))
    if wants_json(as_json):
        print_json([{"check": each.check, "passed": each.is_passed, "text": each.text} for each in found])
    else:
        rows = (("ok" if each.is_passed else "REFUSED", each.check, legible(each.text)) for each in found)
        print_table(("RESULT", "CHECK", "WHY"), rows)
    if not all(each.is_passed for each in found):
        raise SystemExit(1)
