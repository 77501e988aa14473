"""`toolhub completion SHELL`, and the names and ids that a shell completes by asking the hub.

The user waits at a prompt: the hub has one second, or TOOLHUB_COMPLETION_TIMEOUT_S, and nothing is completed when it
does not answer. Nothing heavy is imported before a completion is requested: every command imports this module.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from toolhub_service.cli.terminal.output import print_text
from toolhub_service.guards.foreign_text import on_one_line

if TYPE_CHECKING:
    from toolhub_service.cli.connection.client import Connection

_TIMEOUT_S = 1.0
_TIMEOUT_MAX_S = 600.0
_TIMEOUT_VARIABLE = "TOOLHUB_COMPLETION_TIMEOUT_S"
_ITEMS_MAX = 200

Items = Iterable[tuple[str, str]]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL, for commands, options, names and IDs.

    \b
    For this session, and for every one:
      eval "$(toolhub completion bash)"
      toolhub completion bash > ~/.local/share/bash-completion/completions/toolhub
      toolhub completion zsh > "${fpath[1]}/_toolhub"
      toolhub completion fish > ~/.config/fish/completions/toolhub.fish

    A hub that does not answer within a second completes nothing; TOOLHUB_COMPLETION_TIMEOUT_S gives it longer.
    """
    script = get_completion_class(shell)
    if script is None:
        raise click.ClickException(f"click has no completion for {shell}")
    print_text(script(context.find_root().command, {}, "toolhub", "_TOOLHUB_COMPLETE").source())


def _completing(
    ask: Callable[[Connection], Items],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return the hub's (value, help) pairs with the typed prefix; none when it does not answer."""

    @wraps(ask)
    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from toolhub_service.cli.connection.chosen_context import complete_options
        from toolhub_service.cli.connection.client import connect_by_options
        from toolhub_service.cli.connection.hub_options import (
            BY_DEFAULT,
            BY_ENVIRONMENT,
            DEFAULT_ADDRESS,
            OPTIONS,
            TYPED,
        )

        # click resolves neither environment variables nor defaults while it completes.
        given: dict[str, tuple[Any, int]] = dict.fromkeys(OPTIONS, (None, BY_DEFAULT))
        for option in context.command.params:
            name = str(option.name)
            typed = context.params.get(name)
            value, rank = (typed, TYPED) if typed is not None else (option.value_from_envvar(context), BY_ENVIRONMENT)
            if name in OPTIONS and value not in (None, ""):
                given[name] = (Path(str(value)) if name.endswith("_file") else value, rank)
        # At a prompt an unreachable hub completes nothing, and writes nothing into the line.
        with suppress(click.ClickException):
            options = complete_options(given)
            options |= {"timeout_s": _timeout_s(), "address": options["address"] or DEFAULT_ADDRESS}
            with connect_by_options(options) as connection:
                return _fitting(ask(connection), incomplete)
        return []

    return complete


def _timeout_s() -> float:
    # An invalid duration is ignored: at a prompt there is nowhere to report it.
    with suppress(ValueError):
        chosen_s = float(os.environ.get(_TIMEOUT_VARIABLE, ""))
        if 0 < chosen_s <= _TIMEOUT_MAX_S:
            return chosen_s
    return _TIMEOUT_S


def _fitting(found: Items, incomplete: str) -> list[CompletionItem]:
    # A shell reads one completion a line: a name that is no line of text cannot be completed.
    return [
        CompletionItem(value, help=on_one_line(about))
        for value, about in found
        if value.startswith(incomplete) and on_one_line(value) == value
    ]


@_completing
def complete_tool(connection: Connection) -> Items:
    """Tools that the caller may list, each with the first sentence of its description."""
    from toolhub.v1 import tool_service_pb2 as pb
    from toolhub_service.cli.connection.client import PAGE_MAX
    from toolhub_service.cli.terminal.output import first_line

    for page in connection.pages(connection.tools.ListTools, pb.ListToolsRequest(page_size=PAGE_MAX)):
        for tool in page.tools:
            yield tool.name, first_line(tool.description)


@_completing
def complete_skill(connection: Connection) -> Items:
    """Skills that the caller may use, each with the first sentence of its description."""
    from toolhub.v1 import tool_pb2
    from toolhub.v1 import tool_service_pb2 as pb
    from toolhub_service.cli.connection.client import PAGE_MAX
    from toolhub_service.cli.terminal.output import first_line

    where = tool_pb2.ToolFilter(kinds=[tool_pb2.TOOL_KIND_SKILL])
    request = pb.ListToolsRequest(filter=where, page_size=PAGE_MAX)
    for page in connection.pages(connection.tools.ListTools, request):
        for tool in page.tools:
            if tool.name.endswith(".read"):
                yield tool.name.partition("/")[2].removesuffix(".read"), first_line(tool.description)


@_completing
def complete_tag(connection: Connection) -> Items:
    """Tags of the tools that the caller may list, each with how many tools have it."""
    from toolhub.v1 import tool_service_pb2 as pb
    from toolhub_service.cli.connection.client import PAGE_MAX

    pages = connection.pages(connection.tools.ListTools, pb.ListToolsRequest(page_size=PAGE_MAX))
    counts = Counter(tag for page in pages for tool in page.tools for tag in tool.tags)
    return [(tag, f"{count} tools") for tag, count in sorted(counts.items())]


def complete_argument(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The arguments of the tool that are not given yet, each as `name=` with its description."""
    tool, given = str(context.params.get("tool") or ""), context.params.get("arguments") or ()
    # An argument that is in the line already is not offered again.
    taken = {str(word).partition("=")[0] for word in given}

    def arguments(connection: Connection) -> Items:
        from toolhub.v1 import tool_service_pb2 as pb
        from toolhub_service.cli.terminal.output import first_line

        spec = connection.call(connection.tools.GetTool, pb.GetToolRequest(name=tool)).tool
        for name, declared in json.loads(spec.input_schema_json or b"{}").get("properties", {}).items():
            if name not in taken:
                yield f"{name}=", first_line(str(declared.get("description", "")) if isinstance(declared, dict) else "")

    return _completing(arguments)(context, parameter, incomplete)


@_completing
def complete_approval(connection: Connection) -> Items:
    """Pending approvals, each with its principal and tool."""
    from toolhub.v1 import approval_pb2
    from toolhub.v1 import approval_service_pb2 as pb

    request = pb.ListApprovalsRequest(states=[approval_pb2.APPROVAL_STATE_PENDING], page_size=_ITEMS_MAX)
    for approval in connection.call(connection.approvals.ListApprovals, request).approvals:
        yield approval.approval_id, f"{approval.principal} {approval.tool}"


@_completing
def complete_job(connection: Connection) -> Items:
    """The newest jobs, each with its tool and state."""
    from toolhub.v1 import job_service_pb2 as pb
    from toolhub_service.cli.terminal.output import enum_name

    for job in connection.call(connection.jobs.ListJobs, pb.ListJobsRequest(page_size=_ITEMS_MAX)).jobs:
        yield job.job_id, f"{job.tool} {enum_name(job.status, 'state').lower()}"


@_completing
def complete_artifact(connection: Connection) -> Items:
    """The newest artifacts, each with its name."""
    from toolhub.v1 import artifact_service_pb2 as pb

    request = pb.ListArtifactsRequest(page_size=_ITEMS_MAX)
    for artifact in connection.call(connection.artifacts.ListArtifacts, request).artifacts:
        yield artifact.artifact_id, artifact.name


@_completing
def complete_source(connection: Connection) -> Items:
    """Sources of the running hub, each with its state."""
    from toolhub.v1 import registry_service_pb2 as pb
    from toolhub_service.cli.terminal.output import enum_name

    for status in connection.call(connection.registry.ListSources, pb.ListSourcesRequest()).sources:
        yield status.source, enum_name(status, "state").lower()


@_completing
def complete_pinned(connection: Connection) -> Items:
    """Tools with pins, each with the pin's state; those that wait for a decision first."""
    from toolhub.v1 import pin_pb2
    from toolhub.v1 import registry_service_pb2 as pb
    from toolhub_service.cli.terminal.output import enum_name

    found: dict[str, str] = {}
    # Pending ones first, because users decide on those.
    for states in ([pin_pb2.PIN_STATE_PENDING], []):
        request = pb.ListPinsRequest(page_size=_ITEMS_MAX, states=states)
        for pin in connection.call(connection.registry.ListPins, request).pins:
            found.setdefault(pin.tool, enum_name(pin, "state").lower())
    return found.items()
