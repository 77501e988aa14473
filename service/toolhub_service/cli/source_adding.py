"""`toolhub sources add`: from a list that another client has, from a command, from a URL."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolhub_service.cli.output import json_option, legible, note, print_json, wants_json
from toolhub_service.cli.settings_options import read_settings, settings_options
from toolhub_service.cli.source_files import (
    file_option,
    holds_another,
    read_text,
    secrets_folder,
    sources_path,
    write_text,
)

if TYPE_CHECKING:
    from toolhub_service.cli.source_converting import Converted

_EXIT_REFUSED = 1
_REFERENCE = re.compile(r"(.*)\{(env|file):\s*([^{}]+?)\s*\}", re.DOTALL)


@click.command()
@click.argument("what", metavar="FILE|NAME")
@click.argument("command", nargs=-1, metavar="[-- COMMAND ARGS…]")
@click.option("--url", default="", help="Endpoint of an MCP server that speaks streamable HTTP.")
@click.option("--header", "headers", multiple=True, metavar="NAME: VALUE", help="With --url; may be given often.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Of COMMAND; may be given often.")
@click.option("--name", default="", help="Only this server of FILE; or the name of the one in it.")
@click.option(
    "--trust",
    type=click.Choice(["first-use", "approval", "always"]),
    help="When a tool may be called: as first seen (the default), once approved, always.",
)
@click.option("--replace", is_flag=True, help="Write sources of the same names anew.")
@click.option("--dry-run", is_flag=True, help="Show what would be written and write nothing.")
@file_option
@json_option
@settings_options
def add(
    what: str,
    command: tuple[str, ...],
    *,
    as_json: bool,
    dry_run: bool,
    replace: bool,
    sources_file: Path | None,
    config_file: Path | None,
    data_dir: Path | None,
    **given: Any,
) -> None:
    """Add MCP servers to sources.yaml.

    FILE (- for standard input) is what another client keeps its servers in: a document with `mcpServers` or `servers`,
    the bare block, or one server. Otherwise NAME is added, with its COMMAND or its --url. Secrets in the clear are
    moved into files that only you can read; VALUE may be {env: VARIABLE} or {file: PATH}, after a prefix like Bearer.

    A running hub follows the file. Nothing may be called until the policy grants it.

    \b
    Examples:
      toolhub sources add ~/.cursor/mcp.json --dry-run
      toolhub sources add claude_desktop_config.json --name github --trust approval
      toolhub sources add memory -- npx -y @modelcontextprotocol/server-memory
      toolhub sources add crm --url https://mcp.example.com/mcp --header 'Authorization: Bearer {env: CRM_TOKEN}'
    """
    settings = read_settings(config_file, data_dir)
    path = sources_path(settings, sources_file)
    _check_usage(what, command, given)
    found, refused = _converted(_servers(what, command, given), secrets_folder(settings))
    for source in found if given["trust"] else ():
        source.entry["trust"] = given["trust"]
    text, added = _merged(path, found, refused, replace=replace)
    if not dry_run and added:
        _write(path, text, added)
    _tell(path, added, refused, dry_run=dry_run, as_json=as_json)
    if refused:
        sys.exit(_EXIT_REFUSED)


def _check_usage(what: str, command: tuple[str, ...], given: dict[str, Any]) -> None:
    if command and given["url"]:
        raise click.UsageError("Give a command or --url, not both.")
    if given["headers"] and not given["url"]:
        raise click.UsageError("--header goes with --url.")
    if given["variables"] and not command:
        raise click.UsageError("--env goes with a command: toolhub sources add NAME --env KEY=VALUE -- COMMAND")
    if given["name"] and (command or given["url"]):
        raise click.UsageError(f"--name goes with a FILE; this source is named {what!r}.")


def _servers(what: str, command: tuple[str, ...], given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By name, as another client would describe them."""
    from toolhub_service.cli.foreign_servers import NotServers, servers_of

    if command:
        env = dict(_pair(text, "=", "--env") for text in given["variables"])
        return {what: {"command": command[0], "args": list(command[1:]), "env": env}}
    if given["url"]:
        return {what: {"url": given["url"], "headers": dict(_pair(text, ":", "--header") for text in given["headers"])}}
    if what == "-":
        text = sys.stdin.read()
    else:
        file = Path(what).expanduser()
        if not file.exists():
            advice = f"to add a source of that name: toolhub sources add {what} -- COMMAND, or --url URL"
            raise click.UsageError(f"There is no file {what!r}; {advice}")
        text = read_text(file)
    try:
        return servers_of(text, given["name"])
    except NotServers as broken:
        raise click.UsageError(legible(f"{what}: {broken}")) from broken


def _pair(text: str, mark: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(mark)
    if not found or not name.strip():
        raise click.UsageError(f"{option} takes NAME{mark}VALUE, not {name[:40]!r}")
    return name.strip(), value.strip()


def _converted(servers: dict[str, dict[str, Any]], folder: Path) -> tuple[list[Converted], dict[str, str]]:
    """(what can be a source, why the others cannot by their names)."""
    from toolhub_service.cli.source_converting import NotConvertible, convert

    found: list[Converted] = []
    refused: dict[str, str] = {}
    for name, server in servers.items():
        references: dict[tuple[str, str], dict[str, str]] = {}
        try:
            source = convert(name, _with_references(server, references), folder)
        except NotConvertible as why:
            refused[name] = str(why)
            continue
        for (section, key), reference in references.items():
            source.entry[section][key] = reference
        found.append(source)
    return found, refused


def _with_references(server: dict[str, Any], kept: dict[tuple[str, str], dict[str, str]]) -> dict[str, Any]:
    """The server with a harmless text wherever `{env: …}` or `{file: …}` was written, which goes into `kept`."""
    changed = dict(server)
    for section in ("env", "headers"):
        values = changed.get(section)
        if not isinstance(values, dict):
            continue
        changed[section] = dict(values)
        for name, value in values.items():
            reference = _REFERENCE.fullmatch(value) if isinstance(value, str) and "${" not in value else None
            if reference:
                prefix, place, held = reference.groups()
                kept[section, name] = {place: held, **({"prefix": prefix} if prefix else {})}
                changed[section][name] = ""
    return changed


def _merged(
    path: Path, found: Iterable[Converted], refused: dict[str, str], *, replace: bool
) -> tuple[str, list[Converted]]:
    """(the text with those that fit, those that fit); why the others do not is put into `refused`."""
    from toolhub_service.app.sources_file import parse_sources
    from toolhub_service.app.sources_text import NotEditable, with_sources, without_source
    from toolhub_service.settings.loading import SettingsInvalid

    text = read_text(path)
    added: list[Converted] = []
    try:
        there = list(parse_sources(text, str(path)).sources)
        for source in found:
            objection = _objection(source, there, added, replace=replace)
            if objection:
                refused[source.name] = objection
                continue
            if source.name in there:
                text = without_source(text, source.name)
            text = with_sources(text, {source.name: source.entry})
            there = list(parse_sources(text, str(path)).sources)
            added.append(source)
    except NotEditable as broken:
        raise click.ClickException(legible(f"{path}: {broken}")) from broken
    except SettingsInvalid as broken:
        raise click.ClickException(legible(str(broken))) from broken
    return text, added


def _objection(source: Converted, there: Iterable[str], added: Iterable[Converted], *, replace: bool) -> str:
    """Why it cannot be added beside those there are; empty: it can."""
    from toolhub_service.app.source_rules import SourceInvalid
    from toolhub_service.app.sources_file import check_source_name

    try:
        check_source_name(source.name, dict.fromkeys(there))
    except SourceInvalid as alike:
        return str(alike)
    if any(source.name == other.name for other in added):
        return "another one of the list has become this name; add it with --name and a name of its own"
    if replace:
        return ""
    if source.name in there:
        return "there is a source of this name; --replace writes it anew"
    taken = [secret.file for secret in source.secrets if holds_another(secret.file, secret.text)]
    return f"{taken[0]} is there and holds something else; --replace writes it anew" if taken else ""


def _write(path: Path, text: str, added: Iterable[Converted]) -> None:
    """Secrets first: sources.yaml must not name a file that is not there."""
    try:
        for source in added:
            for secret in source.secrets:
                write_text(secret.file, secret.text, mode=0o600)
        write_text(path, text)
    except OSError as broken:
        raise click.ClickException(f"{broken.filename or path}: {broken.strerror}") from broken


def _tell(path: Path, added: list[Converted], refused: dict[str, str], *, dry_run: bool, as_json: bool) -> None:
    from toolhub_service.app.sources_text import as_yaml
    from toolhub_service.policy.remedies import grant_line

    grant = grant_line("PRINCIPAL", (f"mcp:{source.name}" for source in added)) if added else ""
    if wants_json(as_json):
        shown = [
            {
                "name": source.name,
                "source": source.shown,
                "secretFiles": [str(secret.file) for secret in source.secrets],
                "notes": source.notes,
            }
            for source in added
        ]
        print_json({"file": str(path), "dryRun": dry_run, "added": shown, "refused": refused, "grant": grant})
        return
    for source in added:
        click.secho(f"{source.name} {'would be' if dry_run else 'is'} added to {path}", bold=True)
        click.echo(legible(as_yaml({source.name: source.shown})), nl=False)
        for secret in source.secrets:
            note(f"! {secret.place} {'would go' if dry_run else 'went'} into {secret.file}, readable by you only")
        for told in source.notes:
            note(legible(f"! {told}"))
    for name, why in refused.items():
        click.secho(legible(f"{name} is not added: {why}"), fg="red", err=True)
    if added and not dry_run:
        note("\nNext: `toolhub sources list` shows how they fare in a running hub, and in policy.yaml")
        click.echo(f"  {grant}")
        note("lets a principal call them")
