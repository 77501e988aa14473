"""`toolhub config …`: the settings in force, whether a file is valid, and what can be set."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolhub_service.cli.output import json_option, note, print_json, print_table, wants_json
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.settings_options import read_settings, settings_options

if TYPE_CHECKING:
    from toolhub_service.settings.document import Settings

_EXIT_INVALID = 1


@click.group(cls=SuggestingGroup)
def config() -> None:
    """Show and check the configuration."""


@config.command()
@json_option
@settings_options
def check(as_json: bool, config_file: Path | None, data_dir: Path | None) -> None:
    """Exit 0 when file and environment are valid, 1 with the reason when not.

    \b
    Example:
      toolhub config check --config toolhub.yaml
    """
    try:
        read_settings(config_file, data_dir)
    except click.ClickException as invalid:
        if not wants_json(as_json):
            raise
        print_json({"ok": False, "problem": invalid.message})
        sys.exit(_EXIT_INVALID)
    if wants_json(as_json):
        print_json({"ok": True})
        return
    where = f"{config_file} and the environment are" if config_file else "No file is given; the environment is"
    click.echo(f"{where} valid")


@config.command()
@json_option
@settings_options
def show(as_json: bool, config_file: Path | None, data_dir: Path | None) -> None:
    """The settings in force: defaults, file and environment together; passwords in them are hidden.

    \b
    Examples:
      toolhub config show
      toolhub config show --config toolhub.yaml --json
    """
    import yaml

    settings = _without_secrets(read_settings(config_file, data_dir))
    if wants_json(as_json):
        print_json(settings)
    else:
        click.echo(yaml.safe_dump(settings, sort_keys=False), nl=False)


@config.command()
@click.option("--reference", is_flag=True, help="A table of every setting instead of the JSON Schema.")
def schema(reference: bool) -> None:
    """The JSON Schema of the configuration file, for editors and checks.

    \b
    Examples:
      toolhub config schema > toolhub.schema.json
      toolhub config schema --reference
    """
    from toolhub_service.settings.document import Settings
    from toolhub_service.settings.loading import all_settings

    if not reference:
        print_json(msgspec.json.schema(Settings))
        return
    rows = ((s.path, _shown(s.default), s.description) for s in all_settings())
    print_table(("SETTING", "DEFAULT", "MEANING"), rows)
    note("server.listen is TOOLHUB_SERVER_LISTEN in the environment, and so on")


def _without_secrets(settings: Settings) -> dict[str, Any]:
    """As it would stand in the file, but for passwords and keys."""
    from toolhub_service.app.known_secrets import known_secrets, secret_urls
    from toolhub_service.guards.secrets import Redactor

    shown: dict[str, Any] = msgspec.to_builtins(settings)
    redactor = Redactor(known_secrets(settings, {}))
    for custom in shown["tools"]["custom"]:
        custom["args"] = redactor.value(custom["args"])
    for (section, name), url in secret_urls(settings).items():
        shown[section][name] = redactor.text(url)
    return shown


def _shown(default: object) -> str:
    """As it would stand in the file."""
    return json.dumps(msgspec.to_builtins(default))
