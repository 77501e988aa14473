"""`toolhub sources add`: from the configuration of another client, from a command, or from a URL."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.kinds import BY_NAME, KINDS
from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.sources.files import file_option, read_text
from toolhub_service.cli.terminal.output import (
    EXIT_REFUSED,
    explaining,
    json_option,
    note,
    print_json,
    print_line,
    print_text,
    style,
    wants_json,
)
from toolhub_service.sections.source_config import SourceInvalid

if TYPE_CHECKING:
    from toolhub_service.cli.sources.converting import Converted
    from toolhub_service.settings.document import Settings

_KINDS = [kind.name for kind in KINDS if kind.entry_of is not None]


def _kind_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that each kind declares, in the order of the kinds."""
    # Decorators put the last option first.
    for option in reversed([option for kind in KINDS for option in kind.options]):
        of_values: dict[str, Any] = {
            "metavar": option.metavar or None,
            "multiple": option.is_many or option.is_pairs,
            "type": click.Path() if option.is_path else None,
        }
        if not of_values["multiple"]:
            of_values["default"] = ""
        terms = {"is_flag": True} if option.is_switch else of_values
        command = click.option(option.flag, option.name, help=option.help, **terms)(command)
    return command


@click.command()
@click.argument("what", metavar="FILE|NAME")
@click.argument("command", nargs=-1, metavar="[-- COMMAND ARGS…]")
@click.option("--kind", type=click.Choice(_KINDS), default="mcp", show_default=True, help="Kind of server at --url.")
@click.option("--url", default="", help="Endpoint of an MCP server (streamable HTTP), or base URL of n8n or ComfyUI.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME: VALUE", help="Header for requests to --url; repeatable."
)
@_kind_options
@click.option(
    "--env", "variables", multiple=True, metavar="NAME=VALUE", help="Environment variable of COMMAND; repeatable."
)
@click.option("--name", default="", help="Add only this server of FILE, or name the only one in it.")
@click.option(
    "--trust",
    type=click.Choice(["first-use", "approval", "always"]),
    help="When a tool may be called: as first seen (default), after approval, or always.",
)
@click.option("--per-user", is_flag=True, help="Each caller logs in with an account of its own (OAuth), with --url.")
@click.option("--replace", is_flag=True, help="Replace sources of the same names.")
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
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
    """Add MCP servers, an n8n server or a ComfyUI server to sources.yaml.

    FILE (- for standard input) is the MCP configuration of another client: a document with `mcpServers` or `servers`,
    the content of that block, or one server. Otherwise give a NAME and its COMMAND or --url. With --kind n8n the
    server's workflows become tools, with --kind comfyui its templates; they are checked before anything is written.
    Secrets in plain text are moved into files that only you can read. A VALUE may be {env: VARIABLE} or {file: PATH},
    also after a prefix such as Bearer.

    A running hub reloads the file. Its tools may be called when the policy grants their capability.

    \b
    Examples:
      toolhub sources add ~/.cursor/mcp.json --dry-run
      toolhub sources add claude_desktop_config.json --name github --trust approval
      toolhub sources add memory -- npx -y @modelcontextprotocol/server-memory
      toolhub sources add crm --url https://mcp.example.com/mcp --header 'Authorization: Bearer {env: CRM_TOKEN}'
      toolhub sources add tracker --url https://mcp.example.com/mcp --per-user
      toolhub sources add flows --kind n8n --url https://n8n.example.com --api-key '{env: N8N_KEY}' --webhook send=send
      toolhub sources add images --kind comfyui --url http://gpu-1:8188 --template scale_image.yaml
    """
    settings = read_settings(config_file, data_dir)
    path = sources_file or Paths(settings).sources
    _check_usage(what, command, given)
    found, refused = _convert_servers(_servers(what, command, given), Paths(settings).source_secrets, given["kind"])
    for source in found:
        if given["trust"]:
            source.entry["trust"] = given["trust"]
        if given["url"] and given["kind"] == "mcp":
            _note_login(source, per_user=given["per_user"])
    # Without a lock file beside sources.yaml, as nothing will be written.
    if dry_run or not found:
        merged = _merge_sources(path, found, refused, replace=replace)
    else:
        merged = _add_to_file(path, found, refused, replace=replace)
    grant = _grant(merged.added, settings)
    _report(path, merged, refused, settings, grant, dry_run=dry_run, as_json=as_json)
    if merged.added and not dry_run and not wants_json(as_json):
        where = {"--file": sources_file, "--config": config_file, "--data-dir": data_dir}
        _show_next(
            merged.added,
            _principal(settings),
            [word for name, given in where.items() if given for word in (name, str(given))],
        )
    if refused:
        sys.exit(EXIT_REFUSED)


def _check_usage(what: str, command: tuple[str, ...], given: dict[str, Any]) -> None:
    if command and given["url"]:
        raise click.UsageError("Give a command or --url, not both.")
    if given["per_user"] and not (given["url"] and given["kind"] == "mcp"):
        raise click.UsageError("--per-user goes with the --url of an MCP server.")
    if given["headers"] and not given["url"]:
        raise click.UsageError("--header goes with --url.")
    if given["variables"] and not command:
        raise click.UsageError("--env goes with a command: toolhub sources add NAME --env KEY=VALUE -- COMMAND")
    if given["name"] and (command or given["url"]):
        raise click.UsageError(f"--name goes with a FILE; this source is named {what!r}.")
    _check_kind(command, given)


def _check_kind(command: tuple[str, ...], given: dict[str, Any]) -> None:
    chosen = BY_NAME[given["kind"]]
    for kind in KINDS:
        for option in kind.options if kind is not chosen else ():
            if given[option.name]:
                raise click.UsageError(f"{option.flag} goes with --kind {kind.name}.")
    if chosen.options and (command or not given["url"]):
        name = chosen.name
        raise click.UsageError(f"--kind {name} goes with --url: toolhub sources add NAME --kind {name} --url URL")
    for option in chosen.options:
        if option.is_pairs:
            given[option.name] = _pairs(given[option.name], "=", option.flag)
    try:
        if chosen.entry_of is not None:
            chosen.entry_of(given)
    except SourceInvalid as wrong:
        raise click.UsageError(str(wrong)) from wrong


def _servers(what: str, command: tuple[str, ...], given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the servers by name, in the form that other clients write."""
    from toolhub_service.cli.sources.server_lists import NotServers, servers_of

    if command:
        env = _pairs(given["variables"], "=", "--env")
        return {what: {"command": command[0], "args": list(command[1:]), "env": env}}
    if given["url"]:
        server = {"url": given["url"], "headers": _pairs(given["headers"], ":", "--header")}
        return {what: {**server, "kind": given["kind"], "given": given} if BY_NAME[given["kind"]].options else server}
    if what == "-":
        text = sys.stdin.read()
    else:
        file = Path(what).expanduser()
        if not file.exists():
            advice = f"To add a source of that name: toolhub sources add {what} -- COMMAND, or --url URL"
            raise click.UsageError(f"There is no file {what!r}. {advice}")
        text = read_text(file)
    try:
        return servers_of(text, given["name"])
    except NotServers as broken:
        raise click.UsageError(f"{what}: {broken}") from broken


def _pairs(texts: Iterable[str], mark: str, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition(mark)
        if not found or not name.strip():
            raise click.UsageError(f"{option} takes NAME{mark}VALUE, not {name[:40]!r}")
        # `Name: value`, like curl's -H.
        pairs[name.strip()] = value.strip()
    return pairs


def _convert_servers(
    servers: dict[str, dict[str, Any]], folder: Path, kind: str
) -> tuple[list[Converted], dict[str, str]]:
    """Return (the sources, and by name why other servers cannot be one)."""
    from toolhub_service.cli.sources.converting import NotConvertible, convert, convert_workflows

    found: list[Converted] = []
    refused: dict[str, str] = {}
    for name, server in servers.items():
        try:
            found.append((convert_workflows if BY_NAME[kind].options else convert)(name, server, folder))
        except NotConvertible as why:
            refused[name] = str(why)
    return found, refused


def _note_login(source: Converted, *, per_user: bool) -> None:
    """Ask the server whether it wants a login; note the origin of its authorization server, and both ways."""
    from toolhub_service.cli.sources.login_probe import wanted_login

    url, headers = source.entry["url"], source.entry.get("headers", {})
    if per_user:
        source.entry["auth"] = {"per_user": {"kind": "oauth"}}
    if not isinstance(url, str) or "authorization" in map(str.lower, headers):
        return
    origin = wanted_login(url)
    if not origin:
        return
    if not url.startswith(f"{origin}/"):
        source.entry["origins"] = [origin]  # the hub sends codes and tokens nowhere else
    name = source.name
    each = f"each caller logs in: toolhub credentials login {name}"
    if per_user:
        source.notes.append(f"it wants a login at {origin}; {each}")
    else:
        source.notes.append(
            f"it wants a login at {origin}; one account for all callers: toolhub sources login {name}; or, added again "
            f"with --per-user --replace, {each}"
        )


@dataclass(slots=True)
class _Merged:
    """The new text of sources.yaml."""

    text: str
    added: list[Converted] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)
    """The names of those among `added` that existed before."""


def _add_to_file(path: Path, found: Iterable[Converted], refused: dict[str, str], *, replace: bool) -> _Merged:
    """Write those that can be added and return them; add to `refused` why others cannot."""
    from toolhub_service.app.config_files.editing import lock_for_edit, replace_text

    with explaining(OSError, place=path), lock_for_edit(path):
        merged = _merge_sources(path, found, refused, replace=replace)
        # Secrets first: sources.yaml must not name a missing file.
        for secret in (secret for source in merged.added for secret in source.secrets):
            replace_text(secret.file, secret.text, mode=0o600)
        if merged.added:
            replace_text(path, merged.text)
        return merged


def _merge_sources(path: Path, found: Iterable[Converted], refused: dict[str, str], *, replace: bool) -> _Merged:
    """Return the file with the sources that can be added; add to `refused` why others cannot be."""
    from toolhub_service.app.config_files.sources_editing import NotEditable, with_sources, without_source
    from toolhub_service.app.config_files.sources_file import parse_sources
    from toolhub_service.settings.loading import SettingsInvalid

    merged = _Merged(read_text(path))
    with explaining(SettingsInvalid), explaining(NotEditable, place=path):
        there = list(parse_sources(merged.text, str(path)).sources)
        for source in found:
            objection = _objection(source, there, merged.added, replace=replace)
            if objection:
                refused[source.name] = objection
                continue
            if source.name in there:
                merged.text = without_source(merged.text, source.name)
                merged.replaced.add(source.name)
            merged.text = with_sources(merged.text, {source.name: source.entry})
            there = list(parse_sources(merged.text, str(path)).sources)
            merged.added.append(source)
    return merged


def _objection(source: Converted, there: Iterable[str], added: Iterable[Converted], *, replace: bool) -> str:
    """Return why it cannot be added; empty when it can."""
    from toolhub_service.app.config_files.sources_file import check_source_name

    try:
        check_source_name(source.name, dict.fromkeys(there))
    except SourceInvalid as alike:
        return str(alike)
    if any(source.name == other.name for other in added):
        return "another server in the list was given the same name; add it alone with --name and another name"
    if replace:
        return ""
    if source.name in there:
        return "a source of this name exists; replace it with --replace"
    taken = [secret.file for secret in source.secrets if secret.file.exists() and read_text(secret.file) != secret.text]
    return f"{taken[0]} exists with other content; replace it with --replace" if taken else ""


def _report(
    path: Path,
    merged: _Merged,
    refused: dict[str, str],
    settings: Settings,
    grant: str,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    from toolhub_service.app.config_files.sources_editing import as_yaml

    added = merged.added
    missing = {source.name: _missing(source, settings, is_written=not dry_run) for source in added}
    if wants_json(as_json):
        shown = [
            {
                "name": source.name,
                "replaced": source.name in merged.replaced,
                "source": source.for_display,
                "secretFiles": [str(secret.file) for secret in source.secrets],
                "notes": source.notes,
                "missing": missing[source.name],
            }
            for source in added
        ]
        print_json({"file": str(path), "dryRun": dry_run, "added": shown, "refused": refused, "grant": grant})
        return
    for source in added:
        done = f"replaced in {path}" if source.name in merged.replaced else f"added to {path}"
        print_line(style(f"{source.name} {'would be' if dry_run else 'is'} {done}", bold=True))
        print_text(as_yaml({source.name: source.for_display}), nl=False)
        for secret in source.secrets:
            note(f"! {secret.place} {'would be moved' if dry_run else 'was moved'} to {secret.file} (mode 0600)")
        for warning in source.notes:
            note(f"! {warning}")
        for problem in missing[source.name]:
            print_line(style(f"! {problem}", fg="yellow"), err=True)
    for name, why in refused.items():
        print_line(style(f"{name} was not added: {why}", fg="red"), err=True)


def _show_next(added: list[Converted], principal: str, place: list[str]) -> None:
    """Print the commands that come next; `place` are the options by which they find the same file."""
    from toolhub_service.policy.suggested_lines import grant_command

    names = " ".join(source.name for source in added)
    hub = "a running hub that reads this file" if "--file" in place else "a running hub"
    note(
        f"\nTo check that this machine has what it needs: toolhub sources check {shlex.join([added[0].name, *place])}",
        f"To load it into {hub} and see its state: toolhub sources refresh {names}",
        f"To let a principal call its tools: {grant_command(principal, (source.capability for source in added))}",
    )


def _grant(added: list[Converted], settings: Settings) -> str:
    """Return the line of policy.yaml that lets a principal call them; empty without any."""
    from toolhub_service.policy.suggested_lines import grant_line

    return grant_line(_principal(settings), (source.capability for source in added)) if added else ""


def _principal(settings: Settings) -> str:
    """Return whom to grant to: without credentials all callers are one principal; otherwise the operator chooses."""
    from toolhub_service.policy.starter import LOCAL

    return LOCAL if "insecure-local" in settings.auth.modes else "PRINCIPAL"


def _missing(source: Converted, settings: Settings, *, is_written: bool) -> list[str]:
    """Return what it refers to and is missing here, without the files of secrets that are still to be written."""
    from toolhub_service.app.config_files.sources_file import to_source
    from toolhub_service.app.doctor.sources import missing_for

    # A dry run must not report the files that the real run writes.
    unwritten = [] if is_written else [str(secret.file) for secret in source.secrets]
    found = missing_for(to_source(source.name, source.entry), settings)
    return [problem for problem in found if not any(file in problem for file in unwritten)]
