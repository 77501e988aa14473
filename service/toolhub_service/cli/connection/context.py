"""`toolhub context …`: name the hubs that a user works with, and choose one of them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import click

from toolhub_service.cli.connection.contexts import (
    Context,
    Contexts,
    Login,
    changing_contexts,
    check_name,
    complete_context,
    read_contexts,
)
from toolhub_service.cli.connection.hub_options import contexts_file
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import (
    footnote,
    note,
    print_json,
    print_line,
    print_pairs,
    print_table,
    text_option,
    wants_json,
)

_file = click.Path(path_type=Path, resolve_path=True)
_KEY_KINDS: Final = "one of --login, --api-key-file and --api-key-env"


@click.group(cls=SuggestingGroup)
def context() -> None:
    """Save hubs under names, and choose one."""


@context.command()
@click.argument("name")
@click.option("--address", required=True, help="HOST, HOST:PORT, https://HOST:PORT or unix:PATH.")
@click.option("--tls/--no-tls", default=None, help="TLS or plaintext; default: TLS, except for this machine.")
@click.option("--ca-file", type=_file, help="PEM file of CA certificates; default: the system's.")
@click.option("--cert", "--cert-file", "cert_file", type=_file, help="PEM client certificate for mutual TLS.")
@click.option("--key", "--key-file", "key_file", type=_file, help="PEM private key of --cert.")
@click.option("--login", "has_login", is_flag=True, help="Call with the token of `toolhub login`.")
@click.option("--api-key-file", type=_file, help="Call with the key in a file that only you may read.")
@click.option("--api-key-env", default="", metavar="VARIABLE", help="Call with the key in an environment variable.")
@click.option("--issuer", default="", help="For --login: the issuer; default: asked of the hub.")
@click.option("--client-id", default="", help="For --login: the OAuth client; default: asked of the hub and issuer.")
@click.option("--scope", "scopes", multiple=True, help="For --login: a scope; default: those that the hub names.")
@click.option("--resource", default="", help="For --login: the resource that tokens are for (RFC 8707).")
@click.option("--audience", default="", help="For --login: the same for issuers that call it audience.")
@click.option("--mcp-url", default="", help="Its MCP endpoint; default: /mcp on port 50052 or 443 of the host.")
@click.option("--replace", "replaces", is_flag=True, help="Change the context of this name; its login is forgotten.")
@click.option("--use/--no-use", default=None, help="Make it the current context; default: if there is none yet.")
def add(name: str, replaces: bool, use: bool | None, **options: Any) -> None:
    """Add the hub at --address under NAME.

    The file of contexts contains no secret: a key stays in your own file or variable, and the tokens of a login are
    stored in a file beside it.

    \b
    Examples:
      toolhub context add prod --address hub.example.com:50051 --login
      toolhub context add lab --address 10.0.0.7:50051 --ca-file lab-ca.pem --api-key-file ~/.lab.key
      toolhub context add here --address 127.0.0.1:50051
    """
    from toolhub_service.cli.connection.tokens import forget

    check_name(name)
    added = _context_of(**options)
    with changing_contexts() as keep:
        former = read_contexts()
        if name in former.by_name and not replaces:
            raise click.UsageError(f"There is a context `{name}` already. Change it with --replace.")
        is_used = use if use is not None else former.current in ("", name)
        # A login that was made for the former address must not be sent to the new one.
        forget(name)
        keep(Contexts(name if is_used else former.current, {**former.by_name, name: added}))
    tls = "TLS" if added.tls else "plaintext"
    print_line(f"Added {name}: {added.address}, {tls}, credential: {added.credential}")
    if added.login is not None:
        note(f"Next: toolhub --context {name} login", err=True)
    elif not is_used:
        note(f"Next: toolhub context use {name}", err=True)


def _context_of(has_login: bool, issuer: str, client_id: str, **options: Any) -> Context:
    from toolhub_service.app.listening import is_local
    from toolhub_service.cli.connection.channel import endpoint

    asked: dict[str, Any] = {"issuer": issuer, "client_id": client_id}
    asked |= {each: options.pop(each) for each in ("scopes", "resource", "audience")}
    has_login = has_login or any(asked.values())
    if sum(map(bool, (has_login, options["api_key_file"], options["api_key_env"]))) > 1:
        raise click.UsageError(f"Give {_KEY_KINDS}.")
    files = {each: options[each] for each in ("ca_file", "cert_file", "key_file")}
    address, tls = options["address"], options["tls"]
    hub = endpoint(address, tls=tls, **files)
    if tls is None and not hub.is_encrypted and "://" not in address:
        # TLS by default when the hub is not on this machine, because a credential is sent there.
        hub = endpoint(address, tls=not is_local(hub.address), **files)
    paths = {each: str(options[each] or "") for each in (*files, "api_key_file")}
    login = Login(**asked) if has_login else None
    own = {"address": hub.address, "tls": hub.is_encrypted, "login": login}
    return Context(**{**options, **paths, **own})


@context.command()
@click.argument("name", required=False, shell_complete=complete_context)
@click.option("--none", "is_none", is_flag=True, help="Use no context: options and environment variables name the hub.")
def use(name: str | None, is_none: bool) -> None:
    """Make NAME the context of commands that name neither a context nor an address.

    \b
    Example:
      toolhub context use prod
    """
    if bool(name) == is_none:
        raise click.UsageError("Give the NAME of a context, or --none.")
    with changing_contexts() as keep:
        contexts = read_contexts()
        chosen = contexts.find(name) if name else None
        keep(replace(contexts, current=name or ""))
    print_line(f"{name}: {chosen.address}" if chosen else "No context is in use.")


@context.command("list")
@text_option
def list_contexts(as_json: bool) -> None:
    """List the contexts; * marks the current one.

    \b
    Example:
      toolhub context list
    """
    contexts = read_contexts()
    if wants_json(as_json):
        print_json([_context_to_dict(contexts, name) for name in sorted(contexts.by_name)])
    elif not contexts.by_name:
        footnote("There are no contexts. `toolhub context add NAME --address HOST:PORT` adds one.")
    else:
        rows = (
            ("*" if name == contexts.current else "-", name, each.address, "yes" if each.tls else "no", each.credential)
            for name, each in sorted(contexts.by_name.items())
        )
        print_table(("USE", "NAME", "ADDRESS", "TLS", "CREDENTIAL"), rows)


@context.command()
@click.argument("name", required=False, shell_complete=complete_context)
@text_option
def show(name: str | None, as_json: bool) -> None:
    """Show the context NAME, or the current one. No secret is shown.

    \b
    Example:
      toolhub context show prod
    """
    from toolhub_service.cli.connection.tokens import state_text

    contexts = read_contexts()
    name = name or contexts.current
    if not name:
        raise click.UsageError("No context is in use: give the NAME of one, or choose one with `toolhub context use`.")
    found = contexts.find(name)
    if wants_json(as_json):
        print_json(_context_to_dict(contexts, name))
        return
    parts = {**asdict(found), "tls": "yes" if found.tls else "no", "credential": found.credential}
    parts |= {f"login {part}": value for part, value in (parts.pop("login") or {}).items()}
    pairs = [(part, " ".join(value) if isinstance(value, tuple) else value) for part, value in parts.items()]
    if found.login is not None:
        pairs.append(("login", state_text(name)))
    print_pairs([("name", name), *((part.replace("_", " "), value) for part, value in pairs if value)])
    note(f"in {contexts_file()}")


def _context_to_dict(contexts: Contexts, name: str) -> dict[str, Any]:
    return {"name": name, "current": name == contexts.current, **asdict(contexts.by_name[name])}


@context.command()
@click.argument("name", shell_complete=complete_context)
def remove(name: str) -> None:
    """Remove the context NAME, and log it out. The hub is not touched.

    \b
    Example:
      toolhub context remove lab
    """
    from toolhub_service.cli.connection.tokens import log_out

    login = read_contexts().find(name).login
    if login is not None and (problem := log_out(name)):
        note(f"{problem} The token was forgotten here, and holds until it expires.", err=True)
    with changing_contexts() as keep:
        contexts = read_contexts()
        others = {each: known for each, known in contexts.by_name.items() if each != name}
        keep(Contexts("" if contexts.current == name else contexts.current, others))
    print_line(f"Removed {name}.")
