"""`toolhub tools register|unregister|snapshot`: commands of operators on the catalog."""

from __future__ import annotations

import base64
import difflib
import json
from typing import IO, Any

import click
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message_factory import GetMessageClass

from toolhub.v1 import registry_service_pb2 as pb
from toolhub.v1 import tool_pb2
from toolhub_service.cli.completion import complete_tool
from toolhub_service.cli.connection.client import connect_by_options, connection_options
from toolhub_service.cli.terminal.output import (
    count_text,
    enum_name,
    footnote,
    json_option,
    print_answer,
    print_line,
    print_table,
    text_option,
    wants_json,
)

# In the file the schemas and examples are JSON; on the wire they are bytes, in canonical JSON base64.

_SCHEMAS = ("inputSchema", "outputSchema")
# `tools show` prints these; the hub computes them itself.
_COMPUTED = ("digest", "state", "stateReason")
_FIELD_NAMES = {"inputSchemaJson": "inputSchema", "outputSchemaJson": "outputSchema", "argsJson": "args"}
_JSON_TYPES = {
    FieldDescriptor.TYPE_STRING: ("a string", '"1.0.0"'),
    FieldDescriptor.TYPE_BOOL: ("true or false", "true"),
    FieldDescriptor.TYPE_BYTES: ("a base64 string", '"e30="'),
}
_SHOWN_CHARS = 60


class NotATool(ValueError):
    """The document is not a list of tool definitions; the message says why."""


def tools_of(data: bytes) -> list[dict[str, Any]]:
    """Return definitions in the canonical JSON of ToolSpec. Raises NotATool."""
    try:
        document = json.loads(data)
    except ValueError as broken:
        raise NotATool(f"the file is not JSON: {broken}") from broken
    if isinstance(document, dict) and isinstance(document.get("tools"), list):
        # The shape of `toolhub tools list -o json`.
        document = document["tools"]
    tools = document if isinstance(document, list) else [document]
    if not tools or not all(isinstance(tool, dict) and isinstance(tool.get("name"), str) for tool in tools):
        raise NotATool("the file must hold one tool definition or a list of them, each an object with a `name`")
    return [_on_the_wire(tool) for tool in tools]


def _on_the_wire(tool: dict[str, Any]) -> dict[str, Any]:
    # So that the output of `tools show` can be registered unchanged.
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


def specs_of(data: bytes) -> list[tool_pb2.ToolSpec]:
    """Return the tool definitions of a file. Raises NotATool, which names the field, its type, and an example."""
    specs = []
    for tool in tools_of(data):
        try:
            specs.append(ParseDict(tool, tool_pb2.ToolSpec()))
        except ParseError as broken:
            # protobuf's own message names neither the path nor the expected type.
            fault = _fault(tool, tool_pb2.ToolSpec.DESCRIPTOR, "")
            raise NotATool(f"{tool['name']}: {fault or broken}") from broken
    return specs


def _fault(given: dict[str, Any], message: Descriptor, path: str) -> str:
    """Return the first invalid field: its path, its expected type, and an example; empty when all are valid."""
    known = {spelling: field for field in message.fields for spelling in (field.json_name, field.name)}
    for key, value in given.items():
        field = known.get(key)
        if field is None:
            names = [_FIELD_NAMES.get(field.json_name, field.json_name) for field in message.fields]
            near = difflib.get_close_matches(key, names, n=1)
            advice = f"did you mean `{near[0]}`?" if near else f"known fields: {', '.join(names)}"
            return f"unknown field `{path}{key}`; {advice}"
        try:
            # Field by field: the first that fails alone is the invalid one.
            ParseDict({key: value}, GetMessageClass(message)())
        except ParseError:
            members = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
            inside = field.message_type if field.message_type and field.message_type.file == message.file else None
            for member in members:
                if inside and isinstance(member, dict) and (fault := _fault(member, inside, f"{path}{key}.")):
                    return fault
            shown = json.dumps(value, ensure_ascii=False)
            shown = shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"
            expected, example = _describe_field(field)
            return f'`{path}{key}` must be {expected}, not {shown}. Example: "{key}": {example}'
    return ""


def _describe_field(field: FieldDescriptor) -> tuple[str, str]:
    """Return (what a field must be, an example of it), in terms of JSON."""
    if field.enum_type:
        names = [value.name for value in field.enum_type.values[1:]]
        return f"one of {', '.join(names)}", f'"{names[0]}"'
    if field.message_type and field.message_type.full_name == "google.protobuf.Duration":
        return "a duration in seconds", '"30s"'
    words, example = ("an object", "{}") if field.message_type else _JSON_TYPES.get(field.type, ("a number", "1"))
    return (f"a list, each entry {words}", f"[{example}]") if field.is_repeated else (words, example)


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--replace", is_flag=True, help="Replace registered tools of the same names.")
@json_option
@connection_options
def register(file: IO[bytes], replace: bool, as_json: bool, **options: Any) -> None:
    """Register the tools in FILE (- for standard input): one JSON definition or a list; all of them or none.

    A definition is what `toolhub tools show NAME -o json` prints. inputSchema and outputSchema may be JSON objects. The
    tool belongs to the configured source that begins its name.

    \b
    A definition:
      {"name": "crm/customers.find", "version": "1.0.0", "kind": "TOOL_KIND_MCP",
       "source": "crm", "description": "Find a customer.",
       "inputSchema": {"type": "object", "properties": {"id": {"type": "integer"}}}}

    \b
    Example:
      toolhub tools register crm.json --replace
    """
    try:
        specs = specs_of(file.read())
    except NotATool as broken:
        raise click.UsageError(f"{file.name}: {broken}") from broken
    with connect_by_options(options) as connection:
        request = pb.RegisterToolsRequest(tools=specs, upsert=replace)
        print_answer(connection.call(connection.registry.RegisterTools, request), as_json, _show_registered)


def _show_registered(answer: pb.RegisterToolsResponse) -> None:
    for tool in answer.tools:
        print_line(f"{tool.name} {tool.version} is registered: {tool.state_reason or state_name(tool)}")


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
    with connect_by_options(options) as connection:
        request = pb.UnregisterToolRequest(name=name)
        answer = connection.call(connection.registry.UnregisterTool, request)
    print_answer(answer, as_json, lambda _: print_line(f"{name} is removed"))


@click.command()
@text_option
@connection_options
def snapshot(as_json: bool, **options: Any) -> None:
    """Show the whole catalog: tools in every state, whoever may call them. For operators.

    \b
    Example:
      toolhub tools snapshot -o json > catalog.json
    """
    with connect_by_options(options) as connection:
        view = tool_pb2.TOOL_VIEW_FULL if wants_json(as_json) else tool_pb2.TOOL_VIEW_BASIC
        request = pb.GetSnapshotRequest(view=view)
        whole = pb.GetSnapshotResponse()
        for page in connection.pages(connection.registry.GetSnapshot, request):
            tools = [*whole.tools, *page.tools]
            # The last page's own values apply (its revision, its totals), with the tools of all.
            whole = page
            del whole.tools[:]
            whole.tools.extend(tools)
    print_answer(whole, as_json, _show_snapshot)


def _show_snapshot(answer: pb.GetSnapshotResponse) -> None:
    rows = ((tool.name, tool.version, tool.source, state_text(tool)) for tool in answer.tools)
    print_table(("TOOL", "VERSION", "SOURCE", "STATE"), rows)
    footnote(f"{count_text(answer.totals.tools, 'tool')}; revision {answer.revision}")


def state_text(tool: tool_pb2.ToolSpec) -> str:
    """Return a text such as `active`, or `quarantined: its definition is another …`."""
    return f"{state_name(tool)}: {tool.state_reason}" if tool.state_reason else state_name(tool)


def state_name(tool: tool_pb2.ToolSpec) -> str:
    """Return a text such as `active`."""
    return enum_name(tool, "state").lower()
