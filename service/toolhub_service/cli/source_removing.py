"""`toolhub sources remove`: out of sources.yaml, and nothing else."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from toolhub_service.cli.output import json_option, legible, note, print_json, wants_json
from toolhub_service.cli.settings_options import read_settings, settings_options
from toolhub_service.cli.source_completion import complete_written
from toolhub_service.cli.source_files import file_option, read_text, secrets_folder, sources_path


@click.command()
@click.argument("name", shell_complete=complete_written)
@file_option
@json_option
@settings_options
def remove(
    name: str, *, as_json: bool, sources_file: Path | None, config_file: Path | None, data_dir: Path | None
) -> None:
    """Take the source NAME out of sources.yaml; a running hub then drops its tools.

    Its pins stay, so that it is known when it comes back. Files with its secrets stay, too, and are named.

    \b
    Example:
      toolhub sources remove memory
    """
    from toolhub_service.app.file_edit import edited, replace_text
    from toolhub_service.app.sources_text import NotEditable, without_source
    from toolhub_service.settings.loading import SettingsInvalid

    settings = read_settings(config_file, data_dir)
    path = sources_path(settings, sources_file)
    text = read_text(path)
    try:
        without_source(text, name)  # refused before anything is made beside the file
        with edited(path):
            text = read_text(path)
            replace_text(path, without_source(text, name))
    except KeyError as unknown:
        raise click.ClickException(f"There is no source {name!r} in {path}{_advice(text, name)}") from unknown
    except (NotEditable, SettingsInvalid) as broken:
        raise click.ClickException(legible(f"{path}: {broken}")) from broken
    except OSError as broken:
        raise click.ClickException(f"{path}: {broken.strerror}") from broken
    left = sorted(str(file) for file in secrets_folder(settings).glob(f"{name}.*"))
    if wants_json(as_json):
        print_json({"file": str(path), "removed": name, "secretFiles": left})
        return
    click.echo(f"{name} is removed from {path}")
    if left:
        note(f"its secrets are still in {', '.join(left)}")


def _advice(text: str, name: str) -> str:
    import yaml

    known = (yaml.safe_load(text) or {}).get("sources") or {}
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(known)}" if known else ", which has none"
