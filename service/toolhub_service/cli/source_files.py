"""Where sources.yaml and the secrets of sources lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from toolhub_service.app.paths import Paths
from toolhub_service.settings.document import Settings

Command = TypeVar("Command", bound=Callable[..., Any])


def file_option(command: Command) -> Command:
    return click.option(
        "--file",
        "sources_file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The sources.yaml meant; else the setting sources.file, else the one in the data folder.",
    )(command)


def sources_path(settings: Settings, chosen: Path | None) -> Path:
    if chosen is not None:
        return chosen
    named = settings.sources.file
    return Path(named).expanduser() if named else Paths(settings).data_dir / "sources.yaml"


def secrets_folder(settings: Settings) -> Path:
    return (Paths(settings).data_dir / "secrets").absolute()


def read_text(path: Path) -> str:
    """Empty when there is no file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as broken:
        raise click.ClickException(f"{path}: {broken}") from broken


def holds_another(path: Path, text: str) -> bool:
    """Whether a file is there that says something else."""
    return path.exists() and read_text(path) != text
