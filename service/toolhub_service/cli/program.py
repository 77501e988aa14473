"""`toolhub program`: runs a program that calls tools, and prints the stubs of what it may call."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from toolhub.v1 import call_pb2, tool_pb2
from toolhub.v1 import job_service_pb2 as job_pb
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.cli.call import command_context, request_options, show_plan, show_result
from toolhub_service.cli.connection.client import connect_by_options, connection_options
from toolhub_service.cli.jobs.watch import watch_to_the_end
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.arguments import read_arguments
from toolhub_service.cli.terminal.output import (
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    asks_for_data,
    json_option,
    note,
    print_answer,
    print_json_line,
    print_line,
    print_text,
    style,
)
from toolhub_service.cli.terminal.progress import ProgressBar

_TOOL: Final = "core/program.run"
_FORMATS: Final = {"python": pb.EXPORT_FORMAT_PYTHON_STUBS, "typescript": pb.EXPORT_FORMAT_TYPESCRIPT}
_COLOURS: Final = {"SUCCEEDED": "green", "FAILED": "red", "CANCELLED": "yellow"}
_MARKS: Final = {"STARTED": "→", "SUCCEEDED": "✓", "FAILED": "✗", "CANCELLED": "–"}


@click.group(cls=SuggestingGroup)
def program() -> None:
    """Run a program that calls tools, and print what it can call."""


@program.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--inputs", default="", help="Value of `inputs` in the program: a JSON object or @file.")
@click.option("--tool", "tools", multiple=True, help="Name or glob of a tool it may call; repeatable. Default: all.")
@click.option("--max-calls", type=click.IntRange(0), help="Maximum number of calls.")
@click.option("--no-check", is_flag=True, help="Do not check its types before it runs.")
@click.option("--watch", is_flag=True, help="Show each call as it happens, on standard error.")
@click.option("--job", "as_job", is_flag=True, help="Run it as a job, which survives a restart of the hub.")
@click.option("--dry-run", is_flag=True, help="Show what it would call, as far as that can be known; change nothing.")
@click.option("--idempotency-key", default="", help="A second run with the same key returns the first result.")
@request_options("run by hand")
@json_option
@connection_options
def run(file: str, as_json: bool, **options: Any) -> None:
    """Run FILE (- for standard input), a program in Python that calls tools, on the hub.

    The answer is the value of its last expression; in a pipe that value is printed as JSON, with -o json the whole
    answer. With --watch each call is a line on standard error; with --job the program continues when this command ends.

    \b
    Examples:
      toolhub program run report.py --inputs '{"folder": "reports"}' --watch
      toolhub program run report.py --tool 'core/fs.read*' --dry-run
      echo 'await core.util_time_now()' | toolhub program run -
    """
    if options["as_job"] and options["dry_run"]:
        raise click.UsageError("--job and --dry-run exclude each other.")
    fields = _request(_text(file), options)
    with connect_by_options(options) as connection:
        if options["as_job"]:
            job = connection.call(connection.jobs.SubmitJob, job_pb.SubmitJobRequest(**fields)).job
            print_line(job.job_id, err=options["watch"])
            if options["watch"]:
                watch_to_the_end(connection, job, as_json=as_json)
            else:
                note("Running in the background. Follow with:", err=True)
                note(f"toolhub jobs watch {job.job_id}", err=True)
            return
        fields["mode"] = call_pb2.INVOKE_MODE_DRY_RUN if options["dry_run"] else call_pb2.INVOKE_MODE_EXECUTE
        running = connection.call(connection.tools.InvokeStream, pb.InvokeStreamRequest(**fields))
        try:
            answer = _show_events(running, is_watched=options["watch"])
        except KeyboardInterrupt:
            # Ending the stream cancels the program, which would otherwise run on without a caller.
            running.cancel()
            print_line(err=True)
            print_line("Interrupted. The hub cancels the program; what its calls have done is not undone.", err=True)
            sys.exit(EXIT_INTERRUPTED)
    _print(answer, as_json, shlex.join(["toolhub", "program", "run", file]))


def _print(answer: pb.InvokeStreamResponse, as_json: bool, again: str) -> None:
    if answer.HasField("plan"):
        print_answer(answer.plan, as_json, partial(show_plan, again=again))
        if not answer.plan.plan_digest:
            sys.exit(EXIT_REFUSED)
        return
    value = json.loads(answer.result.result_json) if answer.result.ok else {}
    # A pipe gets only the value, for `| jq`.
    if "value" in value and not sys.stdout.isatty() and not asks_for_data(as_json):
        print_json_line(value["value"])
    else:
        print_answer(answer.result, as_json, partial(show_result, again=again))
    if not answer.result.ok:
        sys.exit(EXIT_REFUSED)


def _text(file: str) -> str:
    """Return the program. Raises UsageError."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as unreadable:
        reason = unreadable.strerror if isinstance(unreadable, OSError) else "it is not UTF-8"
        raise click.UsageError(f"{file} cannot be read: {reason}.") from unreadable


def _request(code: str, options: Mapping[str, Any]) -> dict[str, Any]:
    args: dict[str, Any] = {"code": code}
    if options["inputs"]:
        try:
            args["inputs"] = json.loads(read_arguments([options["inputs"]], {}))
        except ValueError as broken:
            raise click.UsageError(f"--inputs is no JSON object: {broken}.") from broken
    if options["tools"]:
        args["tools"] = list(options["tools"])
    if options["max_calls"] is not None:
        args["maxCalls"] = options["max_calls"]
    if options["no_check"]:
        args["check"] = False
    return {
        "intent": call_pb2.ToolIntent(
            tool=_TOOL,
            args_json=json.dumps(args).encode(),
            purpose=options["purpose"],
            idempotency_key=options["idempotency_key"],
        ),
        "context": command_context(options["request_id"]),
        "plan_digest": options["plan_digest"],
        "approval_id": options["approval_id"],
        "result_encoding": call_pb2.RESULT_ENCODING_JSON,
    }


def _show_events(events: Iterable[pb.InvokeStreamResponse], *, is_watched: bool) -> pb.InvokeStreamResponse:
    shown: set[tuple[int, str]] = set()
    with ProgressBar("program") as bar:
        for event in events:
            if not event.HasField("progress"):
                if not event.HasField("chunk"):
                    _show_rest(event, shown if is_watched else None)
                    return event
            elif is_watched:
                _show_changes(event.progress.details_json, shown)
            else:
                bar.show(event.progress)
    raise click.ClickException(
        "The hub ended the stream without an answer. `toolhub audit tail` shows what was called."
    )


def _show_rest(answer: pb.InvokeStreamResponse, shown: set[tuple[int, str]] | None) -> None:
    """Show the ends of calls that happened faster than they could be followed."""
    if shown is None or not answer.result.ok:
        return
    # Progress events are thinned out on the way; the result has every call.
    made = json.loads(answer.result.result_json).get("calls", ())
    recent = [
        {**call, "call": place, "state": "SUCCEEDED" if call["ok"] else "FAILED"} for place, call in enumerate(made, 1)
    ]
    unseen = [change for change in recent if not {(change["call"], end) for end in _COLOURS} & shown]
    _show_changes(json.dumps({"recent": unseen}).encode(), shown)


def _show_changes(details_json: bytes, shown: set[tuple[int, str]]) -> None:
    """Print a line for each change of a call that was not shown yet: a report repeats some earlier ones."""
    for change in json.loads(details_json or b"{}").get("recent", ()):
        key = (change["call"], change["state"])
        if key in shown:
            continue
        shown.add(key)
        state = change["state"]
        mark = style(_MARKS.get(state, "?"), fg=_COLOURS.get(state))
        about = " ".join(part for part in (change.get("kind", ""), change.get("callId", "")) if part)
        print_line(mark, f" {change['call']:>3}  {change['tool']}  {about}".rstrip(), err=True)


@program.command()
@click.option(
    "--format", "form", type=click.Choice(list(_FORMATS)), default="python", show_default=True, help="Language."
)
@click.option("--source", "sources", multiple=True, help="Only tools of this source; repeatable.")
@click.option("--tag", "tags", multiple=True, help="Only tools with this tag; repeatable.")
@connection_options
def stubs(form: str, sources: tuple[str, ...], tags: tuple[str, ...], **options: Any) -> None:
    """Print the functions that a program can call, with their types.

    \b
    Examples:
      toolhub program stubs --source core > tools.pyi
      toolhub program stubs --format typescript > tools.d.ts
    """
    where = tool_pb2.ToolFilter(sources=sources, tags=tags)
    with connect_by_options(options) as connection:
        request = pb.ExportToolsRequest(format=_FORMATS[form], filter=where)
        for page in connection.pages(connection.tools.ExportTools, request):
            print_text(page.text, nl=False)
