"""`toolhub policy …`: create, change, check and explain a policy, without a hub."""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.policy.importing import import_group
from toolhub_service.cli.policy.starter import starter_policy
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.arguments import read_arguments
from toolhub_service.cli.terminal.output import (
    EXIT_REFUSED,
    explaining,
    json_option,
    note,
    print_json,
    print_line,
    print_prose,
    style,
    text_option,
    wants_json,
)

if TYPE_CHECKING:
    from toolhub_service.domain.call import Principal
    from toolhub_service.domain.verdict import Verdict
    from toolhub_service.policy.decide import PolicySnapshot
    from toolhub_service.policy.explain import Explanation
    from toolhub_service.settings.document import Settings


_PARTS = ("grants", "roles", "rules", "limits", "egress", "commands", "tenants")
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(cls=SuggestingGroup)
def policy() -> None:
    """Create, change and check policy.yaml, and explain its decisions. Needs no running hub."""


policy.add_command(import_group)


@policy.command()
@settings_options
def init(**options: Any) -> None:
    """Write a commented policy.yaml where the hub looks for it. An existing file is never changed.

    \b
    Example:
      toolhub policy init
    """
    from toolhub_service.app.config_files.paths import Paths

    paths = Paths(read_settings(**options))
    with explaining(OSError, place=paths.policy):
        paths.make()
        try:
            # Mode 0600: a hub does not start with a policy that others may write, as umask 002 would allow.
            descriptor = os.open(paths.policy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError as standing:
            raise click.ClickException(
                f"{paths.policy} exists already and was not changed. Edit it, then run `toolhub policy check`."
            ) from standing
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(starter_policy())
    print_line(f"Wrote {paths.policy}. Until you change it, it is equal to the built-in starter policy.")


@policy.command()
@click.argument("who")
@click.argument("what", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Print the lines that would be added, and change nothing.")
@settings_options
def grant(who: str, what: tuple[str, ...], dry_run: bool, **options: Any) -> None:
    """Grant capabilities to WHO in the hub's policy.yaml, and keep its comments.

    WHO is a principal: the name of an API key, `local`, or another selector of docs/policy.md. WHAT is a capability,
    such as read:fs, or a tool of this hub (not of its sources), whose capabilities are then granted. Without a policy
    file, one that extends the starter policy is written. A running hub reloads it within seconds.

    \b
    Examples:
      toolhub policy grant local mcp:time
      toolhub policy grant research-agent core/web.fetch
      toolhub policy grant "group:corp/admins" danger:destructive --dry-run
    """
    from toolhub_service.app.config_files.editing import lock_for_edit, replace_text
    from toolhub_service.app.config_files.paths import Paths
    from toolhub_service.app.config_files.policy_editing import NotEditable, lacking_grants, with_grant
    from toolhub_service.app.offline import policy_warnings
    from toolhub_service.policy.parsing import InvalidPolicy

    settings = read_settings(**options)
    capabilities = _capabilities_of(settings, what)
    path = Paths(settings).policy
    with explaining(OSError, InvalidPolicy, NotEditable, place=path):
        if not dry_run:
            Paths(settings).make()
        with nullcontext() if dry_run else lock_for_edit(path):
            text = path.read_text(encoding="utf-8") if path.exists() else starter_policy()
            lacking = lacking_grants(text, who, capabilities)
            if not lacking:
                print_line(f"Nothing to do: {path} grants {who} {', '.join(capabilities)} already.")
                return
            changed = with_grant(text, who, lacking)
            if not dry_run:
                replace_text(path, changed)
    for line in added_lines(text, changed):
        print_line(f"+ {line}")
    if dry_run:
        return
    for warning in policy_warnings(settings, path):
        if any(f"`{each}`" in warning for each in (who, *lacking)):
            print_prose(warning, "  ", "!", "yellow", err=True)
    print_line(f"Wrote {path}. A running hub reloads it within seconds.")


def added_lines(before: str, after: str) -> list[str]:
    """The lines that the second text has and the first one lacks."""
    compared = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line[2:] for line in compared if line.startswith("+ ") and line[2:].strip()]


def _capabilities_of(settings: Settings, names: tuple[str, ...]) -> list[str]:
    """Return capabilities as they are, and those that named tools need. Raises UsageError for an unknown tool."""
    from toolhub_service.app.offline import configured_tools

    found: dict[str, None] = {}
    tools = (
        {}
        if not any("/" in name for name in names)
        else {spec.name: spec for spec in asyncio.run(configured_tools(settings))}
    )
    for name in names:
        if "/" not in name:
            found[name] = None
        elif name in tools:
            found |= dict.fromkeys(sorted(tools[name].capabilities))
        else:
            near = difflib.get_close_matches(name, tools, n=1)
            advice = f"Did you mean {near[0]}?" if near else "`toolhub tools show TOOL` says which capability it needs."
            raise click.UsageError(f"{name} is no tool of this hub itself. {advice}")
    if not found:
        raise click.UsageError(f"{', '.join(names)} needs no capability: every agent may call it.")
    return list(found)


@policy.command()
@click.argument("file", type=_FILE, required=False)
@click.option("--strict", is_flag=True, help="Exit 1 on warnings as well.")
@text_option
@settings_options
def check(file: Path | None, strict: bool, as_json: bool, **options: Any) -> None:
    """Check FILE: exit 0 when it is a valid policy, 1 with line and reason when not. Default: the hub's policy.

    It warns of names that are unknown here: tools of the hub and of the configuration, capabilities, sources of
    sources.yaml, and principals without an API key; and of conditions that read an argument which some tools of
    their rule lack. A misspelt name in a DENY rule forbids nothing.

    \b
    Examples:
      toolhub policy check policy.yaml
      toolhub policy check --strict policy.yaml
    """
    from toolhub_service.app.offline import policy_file_of, policy_warnings
    from toolhub_service.policy.parsing import InvalidPolicy

    settings = read_settings(**options)
    chosen = file or policy_file_of(settings)
    try:
        snapshot = _load(chosen)
    except InvalidPolicy as invalid:
        if not wants_json(as_json):
            raise click.ClickException(f"{chosen}: {invalid}") from invalid
        print_json({"ok": False, "problem": invalid.problem, "path": invalid.path, "line": invalid.line})
        sys.exit(EXIT_REFUSED)
    warnings = policy_warnings(settings, chosen)
    if wants_json(as_json):
        print_json({"ok": True, "file": str(chosen or ""), "revision": snapshot.revision, "warnings": warnings})
    else:
        _print_valid(chosen, snapshot, warnings)
    if strict and warnings:
        sys.exit(EXIT_REFUSED)


def _print_valid(chosen: Path | None, snapshot: PolicySnapshot, warnings: list[str]) -> None:
    for warning in warnings:
        print_prose(f"{chosen}, {warning}", "  ", "!", "yellow")
    print_line(style(f"✓ {chosen or 'The built-in starter policy'} is valid", fg="green"))
    counts = ((part, len(getattr(snapshot.document, part))) for part in _PARTS)
    summary = ", ".join(f"{count} in {part}" for part, count in counts if count)
    note(f"  including what it extends: {summary or 'nothing is granted'}; revision {snapshot.revision[:12]}")


@policy.command("explain")
@click.option("--principal", default="local", show_default=True, help="Principal that calls.")
@click.option("--group", "groups", multiple=True, help="Group in the token of --principal; repeatable.")
@click.option(
    "--actor",
    "actors",
    multiple=True,
    help="Principal that acts on behalf of --principal; repeatable, the current actor first.",
)
@click.option("--user", "user_id", default="", help="The user_id that the call names, for whom the principal acts.")
@click.option("--tool", help="The same as TOOL.")
@click.argument("named", metavar="TOOL", required=False)
@click.option(
    "--args",
    "arguments",
    default="{}",
    show_default=True,
    help="Arguments: a JSON object, @FILE, or - for standard input.",
)
@click.option("--policy", "file", type=_FILE, help="Policy file to use; default: the hub's policy.")
@json_option
@settings_options
def explain_command(
    principal: str,
    groups: tuple[str, ...],
    actors: tuple[str, ...],
    user_id: str,
    tool: str | None,
    named: str | None,
    arguments: str,
    file: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Explain why the policy would allow or refuse a call: every grant, rule and guard, and the verdict.

    Exit 0 when the call is allowed, 1 when it is refused or needs a plan or an approval. It knows the built-in and
    custom tools of this machine, not those of sources (MCP servers, workflows and so on).

    \b
    Example:
      toolhub policy explain core/fs.readText --args '{"path": "../secret"}'
      toolhub policy explain --principal corp:ann --group admins --actor corp:bot core/web.fetch
    """
    from toolhub_service.app.offline import OfflineRefused, explain_call, policy_file_of
    from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
    from toolhub_service.policy.parsing import InvalidPolicy

    if bool(tool) == bool(named):
        raise click.UsageError("Name one tool, by TOOL or --tool.")
    tool = tool or named or ""
    settings = read_settings(**options)
    args, caller = _object(arguments), _caller(settings, principal, groups, actors)
    chosen = file or policy_file_of(settings)
    with explaining(InvalidPolicy, place=chosen):
        snapshot = _load(chosen)
    try:
        explanation = asyncio.run(explain_call(settings, snapshot, caller, tool, args, user_id=user_id))
    except ToolFailure as refused:
        # The schema is checked first, as in the hub: an argument that it refuses never reaches a rule.
        text = f"The call fails before the policy is evaluated: {refused.error.message}"
        lacks_args = not args and refused.error.kind is ErrorKind.INPUT_SCHEMA_INVALID
        raise click.ClickException(f"{text} Give arguments with --args." if lacks_args else text) from refused
    except OfflineRefused as reason:
        raise click.ClickException(str(reason)) from reason
    if wants_json(as_json):
        print_json(_plain(explanation))
    else:
        note(f"{principal} calls {tool} under {chosen or 'the built-in starter policy'}")
        _show(explanation)
    if not explanation.verdict.allows:
        sys.exit(EXIT_REFUSED)


@policy.command()
def schema() -> None:
    """Print the JSON Schema of policy.yaml, for editors and checks.

    \b
    Example:
      toolhub policy schema > policy.schema.json
    """
    from toolhub_service.policy.document import document_schema

    print_json(document_schema())


def _load(file: Path | None) -> PolicySnapshot:
    from toolhub_service.app.offline import OfflineRefused, policy_of

    try:
        return policy_of(file)
    except OfflineRefused as reason:
        raise click.UsageError(str(reason)) from reason


def _caller(settings: Settings, id: str, groups: tuple[str, ...], actors: tuple[str, ...]) -> Principal:
    """Return the caller as a credential without restrictions would describe it."""
    from toolhub_service.domain.call import Principal, Role

    issuer, colon, _ = id.partition(":")
    issuers = [known.name for known in settings.auth.jwt.issuers]
    # Only an issuer's token carries groups and actors; an API key has none.
    is_vouched = bool(colon) and issuer in issuers
    if (groups or actors) and not is_vouched:
        raise click.UsageError(
            "Groups and actors come with a token: give --principal ISSUER:SUBJECT, with an issuer of auth.jwt.issuers "
            f"({', '.join(issuers) or 'there is none'})."
        )
    return Principal(id, frozenset(Role), issuer=issuer if is_vouched else "", actors=actors, groups=frozenset(groups))


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(read_arguments([text], {}))
    except ValueError as broken:
        raise click.UsageError(f"--args is not JSON: {broken}") from broken
    if not isinstance(value, dict):
        raise click.UsageError("--args must be a JSON object.")
    return value


def _show(explanation: Explanation) -> None:
    width = max(len(each.id) for each in explanation.considerations)
    for each in explanation.considerations:
        mark, colour = ("●", None) if each.matched else ("·", "bright_black")
        print_prose(f"{each.id.ljust(width)}  {each.what}; {each.why}", " " * (width + 4), mark, colour)
    verdict = explanation.verdict
    print_line()
    print_line(
        style(f"{verdict.effect.value} by {verdict.rule_id}", fg="green" if verdict.allows else "red", bold=True)
    )
    print_prose(verdict.reason)
    if remedy := _remedy(verdict):
        print_prose(remedy)
    if explanation.grammar:
        print_prose(f"To allow this command, complete its flags and arguments in policy.yaml:\n{explanation.grammar}")


def _remedy(verdict: Verdict) -> str:
    """The user of this command is an operator, whoever the caller of the call is."""
    return verdict.operator_remedy or verdict.remedy


def _plain(explanation: Explanation) -> dict[str, Any]:
    verdict = explanation.verdict
    return {
        "verdict": {
            "effect": verdict.effect.value,
            "ruleId": verdict.rule_id,
            "kind": "" if verdict.allows else verdict.kind.value,
            "reason": verdict.reason,
            "remedy": _remedy(verdict),
            "policyRevision": verdict.policy_revision,
        },
        "grammar": explanation.grammar,
        "considerations": [
            {"id": each.id, "what": each.what, "matched": each.matched, "why": each.why}
            for each in explanation.considerations
        ],
    }
