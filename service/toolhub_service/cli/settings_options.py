"""--config and --data-dir, and the settings that come of them, the file and the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import SettingsInvalid, load_settings

Command = TypeVar("Command", bound=Callable[..., Any])


def settings_options(command: Command) -> Command:
    for option in (
        click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of everything the hub keeps."),
        click.option(
            "--config",
            "config_file",
            envvar="TOOLHUB_CONFIG",
            type=click.Path(path_type=Path),
            help="YAML file of settings.",
        ),
    ):
        command = option(command)
    return command


def read_settings(config_file: Path | None, data_dir: Path | None, **overrides: str) -> Settings:
    """Options win over the environment, which wins over the file. `overrides` are variables of settings."""
    environment = {**os.environ, **{name: value for name, value in overrides.items() if value}}
    if data_dir is not None:
        environment["TOOLHUB_DATA_DIR"] = str(data_dir)
    try:
        return load_settings(config_file, environment)
    except SettingsInvalid as invalid:
        raise click.ClickException(str(invalid)) from invalid
