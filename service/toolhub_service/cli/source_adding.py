"""`toolhub sources add`: from a list that another client has, from a command, from a URL, of whichever kind."""

from __future__ import annotations

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
)

if TYPE_CHECKING:
    from toolhub_service.cli.source_converting import Converted

_EXIT_REFUSED = 1
_KINDS = ("mcp", "n8n", "comfyui")
_OF_KIND = {
    "api_key": "n8n",
    "webhooks": "n8n",
    "jobs": "n8n",
    "discover": "n8n",
    "tags": "n8n",
    "templates": "comfyui",
}
_OPTIONS = {
    "api_key": "--api-key",
    "webhooks": "--webhook",
    "jobs": "--job",
    "tags": "--tag",
    "templates": "--template",
}


@click.command()
@click.argument("what", metavar="FILE|NAME")
@click.argument("command", nargs=-1, metavar="[-- COMMAND ARGS…]")
@click.option("--kind", type=click.Choice(_KINDS), default="mcp", show_default=True, help="Of what stands at --url.")
@click.option("--url", default="", help="Endpoint of an MCP server (streamable HTTP), or base of n8n or ComfyUI.")
@click.option("--header", "headers", multiple=True, metavar="NAME: VALUE", help="With --url; may be given often.")
@click.option("--api-key", default="", metavar="VALUE", help="Of n8n's public API.")
@click.option("--webhook", "webhooks", multiple=True, metavar="NAME=PATH", help="A tool: an n8n webhook; often.")
@click.option(
    "--job", "jobs", multiple=True, metavar="NAME=PATH", help="The same, of one that goes on as a job; often."
)
@click.option("--discover", is_flag=True, help="Offer every active n8n workflow that has a webhook.")
@click.option("--tag", "tags", multiple=True, help="Offer those that bear this tag in n8n, and all others given.")
@click.option("--template", "templates", multiple=True, type=click.Path(), help="A ComfyUI sidecar, or folder; often.")
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
    """Add MCP servers, an n8n or a ComfyUI to sources.yaml.

    FILE (- for standard input) is what another client keeps its servers in: a document with `mcpServers` or `servers`,
    the bare block, or one server. Otherwise NAME is added, with its COMMAND or its --url. With --kind n8n its workflows
    are tools, with --kind comfyui its templates, and what is wrong with them is told before anything is written.
    Secrets in the clear are moved into files that only you can read; VALUE may be {env: VARIABLE} or {file: PATH},
    after a prefix like Bearer.

    A running hub follows the file. Nothing may be called until the policy grants it.

    \b
    Examples:
      toolhub sources add ~/.cursor/mcp.json --dry-run
      toolhub sources add claude_desktop_config.json --name github --trust approval
      toolhub sources add memory -- npx -y @modelcontextprotocol/server-memory
      toolhub sources add crm --url https://mcp.example.com/mcp --header 'Authorization: Bearer {env: CRM_TOKEN}'
      toolhub sources add flows --kind n8n --url https://n8n.example.com --api-key '{env: N8N_KEY}' --webhook send=send
      toolhub sources add images --kind comfyui --url http://gpu-1:8188 --template scale_image.yaml
    """
    settings = read_settings(config_file, data_dir)
    path = sources_path(settings, sources_file)
    _check_usage(what, command, given)
    found, refused = _converted(_servers(what, command, given), secrets_folder(settings), given["kind"])
    for source in found if given["trust"] else ():
        source.entry["trust"] = given["trust"]
    if dry_run or not found:
        _, added = _merged(path, found, refused, replace=replace)
    else:
        added = _put_in(path, found, refused, replace=replace)
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
    _check_kind(command, given)


def _check_kind(command: tuple[str, ...], given: dict[str, Any]) -> None:
    kind = given["kind"]
    for name, own in _OF_KIND.items():
        if given[name] and own != kind:
            raise click.UsageError(f"{_OPTIONS.get(name, f'--{name}')} goes with --kind {own}.")
    if kind != "mcp" and (command or not given["url"]):
        raise click.UsageError(f"--kind {kind} goes with --url: toolhub sources add NAME --kind {kind} --url URL")
    if kind == "comfyui" and given["trust"]:
        raise click.UsageError("--trust says nothing of templates, which are your own words.")
    if kind == "comfyui" and not given["templates"]:
        raise click.UsageError("Name a sidecar or a folder of them with --template; each is a tool.")
    if kind == "n8n" and not any(given[name] for name in ("webhooks", "jobs", "discover", "tags")):
        raise click.UsageError("Name workflows with --webhook NAME=PATH or --job NAME=PATH, or say --discover.")


def _servers(what: str, command: tuple[str, ...], given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By name, as another client would describe them."""
    from toolhub_service.cli.foreign_servers import NotServers, servers_of

    if command:
        env = _pairs(given["variables"], "=", "--env")
        return {what: {"command": command[0], "args": list(command[1:]), "env": env}}
    if given["url"]:
        return {what: {"url": given["url"], "headers": _pairs(given["headers"], ":", "--header"), **_workflows(given)}}
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


def _workflows(given: dict[str, Any]) -> dict[str, Any]:
    """What `convert_workflows` takes besides; empty for MCP."""
    if given["kind"] == "mcp":
        return {}
    return {
        "kind": given["kind"],
        "api_key": given["api_key"],
        "webhooks": _pairs(given["webhooks"], "=", "--webhook"),
        "jobs": _pairs(given["jobs"], "=", "--job"),
        "discover": given["tags"] if given["discover"] or given["tags"] else None,
        "templates": given["templates"],
    }


def _pairs(texts: Iterable[str], mark: str, option: str) -> dict[str, str]:
    return dict(_pair(text, mark, option) for text in texts)


def _pair(text: str, mark: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(mark)
    if not found or not name.strip():
        raise click.UsageError(f"{option} takes NAME{mark}VALUE, not {name[:40]!r}")
    return name.strip(), value.strip()


def _converted(servers: dict[str, dict[str, Any]], folder: Path, kind: str) -> tuple[list[Converted], dict[str, str]]:
    """(what can be a source, why the others cannot by their names)."""
    from toolhub_service.cli.source_converting import NotConvertible, convert
    from toolhub_service.cli.source_workflows import convert_workflows

    found: list[Converted] = []
    refused: dict[str, str] = {}
    for name, server in servers.items():
        references: dict[tuple[str, str], dict[str, str]] = {}
        try:
            bare = _with_references(server, references)
            source = (convert if kind == "mcp" else convert_workflows)(name, bare, folder)
        except NotConvertible as why:
            refused[name] = str(why)
            continue
        for (section, key), reference in references.items():
            source.entry[section][key] = reference
        found.append(source)
    return found, refused


def _with_references(server: dict[str, Any], kept: dict[tuple[str, str], dict[str, str]]) -> dict[str, Any]:
    """The server with a harmless text wherever `{env: …}` or `{file: …}` was written, which goes into `kept`."""
    from toolhub_service.cli.source_converting import reference_of

    changed = dict(server)
    for section in ("env", "headers"):
        values = changed.get(section)
        if not isinstance(values, dict):
            continue
        changed[section] = dict(values)
        for name, value in values.items():
            reference = reference_of(value) if isinstance(value, str) else None
            if reference:
                kept[section, name] = reference
                changed[section][name] = ""
    return changed


def _put_in(path: Path, found: Iterable[Converted], refused: dict[str, str], *, replace: bool) -> list[Converted]:
    """Those that were added; why the others were not is put into `refused`."""
    from toolhub_service.app.file_edit import edited

    try:
        with edited(path):
            text, added = _merged(path, found, refused, replace=replace)
            if added:
                _write(path, text, added)
            return added
    except OSError as broken:
        raise click.ClickException(f"{broken.filename or path}: {broken.strerror}") from broken


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
    """Secrets first: sources.yaml must not name a file that is not there. Raises OSError."""
    from toolhub_service.app.file_edit import replace_text

    for source in added:
        for secret in source.secrets:
            replace_text(secret.file, secret.text, mode=0o600)
    replace_text(path, text)


def _tell(path: Path, added: list[Converted], refused: dict[str, str], *, dry_run: bool, as_json: bool) -> None:
    from toolhub_service.app.sources_text import as_yaml
    from toolhub_service.policy.remedies import grant_line

    grant = grant_line("PRINCIPAL", (source.capability for source in added)) if added else ""
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
