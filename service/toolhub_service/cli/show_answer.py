"""Results and plans for people: what came of it, what proves it, and when it was refused what would help."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import click
from google.protobuf.json_format import MessageToDict

from toolhub.v1 import error_pb2, job_state_pb2, plan_pb2, result_pb2, step_pb2
from toolhub_service.cli.output import legible, note, print_pairs, print_prose

_TEXT_LINES_MAX = 200
_BLOCK_CHARS = 100
_NOT_SHOWN = ("remedy", "policy_revision", "did_you_mean")
"""Details that the message says already, or that the audit log is for."""


def show_result(result: result_pb2.ToolResult, streamed: Mapping[str, str] | None = None) -> None:
    """The answer on a terminal, less what was `streamed` there already, by field."""
    if result.ok and result.HasField("job"):
        _show_job(result.job)
    elif result.ok:
        _show_value(_without(json.loads(result.result_json or b"null"), streamed or {}))
        for evidence in result.evidence:
            kind = result_pb2.EvidenceType.Name(evidence.type).removeprefix("EVIDENCE_TYPE_").lower()
            note(legible(f"  {kind}: {evidence.ref} — {evidence.summary}"))
    else:
        show_error(result.error)
    note("  " + " · ".join(_facts(result)))


def show_error(error: error_pb2.ToolError) -> None:
    """What went wrong and what would make it go right."""
    kind = error_pb2.ErrorKind.Name(error.kind).removeprefix("ERROR_KIND_")
    click.secho(f"✗ {kind}", fg="red", bold=True)
    if error.violations:
        click.echo(legible(error.message.partition(": ")[0]) + ":")
    else:
        print_prose(error.message)
    for violation in error.violations:
        hint = f" {violation.hint}" if violation.hint else ""
        print_prose(f"  {violation.path or '/'}  {violation.message}{hint}", indent="    ")
    print_pairs(
        (f"  {key}", _short(value))
        for key, value in sorted(MessageToDict(error.details).items())
        if key not in _NOT_SHOWN
    )
    if error.kind == error_pb2.ERROR_KIND_PLAN_REQUIRED:
        click.echo("  The same command with --dry-run shows the plan and the line that commits it.")
    if error.retryable:
        wait = f" after {error.retry_after.ToMilliseconds() / 1_000:.1f} s" if error.HasField("retry_after") else ""
        click.echo(f"  It may work when tried again{wait}.")


def show_plan(plan: plan_pb2.Plan, tool: str, arguments: tuple[str, ...], options: tuple[str, ...] = ()) -> None:
    """What would happen, and the line that commits it; `options` are repeated in that line."""
    for step in plan.steps:
        name = step_pb2.StepName.Name(step.step).removeprefix("STEP_NAME_").lower()
        mark, colour = ("✓", "green") if step.ok else ("✗", "red")
        rule = f" [{step.rule_id}]" if step.rule_id else ""
        print_prose(f"{name.ljust(15)} {step.reason}{rule}".rstrip(), " " * 18, mark, colour)
        if not step.ok and step.remedy:
            print_prose(f"  {step.remedy}")
    for effect in plan.effects:
        print_prose(effect, "  ", "→")
    if plan.plan_digest:
        words = shlex.join(["toolhub", "call", tool, *arguments, *options, "--plan", plan.plan_digest])
        note(f"Nothing has been done. Commit exactly this until {plan.expires_at.ToDatetime():%H:%M:%S} UTC:")
        click.echo(words)


def _show_job(job: job_state_pb2.JobRef) -> None:
    """The tool takes long: the call goes on as a job."""
    state = job_state_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")
    click.echo(f"{legible(job.job_id)}  {state}")
    note("It goes on by itself; this follows it:")
    click.echo(legible(f"toolhub jobs watch {job.job_id}"))


def _facts(result: result_pb2.ToolResult) -> Iterator[str]:
    yield result.call_id
    yield f"{sum(step.duration_us for step in result.durations) / 1_000:.1f} ms"
    if result.attempts > 1:
        yield f"{result.attempts} attempts"
    if result.replayed:
        yield "replayed"
    if result.truncated:
        yield "truncated"


def _show_value(value: Any) -> None:
    """An object as name and value lines, long text as it is, everything else as JSON."""
    if not isinstance(value, dict):
        click.echo(legible(json.dumps(value, ensure_ascii=False, indent=2)))
        return
    print_pairs((key, _short(item)) for key, item in value.items() if not _is_block(item))
    for key, item in value.items():
        if _is_block(item):
            note(f"{legible(key)}:")
            click.echo(_block(item))


def _without(value: Any, streamed: Mapping[str, str]) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: item for key, item in value.items() if not item or streamed.get(key) != item}


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a Struct knows only floating numbers
    return json.dumps(value, ensure_ascii=False)


def _is_block(value: Any) -> bool:
    if isinstance(value, str):
        return "\n" in value
    return isinstance(value, dict | list) and len(json.dumps(value)) > _BLOCK_CHARS


def _block(value: Any) -> str:
    text = legible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)).rstrip("\n")
    lines = text.splitlines()
    if len(lines) <= _TEXT_LINES_MAX:
        return text
    return "\n".join(lines[:_TEXT_LINES_MAX]) + f"\n… {len(lines) - _TEXT_LINES_MAX:,} more lines (use --json)"
