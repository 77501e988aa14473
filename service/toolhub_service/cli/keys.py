"""`toolhub keys …`: API keys, made and revoked in the key file; a running hub notices within seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolhub_service.cli.output import json_option, note, print_json, print_table, wants_json
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.settings_options import read_settings, settings_options

if TYPE_CHECKING:
    from toolhub_service.app.key_file import KeyFile
    from toolhub_service.settings.document import Settings


@click.group(cls=SuggestingGroup)
def keys() -> None:
    """Make, list and revoke API keys."""


@keys.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def create(name: str, as_json: bool, config_file: Path | None, data_dir: Path | None) -> None:
    """Make a key for the principal NAME. It is shown once and kept only as a hash.

    What the principal may do stands in the policy; keys count when auth.modes has api-key.

    \b
    Example:
      toolhub keys create research-agent
    """
    file = _file(read_settings(config_file, data_dir))
    with _telling():
        key = file.create(name)
    if as_json:
        print_json({"name": name, "key": key})
        return
    click.echo(key)
    note(f"For principal {name!r}. Keep it now: only its hash is stored.", err=True)
    note(f"What it may do stands in policy.yaml, under the name {name!r}.", err=True)


@keys.command("list")
@json_option
@settings_options
def list_keys(as_json: bool, config_file: Path | None, data_dir: Path | None) -> None:
    """Key ids and whose they are.

    \b
    Example:
      toolhub keys list
    """
    with _telling():
        found = _file(read_settings(config_file, data_dir)).read()
    if wants_json(as_json):
        print_json([{"id": key_id, "name": stored.name} for key_id, stored in found.items()])
    elif not found:
        note("There are no keys; `toolhub keys create NAME` makes one")
    else:
        print_table(("KEY", "PRINCIPAL"), ((key_id, stored.name) for key_id, stored in found.items()))


@keys.command()
@click.argument("key_id")
@settings_options
def revoke(key_id: str, config_file: Path | None, data_dir: Path | None) -> None:
    """Forget the key KEY_ID (as `toolhub keys list` shows it).

    \b
    Example:
      toolhub keys revoke thk_1a2b3c4d
    """
    settings = read_settings(config_file, data_dir)
    with _telling():
        revoked = _file(settings).revoke(key_id)
    if not revoked:
        raise click.ClickException(f"There is no key {key_id}; `toolhub keys list` shows those there are.")
    click.echo(f"{key_id} is revoked; a running hub notices {_when_noticed(settings.policy.reload_s)}")


def _file(settings: Settings) -> KeyFile:
    from toolhub_service.app.paths import Paths

    return Paths(settings).key_file()


def _when_noticed(reload_s: float) -> str:
    return f"within {reload_s:g} seconds" if reload_s else "on SIGHUP"


@contextmanager
def _telling() -> Iterator[None]:
    """A key file that cannot be used is told in one line."""
    from toolhub_service.app.key_file import KeyFileInvalid

    try:
        yield
    except (OSError, KeyFileInvalid) as broken:
        raise click.ClickException(str(broken)) from broken
