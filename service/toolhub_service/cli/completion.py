"""`toolhub completion SHELL`, and the names and ids that a shell completes by asking the hub.

Somebody waits at a prompt: the hub has one second, and nothing is completed when it does not answer.
Nothing heavy is imported before a completion is asked for: every command imports this module.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

if TYPE_CHECKING:
    from toolhub_service.cli.client import Connection

_TIMEOUT_S = 1.0
_ITEMS_MAX = 200
_PAGE = 1_000


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands, options, names and ids.

    \b
    For this session, and for every one:
      eval "$(toolhub completion bash)"
      toolhub completion bash > ~/.local/share/bash-completion/completions/toolhub
      toolhub completion zsh > "${fpath[1]}/_toolhub"
      toolhub completion fish > ~/.config/fish/completions/toolhub.fish
    """
    script = get_completion_class(shell)
    if script is None:
        raise click.ClickException(f"click has no completion for {shell}")
    click.echo(script(context.find_root().command, {}, "toolhub", "_TOOLHUB_COMPLETE").source())


def complete_tool(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tools that the caller may list, each with the first sentence of its description."""
    from toolhub.v1 import tool_service_pb2 as pb
    from toolhub_service.cli.output import first_line

    found: list[CompletionItem] = []
    with suppress(click.ClickException), _connection(context) as connection:
        request = pb.ListToolsRequest(page_size=_PAGE)
        while True:
            page = connection.tools.ListTools(request, timeout=_TIMEOUT_S, metadata=connection.metadata)
            found += _starting(incomplete, ((tool.name, first_line(tool.description)) for tool in page.tools))
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
    return found


def complete_approval(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Pending approvals, each with its principal and tool."""
    from toolhub.v1 import approval_pb2
    from toolhub.v1 import approval_service_pb2 as pb
    from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub

    with suppress(click.ClickException), _connection(context) as connection:
        request = pb.ListApprovalsRequest(states=[approval_pb2.APPROVAL_STATE_PENDING], page_size=_ITEMS_MAX)
        stub = ApprovalServiceStub(connection.channel)
        found = stub.ListApprovals(request, timeout=_TIMEOUT_S, metadata=connection.metadata).approvals
        return _starting(incomplete, ((each.approval_id, f"{each.principal} {each.tool}") for each in found))
    return []


def complete_job(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest jobs, each with its tool and state."""
    from toolhub.v1 import job_service_pb2 as pb
    from toolhub.v1 import job_state_pb2
    from toolhub.v1.job_service_pb2_grpc import JobServiceStub

    with suppress(click.ClickException), _connection(context) as connection:
        request = pb.ListJobsRequest(page_size=_ITEMS_MAX)
        stub = JobServiceStub(connection.channel)
        found = stub.ListJobs(request, timeout=_TIMEOUT_S, metadata=connection.metadata).jobs
        states = job_state_pb2.JobState.Name
        return _starting(
            incomplete, ((job.job_id, f"{job.tool} {_word(states(job.status.state), 'JOB_STATE_')}") for job in found)
        )
    return []


def complete_source(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Sources of the running hub, each with its state."""
    from toolhub.v1 import registry_service_pb2 as pb
    from toolhub.v1 import source_pb2

    with suppress(click.ClickException), _connection(context) as connection:
        request = pb.ListSourcesRequest()
        found = connection.registry.ListSources(request, timeout=_TIMEOUT_S, metadata=connection.metadata).sources
        states = source_pb2.SourceState.Name
        return _starting(
            incomplete, ((status.source, _word(states(status.state), "SOURCE_STATE_")) for status in found)
        )
    return []


def complete_pinned(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tools with pins, each with the pin's state; those that wait for a decision first."""
    from toolhub.v1 import pin_pb2
    from toolhub.v1 import registry_service_pb2 as pb

    with suppress(click.ClickException), _connection(context) as connection:
        found: dict[str, str] = {}
        for states in ([pin_pb2.PIN_STATE_PENDING], []):
            request = pb.ListPinsRequest(page_size=_ITEMS_MAX, states=states)
            pins = connection.registry.ListPins(request, timeout=_TIMEOUT_S, metadata=connection.metadata).pins
            for pin in pins:
                found.setdefault(pin.tool, _word(pin_pb2.PinState.Name(pin.state), "PIN_STATE_"))
        return _starting(incomplete, found.items())
    return []


@contextmanager
def _connection(context: click.Context) -> Iterator[Connection]:
    """To the hub that the typed options name. Raises click.ClickException when it does not answer."""
    from toolhub_service.cli.client import DEFAULT_ADDRESS, connected

    def option(name: str, variable: str) -> str:
        # click resolves no environment variables while it completes.
        return str(context.params.get(name) or os.environ.get(variable, ""))

    address = option("address", "TOOLHUB_ADDRESS") or DEFAULT_ADDRESS
    api_key = option("api_key", "TOOLHUB_API_KEY")
    with connected(address, api_key, context.params.get("ca_file"), _TIMEOUT_S) as connection:
        yield connection


def _starting(incomplete: str, items: Iterable[tuple[str, str]]) -> list[CompletionItem]:
    return [CompletionItem(value, help=about) for value, about in items if value.startswith(incomplete)]


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()
