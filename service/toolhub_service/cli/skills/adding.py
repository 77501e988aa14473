"""`toolhub skills add`: a folder or a commit of a repository, into sources.yaml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.sources.files import file_option, read_text
from toolhub_service.cli.terminal.output import (
    explaining,
    json_option,
    note,
    print_json,
    print_line,
    print_text,
    style,
    wants_json,
)

_REPOSITORY: Final = re.compile(r"(?:https|ssh|file)://|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:")


@click.command()
@click.argument("what", metavar="PATH|GIT")
@click.option("--commit", default="", help="Full ID of the commit of GIT; required with GIT.")
@click.option("--path", "below", default="", help="Folder in GIT; default: the whole repository is searched.")
@click.option("--source", "name", default="skill", show_default=True, help="Source to add it to, made when missing.")
@click.option(
    "--trust",
    type=click.Choice(["first-use", "approval", "always"]),
    help="When its skills may be used; default: approval with GIT, first-use without.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@file_option
@json_option
@settings_options
def add(
    what: str,
    *,
    commit: str,
    below: str,
    name: str,
    trust: str | None,
    dry_run: bool,
    as_json: bool,
    sources_file: Path | None,
    **options: Any,
) -> None:
    """Add the skills at PATH, or those of one commit of the repository GIT, to sources.yaml.

    PATH is the folder of a skill or one of several; look at it first with `toolhub skills check PATH`. A running hub
    reloads the file. Its skills may be used when the policy grants their capability.

    \b
    Examples:
      toolhub skills add ~/skills
      toolhub skills add https://github.com/anthropics/skills --commit 9d2f1ae187231d8199c64b5b762e1bdf2244733d
      toolhub skills add ./report --trust always --source drafts
    """
    from toolhub_service.app.config_files.editing import lock_for_edit, replace_text
    from toolhub_service.app.config_files.paths import Paths
    from toolhub_service.app.config_files.sources_editing import NotEditable
    from toolhub_service.settings.loading import SettingsInvalid

    entry = _entry(what, commit, below)
    settings = read_settings(**options)
    path = sources_file or Paths(settings).sources
    with explaining(SettingsInvalid, KeyError), explaining(NotEditable, OSError, place=path):
        text, source, is_new = _with_entry(read_text(path), str(path), name, entry, trust)
        if not dry_run:
            # Checked again under the lock: another program may have edited the file meanwhile.
            with lock_for_edit(path):
                text, source, is_new = _with_entry(read_text(path), str(path), name, entry, trust)
                replace_text(path, text)
    _report(path, name, source, settings, is_new=is_new, dry_run=dry_run, as_json=as_json)


def _entry(what: str, commit: str, below: str) -> dict[str, str]:
    if _REPOSITORY.match(what):
        if not commit:
            raise click.UsageError("--commit is required with a repository: the full ID of a commit (branches move).")
        return {"git": what, "commit": commit, **({"path": below} if below else {})}
    if commit or below:
        raise click.UsageError("--commit and --path go with a repository: https://, ssh://, user@host:path or file://.")
    folder = Path(what).expanduser()
    if not folder.is_dir():
        raise click.UsageError(f"There is no folder {what!r}.")
    # sources.yaml resolves a relative path against its own folder, the shell against the current one.
    return {"path": str(folder.absolute())}


def _with_entry(
    text: str, place: str, name: str, entry: dict[str, str], trust: str | None
) -> tuple[str, dict[str, Any], bool]:
    """Return the file with it, its source, and whether that is new. Raises SettingsInvalid, NotEditable."""
    from toolhub_service.app.config_files.sources_editing import NotEditable, with_sources, without_source
    from toolhub_service.app.config_files.sources_file import parse_sources
    from toolhub_service.guards.yaml_scalars import load_as_written

    parse_sources(text, place)
    source: dict[str, Any] | None = ((load_as_written(text) or {}).get("sources") or {}).get(name)
    is_new = source is None
    if source is None:
        source = {"kind": "skill", "skills": []}
    elif source.get("kind") != "skill":
        raise NotEditable(f"the source `{name}` is of kind {source.get('kind', 'mcp')}: choose another with --source")
    else:
        text = without_source(text, name)
    if entry in source["skills"]:
        raise NotEditable(f"the source `{name}` has it already")
    source = {**source, "skills": [*source["skills"], entry], **({"trust": trust} if trust else {})}
    text = with_sources(text, {name: source})
    parse_sources(text, place)
    return text, source, is_new


def _report(
    path: Path, name: str, source: dict[str, Any], settings: Any, *, is_new: bool, dry_run: bool, as_json: bool
) -> None:
    from toolhub_service.app.config_files.sources_editing import as_yaml
    from toolhub_service.app.config_files.sources_file import to_source
    from toolhub_service.policy.starter import LOCAL
    from toolhub_service.policy.suggested_lines import grant_command, grant_line

    capability = next(iter(source.get("capabilities", ())), f"skill:{name}")
    principal = LOCAL if "insecure-local" in settings.auth.modes else "PRINCIPAL"
    trust = _trust(to_source(name, source))
    if wants_json(as_json):
        print_json(
            {
                "file": str(path),
                "dryRun": dry_run,
                "name": name,
                "source": source,
                "trust": trust,
                "grant": grant_line(principal, [capability]),
            }
        )
        return
    done = "would be" if dry_run else "is"
    print_line(style(f"{name} {done} {'added to' if is_new else 'changed in'} {path}", bold=True))
    print_text(as_yaml({name: source}), nl=False)
    if trust == "approval":
        note(f"! its skills wait for a person: toolhub pins list --source {name}, then toolhub pins accept")
    note(
        f"\nTo load it into a running hub: toolhub sources refresh {name}",
        f"To let a principal use its skills: {grant_command(principal, [capability])}",
    )


def _trust(source: Any) -> str:
    from toolhub_service.app.kinds import kind_of

    return kind_of(source).trust_of(source).value
