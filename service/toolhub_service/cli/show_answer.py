"""Results and plans for people: what came of it, what proves it, and when it was refused what would help."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click
from google.protobuf.json_format import MessageToDict

from toolhub.v1 import error_pb2, plan_pb2, result_pb2, step_pb2
from toolhub_service.cli.output import print_pairs

_TEXT_LINES_MAX = 200


def show_result(result: result_pb2.ToolResult) -> None:
    """The answer on a terminal."""
    if not result.ok:
        show_error(result.error)
    else:
        _show_value(json.loads(result.result_json or b"null"))
    for evidence in result.evidence:
        kind = result_pb2.EvidenceType.Name(evidence.type).removeprefix("EVIDENCE_TYPE_").lower()
        click.secho(f"  {kind}: {evidence.ref} — {evidence.summary}", dim=True)
    notes = [f"{result.attempts} attempts"] if result.attempts > 1 else []
    notes += ["replayed"] if result.replayed else []
    notes += ["truncated"] if result.truncated else []
    total_us = sum(step.duration_us for step in result.durations)
    click.secho(f"  {result.call_id} · {total_us / 1_000:.1f} ms" + "".join(f" · {note}" for note in notes), dim=True)


def show_error(error: error_pb2.ToolError) -> None:
    """What went wrong and what would make it go right."""
    kind = error_pb2.ErrorKind.Name(error.kind).removeprefix("ERROR_KIND_")
    click.echo(click.style(f"✗ {kind}", fg="red", bold=True) + f"  {error.message}")
    for violation in error.violations:
        click.echo(
            f"    {violation.path or '/'}: {violation.message}" + (f" ({violation.hint})" if violation.hint else "")
        )
    details = {key: value for key, value in MessageToDict(error.details).items() if key != "remedy"}
    if details:
        print_pairs(
            (f"    {key}", value if isinstance(value, str) else json.dumps(value)) for key, value in details.items()
        )
    if error.retryable:
        wait = f" after {error.retry_after.ToMilliseconds() / 1_000:.1f} s" if error.HasField("retry_after") else ""
        click.echo(f"    It may work when tried again{wait}.")


def show_plan(plan: plan_pb2.Plan, tool: str, arguments: tuple[str, ...]) -> None:
    """What would happen, and the line that commits it."""
    for step in plan.steps:
        name = step_pb2.StepName.Name(step.step).removeprefix("STEP_NAME_").lower()
        mark = click.style("✓", fg="green") if step.ok else click.style("✗", fg="red")
        rule = f" [{step.rule_id}]" if step.rule_id else ""
        click.echo(f"{mark} {name.ljust(15)} {step.reason}{rule}".rstrip())
        if not step.ok and step.remedy:
            click.echo(f"  {step.remedy}")
    for effect in plan.effects:
        click.echo(f"→ {effect}")
    if plan.plan_digest:
        words = shlex.join(["toolhub", "call", tool, *arguments, "--plan", plan.plan_digest])
        click.secho(f"Commit exactly this until {plan.expires_at.ToDatetime():%H:%M:%S} UTC:", dim=True)
        click.echo(words)


def _show_value(value: Any) -> None:
    """An object as name and value lines, long text as it is, everything else as JSON."""
    if not isinstance(value, dict):
        click.echo(json.dumps(value, ensure_ascii=False, indent=2))
        return
    short = {key: item for key, item in value.items() if not _is_block(item)}
    print_pairs(
        (key, item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)) for key, item in short.items()
    )
    for key, item in value.items():
        if _is_block(item):
            click.secho(f"{key}:", dim=True)
            click.echo(_block(item))


def _is_block(value: Any) -> bool:
    return (isinstance(value, str) and "\n" in value) or (
        isinstance(value, dict | list) and len(json.dumps(value)) > 100
    )


def _block(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    lines = text.splitlines()
    if len(lines) <= _TEXT_LINES_MAX:
        return text
    return "\n".join(lines[:_TEXT_LINES_MAX]) + f"\n… {len(lines) - _TEXT_LINES_MAX} more lines (use --json)"
