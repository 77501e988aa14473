"""`toolhub sources check` and `remove`: the file sources.yaml and the files of the sources' secrets."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolhub_service.app.config_files.paths import Paths
from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.terminal.output import (
    EXIT_REFUSED,
    count_text,
    json_option,
    note,
    print_json,
    print_line,
    style,
    text_option,
    wants_json,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Command = TypeVar("Command", bound=Callable[..., Any])


def file_option(command: Command) -> Command:
    return click.option(
        "--file",
        "sources_file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Path of sources.yaml; default: the setting sources.file, else sources.yaml in the data folder.",
    )(command)


def read_text(path: Path) -> str:
    """Return the text; empty when there is no file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as broken:
        raise click.ClickException(f"{path}: {broken}") from broken


def complete_configured(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return sources in sources.yaml whose names begin with the typed text; needs no hub."""
    from click.shell_completion import CompletionItem

    from toolhub_service.app.config_files.sources_file import SourcesFile
    from toolhub_service.settings.loading import SettingsInvalid

    given = context.params
    # Completion must not print an error into the typed line.
    with suppress(click.ClickException, SettingsInvalid):
        settings = read_settings(given.get("config_file"), given.get("data_dir"))
        found = SourcesFile(given.get("sources_file") or Paths(settings).sources).load().sources
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]
    return []


@click.command()
@click.argument("name", shell_complete=complete_configured)
@file_option
@json_option
@settings_options
def remove(name: str, *, as_json: bool, sources_file: Path | None, **options: Any) -> None:
    """Remove the source NAME from sources.yaml; a running hub then removes its tools.

    Its pins are kept, in case it is added again. The files with its secrets are kept too; the command names them.

    \b
    Example:
      toolhub sources remove memory
    """
    from toolhub_service.app.config_files.editing import lock_for_edit, replace_text
    from toolhub_service.app.config_files.sources_editing import NotEditable, without_source
    from toolhub_service.settings.loading import SettingsInvalid

    settings = read_settings(**options)
    path = sources_file or Paths(settings).sources
    text = read_text(path)
    try:
        without_source(text, name)  # refuses before a lock file is made beside sources.yaml
        with lock_for_edit(path):
            text = read_text(path)
            replace_text(path, without_source(text, name))
    except KeyError as unknown:
        raise click.ClickException(f"There is no source {name!r} in {path}. {_advice(text, name)}") from unknown
    except (NotEditable, SettingsInvalid) as broken:
        raise click.ClickException(f"{path}: {broken}") from broken
    except OSError as broken:
        raise click.ClickException(f"{path}: {broken.strerror}") from broken
    left = sorted(str(file) for file in Paths(settings).source_secrets.glob(f"{name}.*"))
    if wants_json(as_json):
        print_json({"file": str(path), "removed": name, "secretFiles": left})
        return
    print_line(f"{name} is removed from {path}.")
    if left:
        note(f"Its secrets were kept in {', '.join(left)}. Delete the files if you do not need them.")


def _advice(text: str, name: str) -> str:
    from toolhub_service.guards.yaml_scalars import load_as_written

    known = (load_as_written(text) or {}).get("sources") or {}
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"Did you mean {near[0]}?"
    return f"Sources in the file: {', '.join(known)}" if known else "The file has no sources."


@click.command()
@click.argument("what", required=False, default="", metavar="[NAME|FILE]", shell_complete=complete_configured)
@file_option
@text_option
@settings_options
def check(what: str, *, as_json: bool, sources_file: Path | None, **options: Any) -> None:
    """Check sources.yaml and what it refers to; exit 1 when it is invalid or exposes the whole file system.

    NAME checks only this source of the file. FILE checks another file than the hub's.

    It looks up programs, files and variables in this shell's environment, which may differ from the hub's.

    \b
    Examples:
      toolhub sources check
      toolhub sources check memory
    """
    from toolhub_service.app.config_files.sources_file import NAME, SourcesFile
    from toolhub_service.app.doctor.sources import find_unbounded, missing_for
    from toolhub_service.app.kinds import kind_of
    from toolhub_service.settings.loading import SettingsInvalid

    settings = read_settings(**options)
    # An existing file takes precedence over a source of the same name.
    is_name = NAME.fullmatch(what) is not None and not Path(what).is_file()
    named = sources_file or settings.sources.file or (what and not is_name)
    path = Path(what) if what and not is_name else (sources_file or Paths(settings).sources)
    try:
        found = SourcesFile(path, required=bool(named)).load().sources
    except SettingsInvalid as invalid:
        if not wants_json(as_json):
            raise click.ClickException(str(invalid)) from invalid
        print_json({"ok": False, "file": str(path), "problem": str(invalid)})
        sys.exit(EXIT_REFUSED)
    if is_name and what not in found:
        raise click.ClickException(f"There is no source {what!r} in {path}. {_advice(read_text(path), what)}")
    found = {what: found[what]} if is_name else found
    missing = {name: list(missing_for(source, settings)) for name, source in found.items()}
    is_bounded = not any(problem for source in found.values() for problem in find_unbounded(source))
    if wants_json(as_json):
        print_json({"ok": is_bounded, "file": str(path), "sources": list(found), "missing": missing})
        sys.exit(0 if is_bounded else EXIT_REFUSED)
    for name, problems in missing.items():
        print_line(style(f"{'!' if problems else '✓'} {name}", fg="yellow" if problems else "green"))
        for problem in (*problems, *kind_of(found[name]).remarks(found[name])):
            print_line(f"    {problem}")
    note(
        f"{path} is valid: {count_text(len(found), 'source')}"
        if path.exists()
        else f"{path} does not exist: no source is configured"
    )
    if not is_bounded:
        sys.exit(EXIT_REFUSED)
