"""`toolhub config …`: show and check the settings. Also the options --config and --data-dir of other commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import (
    EXIT_REFUSED,
    explaining,
    json_option,
    note,
    print_json,
    print_line,
    print_table,
    print_yaml,
    text_option,
    wants_json,
)
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import SettingsInvalid, load_settings

Command = TypeVar("Command", bound=Callable[..., Any])


def settings_options(command: Command) -> Command:
    for option in (
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path),
            help="Folder of the hub's data: policy, keys, databases, artifacts.",
        ),
        click.option(
            "--config",
            "config_file",
            envvar="TOOLHUB_CONFIG",
            type=click.Path(path_type=Path),
            help="YAML file of settings; also TOOLHUB_CONFIG.",
        ),
    ):
        command = option(command)
    return command


def read_settings(config_file: Path | None, data_dir: Path | None, **overrides: str) -> Settings:
    """Return the settings: options take precedence over the environment, the environment over the file.

    `overrides` are environment variables. Raises click.ClickException when they are invalid.
    """
    # As environment variables, so that options are handled and validated like all other settings.
    environment = {**os.environ, **{name: value for name, value in overrides.items() if value}}
    if data_dir is not None:
        environment["TOOLHUB_DATA_DIR"] = str(data_dir)
    with explaining(SettingsInvalid):
        return load_settings(config_file, environment)


@click.group(cls=SuggestingGroup)
def config() -> None:
    """Show and check the configuration."""


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@text_option
@settings_options
def check(file: Path | None, as_json: bool, **options: Any) -> None:
    """Check FILE, or that of --config, and the environment: exit 0 when valid, 1 with the reason when not.

    \b
    Example:
      toolhub config check toolhub.yaml
    """
    from toolhub_service.app.listening import ListenRefused, check_addresses

    options["config_file"] = file or options["config_file"]
    try:
        with explaining(ListenRefused):
            check_addresses(read_settings(**options))
    except click.ClickException as invalid:
        if not wants_json(as_json):
            raise
        print_json({"ok": False, "problem": invalid.message})
        sys.exit(EXIT_REFUSED)
    if wants_json(as_json):
        print_json({"ok": True})
        return
    checked = options["config_file"]
    where = f"{checked} and the environment are" if checked else "No configuration file is given; the environment is"
    print_line(f"{where} valid")


@config.command()
@json_option
@settings_options
def show(as_json: bool, **options: Any) -> None:
    """Show the effective settings, from defaults, file and environment. Passwords are hidden.

    \b
    Examples:
      toolhub config show
      toolhub config show --config toolhub.yaml -o json
    """

    settings = _without_secrets(read_settings(**options))
    if wants_json(as_json):
        print_json(settings)
    else:
        print_yaml(settings)


@config.command()
@click.option("--reference", is_flag=True, help="Print a table of all settings instead of the JSON Schema.")
def schema(reference: bool) -> None:
    """Print the JSON Schema of the configuration file, for editors and checks.

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
    rows = ((each.path, json.dumps(msgspec.to_builtins(each.default)), each.description) for each in all_settings())
    print_table(("SETTING", "DEFAULT", "MEANING"), rows)
    note("In the environment, server.listen is TOOLHUB_SERVER_LISTEN; every other setting likewise.")


def _without_secrets(settings: Settings) -> dict[str, Any]:
    """Return the settings as they would be written in the file, without passwords and keys."""
    from toolhub_service.guards.secrets import Redactor
    from toolhub_service.settings.loading import known_secrets, secret_urls

    shown: dict[str, Any] = msgspec.to_builtins(settings)
    # Without the environment: only settings are shown, and none of its text appears in them.
    redactor = Redactor(known_secrets(settings, {}))
    for custom in shown["tools"]["custom"]:
        custom["args"] = redactor.value(custom["args"])
    for (section, name), url in secret_urls(settings).items():
        shown[section][name] = redactor.text(url)
    return shown
