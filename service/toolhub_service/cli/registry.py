"""`toolhub tools register|unregister|snapshot`: the catalog as operators change and see it."""

from __future__ import annotations

from typing import IO, Any

import click
from google.protobuf.json_format import ParseDict, ParseError

from toolhub.v1 import registry_service_pb2 as pb
from toolhub.v1 import tool_pb2
from toolhub_service.cli.call_completion import complete_tool
from toolhub_service.cli.connection import connected_by, connection_options
from toolhub_service.cli.output import counted, json_option, message_as_json, note, print_json, print_table, wants_json
from toolhub_service.cli.tool_document import NotATool, tools_of


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--replace", is_flag=True, help="Replace tools of the same names.")
@json_option
@connection_options
def register(file: IO[bytes], replace: bool, as_json: bool, **options: Any) -> None:
    """Register the tools of FILE (- for standard input): one definition as JSON, or a list, all or none.

    A definition is what `toolhub tools show NAME --json` prints; inputSchema and outputSchema may stand as JSON.

    \b
    Example:
      toolhub tools register crm.json --replace
    """
    try:
        specs = [ParseDict(tool, tool_pb2.ToolSpec()) for tool in tools_of(file.read())]
    except (NotATool, ParseError) as broken:
        raise click.UsageError(f"{file.name}: {broken}") from broken
    with connected_by(options) as connection:
        request = pb.RegisterToolsRequest(tools=specs, upsert=replace)
        answer = connection.registry.RegisterTools(request, timeout=connection.timeout_s, metadata=connection.metadata)
    if wants_json(as_json):
        print_json(message_as_json(answer))
        return
    for tool in answer.tools:
        click.echo(f"{tool.name} {tool.version} is registered: {tool.state_reason or state_name(tool)}")


@click.command()
@click.argument("name", shell_complete=complete_tool)
@json_option
@connection_options
def unregister(name: str, as_json: bool, **options: Any) -> None:
    """Remove the tool NAME; calls in flight finish.

    \b
    Example:
      toolhub tools unregister crm/customers.find
    """
    with connected_by(options) as connection:
        request = pb.UnregisterToolRequest(name=name)
        answer = connection.registry.UnregisterTool(request, timeout=connection.timeout_s, metadata=connection.metadata)
    if wants_json(as_json):
        print_json(message_as_json(answer))
    else:
        click.echo(f"{name} is removed")


@click.command()
@json_option
@connection_options
def snapshot(as_json: bool, **options: Any) -> None:
    """The whole catalog at this moment, tools in every state and whoever may call them: for operators.

    \b
    Example:
      toolhub tools snapshot --json > catalog.json
    """
    with connected_by(options) as connection:
        view = tool_pb2.TOOL_VIEW_FULL if wants_json(as_json) else tool_pb2.TOOL_VIEW_BASIC
        request = pb.GetSnapshotRequest(view=view)
        answer = connection.registry.GetSnapshot(request, timeout=connection.timeout_s, metadata=connection.metadata)
    if wants_json(as_json):
        print_json(message_as_json(answer))
        return
    rows = ((tool.name, tool.version, tool.source, state_told(tool)) for tool in answer.tools)
    print_table(("TOOL", "VERSION", "SOURCE", "STATE"), rows)
    note(f"{counted(answer.totals.tools, 'tool')}; revision {answer.revision}")


def state_told(tool: tool_pb2.ToolSpec) -> str:
    """Such as `active`, or `quarantined: its definition is another …`."""
    return f"{state_name(tool)}: {tool.state_reason}" if tool.state_reason else state_name(tool)


def state_name(tool: tool_pb2.ToolSpec) -> str:
    """Such as `active`."""
    return tool_pb2.ToolState.Name(tool.state).removeprefix("TOOL_STATE_").lower()
