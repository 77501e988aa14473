"""`toolhub sources check`: what a hub would make of sources.yaml, without one."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from toolhub_service.cli.output import counted, json_option, legible, note, print_json, wants_json
from toolhub_service.cli.settings_options import read_settings, settings_options
from toolhub_service.cli.source_files import file_option, sources_path

_EXIT_INVALID = 1


@click.command()
@click.argument("path", required=False, metavar="[FILE]", type=click.Path(path_type=Path, dir_okay=False))
@file_option
@json_option
@settings_options
def check(
    path: Path | None, *, as_json: bool, sources_file: Path | None, config_file: Path | None, data_dir: Path | None
) -> None:
    """Is sources.yaml valid, and is what it refers to there? Exits 1 when it is not valid or gives all files away.

    Programs, files and variables are looked for here and now; those of the hub's own environment may differ.

    \b
    Example:
      toolhub sources check
    """
    from toolhub_service.app.source_checks import missing_for, unbounded
    from toolhub_service.app.sources_file import SourcesFile
    from toolhub_service.settings.loading import SettingsInvalid

    settings = read_settings(config_file, data_dir)
    named = path or sources_file or settings.sources.file
    path = path or sources_path(settings, sources_file)
    try:
        found = SourcesFile(path, required=bool(named)).load().sources
    except SettingsInvalid as invalid:
        if not wants_json(as_json):
            raise click.ClickException(legible(str(invalid))) from invalid
        print_json({"ok": False, "file": str(path), "problem": str(invalid)})
        sys.exit(_EXIT_INVALID)
    missing = {name: list(missing_for(source, settings)) for name, source in found.items()}
    is_bounded = not any(problem for source in found.values() for problem in unbounded(source))
    if wants_json(as_json):
        print_json({"ok": is_bounded, "file": str(path), "sources": list(found), "missing": missing})
        sys.exit(0 if is_bounded else _EXIT_INVALID)
    for name, problems in missing.items():
        click.secho(f"{'!' if problems else '✓'} {name}", fg="yellow" if problems else "green")
        for problem in problems:
            click.echo(legible(f"    {problem}"))
    note(f"{path} is valid: {counted(len(found), 'source')}" if path.exists() else f"There is no {path}: no sources")
    if not is_bounded:
        sys.exit(_EXIT_INVALID)
