"""Where sources.yaml and the secrets of sources lie, and how both are written: whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from toolhub_service.app.paths import Paths
from toolhub_service.settings.document import Settings

Command = TypeVar("Command", bound=Callable[..., Any])

_MODE = 0o600
_FOLDER_MODE = 0o700


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


def write_text(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replace the file at once; a new one is readable by its owner only, an old one keeps its mode unless one is given.

    A link stays a link: what it points to is replaced.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        if mode is None and path.exists():
            draft.chmod(path.stat().st_mode & 0o777)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def holds_another(path: Path, text: str) -> bool:
    """Whether a file is there that says something else."""
    return path.exists() and read_text(path) != text
