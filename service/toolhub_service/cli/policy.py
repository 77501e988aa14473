"""`toolhub policy …`: begin a policy, check it, and ask it why."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolhub_service.cli.arguments import read_arguments
from toolhub_service.cli.output import json_option, note, print_json, print_prose, wants_json
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.settings_options import read_settings, settings_options
from toolhub_service.cli.starter_policy import STARTER_POLICY

if TYPE_CHECKING:
    from toolhub_service.policy.explain import Explanation
    from toolhub_service.policy.snapshot import PolicySnapshot
    from toolhub_service.settings.document import Settings

_EXIT_NO = 1
_PARTS = ("grants", "roles", "rules", "limits", "egress", "commands")
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(cls=SuggestingGroup)
def policy() -> None:
    """Begin, check and explain a policy. No hub need be running."""


@policy.command()
@settings_options
def init(config_file: Path | None, data_dir: Path | None) -> None:
    """Write a commented policy.yaml where the hub looks for it. A file that stands there is never touched.

    \b
    Example:
      toolhub policy init
    """
    from toolhub_service.app.paths import Paths

    paths = Paths(read_settings(config_file, data_dir))
    try:
        paths.make()
        with open(paths.policy, "x", encoding="utf-8", opener=_for_its_owner) as file:
            file.write(STARTER_POLICY)
    except FileExistsError as standing:
        raise click.ClickException(f"{paths.policy} exists; it is left as it is.") from standing
    except OSError as refused:
        raise click.ClickException(f"{paths.policy}: {refused.strerror}") from refused
    click.echo(f"{paths.policy} is written; it means what the built-in starter policy means until you change it")


def _for_its_owner(path: str, flags: int) -> int:
    """A hub does not start on a policy that others may write, which a umask of 002 would make it."""
    return os.open(path, flags, 0o600)


@policy.command()
@click.argument("file", type=_FILE, required=False)
@click.option("--strict", is_flag=True, help="Exit 1 on warnings, too.")
@json_option
@settings_options
def check(file: Path | None, strict: bool, as_json: bool, config_file: Path | None, data_dir: Path | None) -> None:
    """Exit 0 when FILE is a valid policy, 1 with line and reason when not. Without FILE: the one the hub would read.

    Warns of tools, capabilities and principals that fit nothing known here: tools of the hub and of the configuration,
    sources of sources.yaml, names of API keys. A misspelt name in a DENY rule forbids nothing.

    \b
    Examples:
      toolhub policy check policy.yaml
      toolhub policy check --strict policy.yaml
    """
    from toolhub_service.app.offline import policy_warnings
    from toolhub_service.policy.parsing import InvalidPolicy

    settings = read_settings(config_file, data_dir)
    chosen = file or _configured(settings)
    try:
        snapshot = _load(chosen)
    except InvalidPolicy as invalid:
        if not wants_json(as_json):
            raise click.ClickException(f"{chosen}: {invalid}") from invalid
        print_json({"ok": False, "problem": invalid.problem, "path": invalid.path, "line": invalid.line})
        sys.exit(_EXIT_NO)
    warnings = policy_warnings(settings, chosen)
    if wants_json(as_json):
        print_json({"ok": True, "file": str(chosen or ""), "revision": snapshot.revision, "warnings": warnings})
    else:
        _tell_valid(chosen, snapshot, warnings)
    if strict and warnings:
        sys.exit(_EXIT_NO)


def _tell_valid(chosen: Path | None, snapshot: PolicySnapshot, warnings: list[str]) -> None:
    for warning in warnings:
        print_prose(f"{chosen}, {warning}", "  ", "!", "yellow")
    click.secho(f"✓ {chosen or 'The built-in starter policy'} is valid", fg="green")
    counts = ((part, len(getattr(snapshot.document, part))) for part in _PARTS)
    told = ", ".join(f"{count} in {part}" for part, count in counts if count)
    note(f"  with what it extends: {told or 'nothing is granted'}; revision {snapshot.revision[:12]}")


@policy.command("explain")
@click.option("--principal", default="local", show_default=True, help="Who calls.")
@click.option("--tool", required=True, help="Which tool.")
@click.option("--args", "arguments", default="{}", show_default=True, help="A JSON object, @file or -.")
@click.option("--policy", "file", type=_FILE, help="Instead of the policy that the hub would read.")
@json_option
@settings_options
def explain_command(
    principal: str,
    tool: str,
    arguments: str,
    file: Path | None,
    as_json: bool,
    config_file: Path | None,
    data_dir: Path | None,
) -> None:
    """Why a call would be allowed or refused: every grant, rule and guard, matched or not, and the verdict.

    Exit 0 when the call is allowed, 1 when it is not (a plan or an approval that is wanted is a no).

    \b
    Example:
      toolhub policy explain --tool core/fs.readText --args '{"path": "../secret"}'
    """
    from toolhub_service.app.offline import explain_call
    from toolhub_service.domain.errors import ToolFailure
    from toolhub_service.policy.parsing import InvalidPolicy

    settings = read_settings(config_file, data_dir)
    args = _object(arguments)
    chosen = file or _configured(settings)
    try:
        snapshot = _load(chosen)
        explanation = asyncio.run(explain_call(settings, snapshot, principal, tool, args))
    except InvalidPolicy as invalid:
        raise click.ClickException(f"{chosen}: {invalid}") from invalid
    except ToolFailure as refused:
        told = f"The call does not get as far as the policy: {refused.error.message}"
        raise click.ClickException(told if args else f"{told} Arguments are given with --args.") from refused
    if wants_json(as_json):
        print_json(_plain(explanation))
    else:
        note(f"{principal} calls {tool} under {chosen or 'the built-in starter policy'}")
        _show(explanation)
    if not explanation.verdict.allows:
        sys.exit(_EXIT_NO)


@policy.command()
def schema() -> None:
    """The JSON Schema of policy.yaml, for editors and checks.

    \b
    Example:
      toolhub policy schema > policy.schema.json
    """
    from toolhub_service.policy.document import document_schema

    print_json(document_schema())


def _configured(settings: Settings) -> Path | None:
    from toolhub_service.app.offline import policy_file_of

    return policy_file_of(settings)


def _load(file: Path | None) -> PolicySnapshot:
    from toolhub_service.app.offline import CannotLook, policy_of

    try:
        return policy_of(file)
    except CannotLook as reason:
        raise click.UsageError(str(reason)) from reason


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(read_arguments([text], {}))
    except ValueError as broken:
        raise click.UsageError(f"--args is not JSON: {broken}") from broken
    if not isinstance(value, dict):
        raise click.UsageError("--args must be a JSON object")
    return value


def _show(explanation: Explanation) -> None:
    width = max(len(each.id) for each in explanation.considerations)
    for each in explanation.considerations:
        mark, colour = ("●", None) if each.matched else ("·", "bright_black")
        print_prose(f"{each.id.ljust(width)}  {each.what}; {each.why}", " " * (width + 4), mark, colour)
    verdict = explanation.verdict
    click.secho(f"\n{verdict.effect.value} by {verdict.rule_id}", fg="green" if verdict.allows else "red", bold=True)
    print_prose(verdict.reason)
    if verdict.remedy:
        print_prose(verdict.remedy)
    if explanation.grammar:
        print_prose(f"To allow this command, complete its flags and arguments in policy.yaml:\n{explanation.grammar}")


def _plain(explanation: Explanation) -> dict[str, Any]:
    verdict = explanation.verdict
    return {
        "verdict": {
            "effect": verdict.effect.value,
            "ruleId": verdict.rule_id,
            "kind": "" if verdict.allows else verdict.kind.value,
            "reason": verdict.reason,
            "remedy": verdict.remedy,
            "policyRevision": verdict.policy_revision,
        },
        "grammar": explanation.grammar,
        "considerations": [
            {"id": each.id, "what": each.what, "matched": each.matched, "why": each.why}
            for each in explanation.considerations
        ],
    }
