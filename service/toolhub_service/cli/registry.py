"""`toolhub tools register|unregister|snapshot`: commands of operators on the catalog."""

from __future__ import annotations

import base64
import json
from typing import IO, Any

import click
from google.protobuf.json_format import ParseDict, ParseError

from toolhub.v1 import registry_service_pb2 as pb
from toolhub.v1 import tool_pb2
from toolhub_service.cli.client import connected_by, connection_options
from toolhub_service.cli.completion import complete_tool
from toolhub_service.cli.output import counted, json_option, message_as_json, note, print_json, print_table, wants_json

# In the file the schemas and examples are JSON; on the wire they are bytes, in canonical JSON base64.

_SCHEMAS = ("inputSchema", "outputSchema")
_COMPUTED = ("digest", "state", "stateReason")
"""`tools show` prints these; the hub computes them itself."""


class NotATool(ValueError):
    """The document is not a list of tool definitions; the message says why."""


def tools_of(data: bytes) -> list[dict[str, Any]]:
    """Definitions in the canonical JSON of ToolSpec. Raises NotATool."""
    try:
        document = json.loads(data)
    except ValueError as broken:
        raise NotATool(f"the file is not JSON: {broken}") from broken
    if isinstance(document, dict) and isinstance(document.get("tools"), list):
        document = document["tools"]
    tools = document if isinstance(document, list) else [document]
    if not tools or not all(isinstance(tool, dict) and isinstance(tool.get("name"), str) for tool in tools):
        raise NotATool("the file must hold one tool definition or a list of them, each an object with a `name`")
    return [_on_the_wire(tool) for tool in tools]


def _on_the_wire(tool: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in tool.items() if key not in _COMPUTED}
    for name in _SCHEMAS:
        if name in plain:
            plain[f"{name}Json"] = _bytes(plain.pop(name))
    plain["examples"] = [_example(example) for example in plain.get("examples", ())]
    return plain


def _example(example: Any) -> Any:
    if not isinstance(example, dict) or "args" not in example:
        return example
    return {key: value for key, value in example.items() if key != "args"} | {"argsJson": _bytes(example["args"])}


def _bytes(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--replace", is_flag=True, help="Replace registered tools of the same names.")
@json_option
@connection_options
def register(file: IO[bytes], replace: bool, as_json: bool, **options: Any) -> None:
    """Register the tools in FILE (- for standard input): one JSON definition or a list; all of them or none.

    A definition is what `toolhub tools show NAME --json` prints. inputSchema and outputSchema may be JSON objects.

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
    """Remove the tool NAME. Running calls finish.

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
    """Show the whole catalog: tools in every state, whoever may call them. For operators.

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
    rows = ((tool.name, tool.version, tool.source, state_text(tool)) for tool in answer.tools)
    print_table(("TOOL", "VERSION", "SOURCE", "STATE"), rows)
    note(f"{counted(answer.totals.tools, 'tool')}; revision {answer.revision}")


def state_text(tool: tool_pb2.ToolSpec) -> str:
    """Such as `active`, or `quarantined: its definition is another …`."""
    return f"{state_name(tool)}: {tool.state_reason}" if tool.state_reason else state_name(tool)


def state_name(tool: tool_pb2.ToolSpec) -> str:
    """Such as `active`."""
    return tool_pb2.ToolState.Name(tool.state).removeprefix("TOOL_STATE_").lower()
