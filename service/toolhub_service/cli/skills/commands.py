"""`toolhub skills …`: look at skills without a hub, add them to sources.yaml, and list and run those of a hub."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.skills.adding import add
from toolhub_service.cli.skills.calls import list_skills, run
from toolhub_service.cli.sources.files import file_option
from toolhub_service.cli.terminal.output import (
    EXIT_REFUSED,
    count_text,
    json_option,
    note,
    print_json,
    print_line,
    print_pairs,
    print_prose,
    style,
    text_option,
    wants_json,
)

if TYPE_CHECKING:
    from toolhub_service.adapters.skill.skill import Skill

_INDENT = "    "
_FILES_SHOWN_MAX = 50
_DIGEST_CHARS = 12


@click.group(cls=SuggestingGroup)
def skills() -> None:
    """Check, show, draft, add, list and run skills: folders with a SKILL.md."""


for command in (add, list_skills, run):
    skills.add_command(command)


@skills.command()
@click.argument("places", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@file_option
@text_option
@settings_options
def check(places: tuple[Path, ...], *, as_json: bool, sources_file: Path | None, **options: Any) -> None:
    """Check skills and their sidecars as a hub would load them; exit 1 when one cannot be used, or there is none.

    PATH is the folder of a skill, or one of several. Without PATH the skills of sources.yaml are checked. Nothing of a
    skill is executed, and no hub is asked.

    \b
    Examples:
      toolhub skills check ./pdf-forms
      toolhub skills check ~/skills -o json | jq -r '.skills[] | select(.warnings != []) | .name'
    """
    found = [*_check_skills(places or _skill_places(sources_file, options))]
    # Checking nothing fails: a mistyped path must not pass in CI.
    is_ok = bool(found) and not any(each["problems"] for each in found)
    if wants_json(as_json):
        print_json({"ok": is_ok, "skills": found})
        sys.exit(0 if is_ok else EXIT_REFUSED)
    for each in found:
        colour = "red" if each["problems"] else "yellow" if each["warnings"] else "green"
        mark = "✗" if each["problems"] else "!" if each["warnings"] else "✓"
        print_line(style(f"{mark} {each['name']}", fg=colour, bold=True), nl=not each["mode"])
        if each["mode"]:
            print_line(style(f"  {each['mode']}  {each['digest'][:_DIGEST_CHARS]}", dim=True))
        for sign, sentences in (("✗", each["problems"]), ("!", each["warnings"])):
            for sentence in sentences:
                print_prose(f"{_INDENT}{sign} {sentence}", f"{_INDENT}  ")
    wrong = sum(bool(each["problems"]) for each in found)
    if found:
        note(f"{count_text(len(found), 'skill')}, {count_text(wrong, 'of them wrong') if wrong else 'nothing wrong'}")
    else:
        note("No skill was found: a skill is a folder with a SKILL.md.")
    if not is_ok:
        sys.exit(EXIT_REFUSED)


@skills.command()
@click.argument("name", metavar="NAME|PATH")
@file_option
@text_option
@settings_options
def show(name: str, *, as_json: bool, sources_file: Path | None, **options: Any) -> None:
    """Show one skill: its description, its files with their digests, its warnings, and how it is called.

    NAME is a skill of sources.yaml, PATH a skill's folder. No hub is asked.

    \b
    Examples:
      toolhub skills show pdf-forms
      toolhub skills show ./pdf-forms -o json
    """
    from toolhub_service.adapters.skill.skill import load_skill
    from toolhub_service.adapters.skill.skill_file import SkillInvalid

    folder, source = _find_skill(name, sources_file, options)
    try:
        skill = load_skill(folder)
    except SkillInvalid as invalid:
        raise click.ClickException(f"{folder}: {invalid}") from invalid
    shown = _skill_to_dict(skill, source)
    if wants_json(as_json):
        print_json(shown)
        return
    file = skill.file
    print_line(style(skill.name, bold=True))
    print_prose(file.description)
    facts = [("folder", str(skill.folder)), ("digest", skill.digest), ("license", file.license)]
    facts += [("needs", file.compatibility), ("allowed tools", " ".join(file.allowed_tools))]
    facts += [(f"metadata {key}", value) for key, value in file.metadata.items()]
    facts += [("called by", call) for call in shown["calls"]]
    print_pairs((key, value) for key, value in facts if value)
    note(f"{count_text(len(skill.files), 'file')}, {skill.tree.size_bytes:,} bytes:")
    print_pairs((each.sha256[:_DIGEST_CHARS], each.path) for each in skill.files[:_FILES_SHOWN_MAX])
    if len(skill.files) > _FILES_SHOWN_MAX:
        note(f"… {len(skill.files) - _FILES_SHOWN_MAX} more files (use -o json)")
    for warning in skill.warnings:
        print_prose(warning, "  ", "!", "yellow")


@skills.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--script", default="", help="Path of the script in the skill; default: the first that takes arguments.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@json_option
def init(path: Path, *, script: str, force: bool, as_json: bool) -> None:
    """Write a draft of toolhub.json into the skill at PATH, so that a hub can run one of its scripts.

    The arguments are read from the script's calls of argparse; nothing is executed. A small script beside it turns
    the hub's JSON into the command line. Edit both: describe what callers should know, remove what they should not
    set.

    \b
    Example:
      toolhub skills init ./pdf-forms --script scripts/fill.py
    """
    from toolhub_service.adapters.skill.drafting import NothingToDraft, draft
    from toolhub_service.adapters.skill.skill import load_skill
    from toolhub_service.adapters.skill.skill_file import SkillInvalid
    from toolhub_service.app.config_files.editing import replace_text

    try:
        drafted = draft(load_skill(path), script)
    except (SkillInvalid, NothingToDraft) as wrong:
        raise click.ClickException(f"{path}: {wrong}") from wrong
    # Everything before any file is written, so that a refusal leaves the folder unchanged.
    there = [name for name in drafted.files if (path / name).exists()]
    if there and not force:
        raise click.ClickException(f"{path / there[0]} exists already. Replace it with --force.")
    for name, text in drafted.files.items():
        replace_text(path / name, text, mode=0o644)
    if as_json:
        print_json({"script": drafted.script, "files": list(drafted.files), "others": list(drafted.others)})
        return
    print_line(f"Wrote {' and '.join(str(path / name) for name in drafted.files)} for {drafted.script}.")
    names = ", ".join(argument.name for argument in drafted.arguments)
    note(f"Arguments: {names or 'none found; add them to `input_schema` and to the wrapper'}", err=True)
    if drafted.others:
        note(f"Other scripts, for --script: {', '.join(drafted.others)}", err=True)
    note(f"Edit them, then run: toolhub skills check {path}", err=True)


def _check_skills(places: tuple[Path, ...]) -> Iterator[dict[str, Any]]:
    from toolhub_service.adapters.skill.manifest import ManifestInvalid
    from toolhub_service.adapters.skill.runnable import runnable
    from toolhub_service.adapters.skill.skill import load_skill, skill_folders
    from toolhub_service.adapters.skill.skill_file import SkillInvalid
    from toolhub_service.guards.descriptions import check_definition

    for place in places:
        if not place.is_dir():
            yield _report(place.name, place, problems=["there is no such folder"])
        for folder in skill_folders(place):
            try:
                skill = load_skill(folder)
            except SkillInvalid as invalid:
                yield _report(folder.name, folder, problems=[str(invalid)])
                continue
            problems: list[str] = []
            remarks: tuple[str, ...] = ()
            mode = "instructions"
            if skill.sidecar is not None:
                mode = "sidecar"
                try:
                    made = runnable(skill)
                    if made is not None:
                        mode, remarks = made.manifest.mode, made.warnings
                except ManifestInvalid as invalid:
                    problems = [f"{skill.sidecar_path}: {problem}" for problem in invalid.problems]
            findings = check_definition({"description": skill.file.description})
            warnings = [*skill.warnings, *remarks, *(finding.message for finding in findings)]
            yield _report(skill.name, folder, mode, skill.digest, problems, warnings)


def _report(
    name: str,
    folder: Path,
    mode: str = "",
    digest: str = "",
    problems: list[str] | None = None,
    warnings: list[str] | None = None,
) -> dict[str, Any]:
    return {
        "name": name,
        "folder": str(folder),
        "mode": mode,
        "digest": digest,
        "problems": problems or [],
        "warnings": warnings or [],
    }


def _skill_places(sources_file: Path | None, options: dict[str, Any]) -> tuple[Path, ...]:
    return tuple(place for places in _places_of_sources(sources_file, options).values() for place in places)


def _places_of_sources(sources_file: Path | None, options: dict[str, Any]) -> dict[str, list[Path]]:
    """Return folders of skills by source; of a repository once a hub has fetched it."""
    from toolhub_service.adapters.skill.checkout import folder_of
    from toolhub_service.app.config_files.paths import Paths
    from toolhub_service.app.config_files.sources_file import SourcesFile
    from toolhub_service.app.kinds import kind_of
    from toolhub_service.settings.loading import SettingsInvalid

    settings = read_settings(**options)
    try:
        found = SourcesFile(sources_file or Paths(settings).sources, required=sources_file is not None).load().sources
    except SettingsInvalid as invalid:
        raise click.ClickException(str(invalid)) from invalid
    kept = Paths(settings).skills
    skills: dict[str, Any] = {name: source for name, source in found.items() if kind_of(source).name == "skill"}
    return {
        name: [folder_of(kept, entry) if entry.git else Path(entry.path) for entry in source.skills]
        for name, source in skills.items()
    }


def _find_skill(name: str, sources_file: Path | None, options: dict[str, Any]) -> tuple[Path, str]:
    """Return the folder of a skill, and the source that offers it; empty: none."""
    from toolhub_service.adapters.skill.skill import load_skill, skill_folders
    from toolhub_service.adapters.skill.skill_file import SkillInvalid

    if Path(name).is_dir():
        return Path(name), ""
    # Any name that another command prints: the skill, its tool, the tool that reads it.
    wanted = name.rpartition("/")[2].removesuffix(".read")
    known: list[str] = []
    for source, places in _places_of_sources(sources_file, options).items():
        for folder in (folder for place in places for folder in skill_folders(place)):
            try:
                found = load_skill(folder).name
            except SkillInvalid:
                continue  # another skill's fault, which `toolhub skills check` names
            if found == wanted:
                return folder, source
            known.append(found)
    shown = ", ".join(known[:20]) or "there is none; `toolhub skills add PATH` adds some"
    raise click.ClickException(f"There is no skill {name!r} in sources.yaml. Skills: {shown}")


def _skill_to_dict(skill: Skill, source: str) -> dict[str, Any]:
    name = f"{source or 'skill'}/{skill.name}"
    calls = [f"toolhub call {name}.read"]
    if skill.sidecar is not None:
        calls.insert(0, f"toolhub skills run {skill.name} …" if source in ("", "skill") else f"toolhub call {name} …")
    file = skill.file
    return {
        "name": skill.name,
        "source": source,
        "folder": str(skill.folder),
        "digest": skill.digest,
        "frontmatter": {
            "name": file.name,
            "description": file.description,
            "license": file.license,
            "compatibility": file.compatibility,
            "metadata": dict(file.metadata),
            "allowed-tools": list(file.allowed_tools),
        },
        "files": [{"path": each.path, "bytes": each.size_bytes, "sha256": each.sha256} for each in skill.files],
        "warnings": list(skill.warnings),
        "sidecar": skill.sidecar_path,
        "calls": calls,
    }
