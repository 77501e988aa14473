"""`toolhub keys …`: API keys, made and revoked in the key file; a running hub notices within seconds."""

from __future__ import annotations

from pathlib import Path

import click

from toolhub_service.cli.output import json_option, print_json, print_table, wants_json
from toolhub_service.cli.settings_options import read_settings, settings_options


@click.group()
def keys() -> None:
    """Make, list and revoke API keys."""


@keys.command()
@click.argument("name")
@settings_options
def create(name: str, config_file: Path | None, data_dir: Path | None) -> None:
    """Make a key for the principal NAME. It is shown once and kept only as a hash."""
    from toolhub_service.app.paths import Paths

    file = Paths(read_settings(config_file, data_dir)).key_file()
    key = file.create(name)
    click.echo(key)
    click.secho(
        f"For principal {name!r}. Keep it now: only its hash is stored. What it may do stands in the policy.",
        err=True,
        dim=True,
    )


@keys.command("list")
@json_option
@settings_options
def list_keys(as_json: bool, config_file: Path | None, data_dir: Path | None) -> None:
    """Key ids and whose they are."""
    from toolhub_service.app.paths import Paths

    found = Paths(read_settings(config_file, data_dir)).key_file().read()
    if wants_json(as_json):
        print_json([{"id": key_id, "name": stored.name} for key_id, stored in found.items()])
    else:
        print_table(("KEY", "PRINCIPAL"), ((key_id, stored.name) for key_id, stored in found.items()))


@keys.command()
@click.argument("key_id")
@settings_options
def revoke(key_id: str, config_file: Path | None, data_dir: Path | None) -> None:
    """Forget the key KEY_ID (as `toolhub keys list` shows it)."""
    from toolhub_service.app.paths import Paths

    if not Paths(read_settings(config_file, data_dir)).key_file().revoke(key_id):
        raise click.ClickException(f"there is no key {key_id}; `toolhub keys list` shows those there are")
    click.echo(f"{key_id} is revoked")
