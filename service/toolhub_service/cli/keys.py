"""`toolhub keys …`: create and revoke API keys in the key file, which a running hub reloads within seconds."""

from __future__ import annotations

from typing import Any

import click

from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.output import (
    explaining,
    footnote,
    legible,
    note,
    print_json,
    print_table,
    text_option,
    wants_json,
)
from toolhub_service.cli.root import SuggestingGroup


@click.group(cls=SuggestingGroup)
def keys() -> None:
    """Create, list and revoke API keys."""


@keys.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def create(name: str, as_json: bool, **options: Any) -> None:
    """Create a key for the principal NAME. It is printed once; only its hash is stored.

    The policy says what the principal may do. The hub accepts keys when the setting auth.modes includes api-key.

    \b
    Example:
      toolhub keys create research-agent
    """
    if not name or not name.isprintable() or any(map(str.isspace, name)):
        # str.isprintable takes the space for printable, and no other white space.
        raise click.UsageError(
            f"{legible(name)!r} cannot be the name of a principal: it must have no spaces and no control characters. "
            "Use letters, digits and signs such as - _ . @, as in research-agent."
        )
    from toolhub_service.app.files import KeyFileInvalid
    from toolhub_service.app.paths import Paths

    file = Paths(read_settings(**options)).key_file()
    with explaining(OSError, KeyFileInvalid):
        former = [key_id for key_id, stored in file.read().items() if stored.name == name]
        key = file.create(name)
    if as_json:
        print_json({"name": name, "key": key})
    else:
        click.echo(key)
        note(f"API key of {name!r}. Save it now: only its hash is stored.", err=True)
        note(f"Grant {name!r} capabilities in policy.yaml.", err=True)
    if former:
        note(f"{name!r} now has {len(former) + 1} keys. To revoke an older one:", err=True)
        for key_id in former:
            note(f"  toolhub keys revoke {key_id}", err=True)


@keys.command("list")
@text_option
@settings_options
def list_keys(as_json: bool, **options: Any) -> None:
    """List the IDs of the keys and their principals.

    \b
    Example:
      toolhub keys list
    """
    from toolhub_service.app.files import KeyFileInvalid
    from toolhub_service.app.paths import Paths

    with explaining(OSError, KeyFileInvalid):
        found = Paths(read_settings(**options)).key_file().read()
    if wants_json(as_json):
        print_json([{"id": key_id, "name": stored.name} for key_id, stored in found.items()])
    elif not found:
        footnote("There are no keys. `toolhub keys create NAME` creates one.")
    else:
        print_table(("KEY", "PRINCIPAL"), ((key_id, stored.name) for key_id, stored in found.items()))


@keys.command()
@click.argument("key_id")
@settings_options
def revoke(key_id: str, **options: Any) -> None:
    """Revoke the key KEY_ID, an ID from `toolhub keys list`.

    \b
    Example:
      toolhub keys revoke thk_1a2b3c4d
    """
    from toolhub_service.app.files import KeyFileInvalid
    from toolhub_service.app.paths import Paths

    settings = read_settings(**options)
    with explaining(OSError, KeyFileInvalid):
        revoked = Paths(settings).key_file().revoke(key_id)
    if not revoked:
        raise click.ClickException(f"There is no key {key_id}. `toolhub keys list` shows all keys.")
    reload_s = settings.policy.reload_s
    noticed = f"within {reload_s:g} seconds" if reload_s else "on SIGHUP"
    click.echo(f"{key_id} is revoked. A running hub refuses it {noticed}.")
