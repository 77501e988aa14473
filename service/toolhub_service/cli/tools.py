"""`toolhub tools …`: what can be called, and how."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterable
from typing import Any

import click
import grpc

from toolhub.v1 import source_pb2, tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.cli.call_completion import complete_tool
from toolhub_service.cli.connection import Connection, connected_by, connection_options, status_of
from toolhub_service.cli.empty_answer import why_empty
from toolhub_service.cli.output import (
    counted,
    json_option,
    legible,
    message_as_json,
    note,
    print_json,
    print_pairs,
    print_prose,
    print_table,
    revealed,
    wants_json,
)
from toolhub_service.cli.registry import register, snapshot, state_name, state_told, unregister
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.search_view import first_line, found_note, print_hits

_PAGE = 1_000
_EVERY = "all"
_STATES = {
    "active": tool_pb2.TOOL_STATE_ACTIVE,
    "unavailable": tool_pb2.TOOL_STATE_UNAVAILABLE,
    "quarantined": tool_pb2.TOOL_STATE_QUARANTINED,
    "disabled": tool_pb2.TOOL_STATE_DISABLED,
}
_KINDS = [name.removeprefix("TOOL_KIND_").lower() for name in tool_pb2.ToolKind.keys()[1:]]
_FORMATS = {
    "openai": pb.EXPORT_FORMAT_OPENAI,
    "anthropic": pb.EXPORT_FORMAT_ANTHROPIC,
    "mcp": pb.EXPORT_FORMAT_MCP,
}


@click.group(cls=SuggestingGroup)
def tools() -> None:
    """List, search, show, export and register tools."""


for command in (register, unregister, snapshot):
    tools.add_command(command)


def _filter_options(command: Any) -> Any:
    for option in (
        click.option("--capability", "capabilities", multiple=True, help="Only tools with this capability."),
        click.option("--tag", "tags", multiple=True, help="Only tools with this tag."),
        click.option("--source", "sources", multiple=True, help="Only tools of this source."),
        click.option(
            "--kind",
            "kinds",
            multiple=True,
            type=click.Choice(_KINDS, case_sensitive=False),
            help="Only tools of this kind.",
        ),
    ):
        command = option(command)
    return command


@tools.command("list")
@_filter_options
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice((*_STATES, _EVERY), case_sensitive=False),
    default=("active", "unavailable"),
    show_default=True,
    help="Only tools in this state; may be given several times. Operators alone see quarantined ones.",
)
@json_option
@connection_options
def list_tools(states: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Every tool that your policy could allow.

    \b
    Examples:
      toolhub tools list
      toolhub tools list --capability 'write:*' --json
      toolhub tools list --source github --state quarantined
    """
    where = _filter(options)
    where.states.extend(_STATES[name] for name in (_STATES if _EVERY in states else states))
    with connected_by(options) as connection:
        pages = list(_pages(connection, where))
        found = [tool for page in pages for tool in page.tools]
        reason = "" if found else why_empty(connection, options["sources"])
    if reason:
        note(legible(reason), err=True)
    if wants_json(as_json):
        print_json({"tools": [message_as_json(tool) for tool in found], "totalSize": pages[0].total_size})
        return
    if found:
        all_active = all(tool.state == tool_pb2.TOOL_STATE_ACTIVE for tool in found)
        headings = ("TOOL", "NEEDS", "DESCRIPTION") if all_active else ("TOOL", "STATE", "NEEDS", "DESCRIPTION")
        print_table(headings, (_row(tool, all_active) for tool in found), is_cut=True)
    told = f"{counted(len(found), 'tool')} that your policy could allow; `toolhub tools show TOOL` tells all about one"
    note((told if found else "Your policy allows no tool that fits") + _sources_note(pages[0].sources))


@tools.command()
@click.argument("query", nargs=-1, required=True)
@click.option("--limit", default=10, show_default=True, help="Hits to show.")
@_filter_options
@json_option
@connection_options
def search(query: tuple[str, ...], limit: int, as_json: bool, **options: Any) -> None:
    """Find tools by what they do, and see why each stands where it does.

    WHY names what spoke for a tool, the weightiest first: words of the query with their share of the score and where
    they were found, words of like meaning, words of what it was used for before, its place by meaning.

    \b
    Example:
      toolhub tools search write a file
    """
    with connected_by(options) as connection:
        request = pb.SearchToolsRequest(query=" ".join(query), filter=_filter(options), page_size=limit)
        answer = connection.tools.SearchTools(request, timeout=connection.timeout_s, metadata=connection.metadata)
        reason = "" if answer.hits else why_empty(connection, options["sources"])
    if reason:
        note(legible(reason), err=True)
    if wants_json(as_json):
        print_json(message_as_json(answer))
        return
    print_hits(answer)
    note(found_note(answer) + _sources_note(answer.sources))


@tools.command()
@click.argument("name", shell_complete=complete_tool)
@json_option
@connection_options
def show(name: str, as_json: bool, **options: Any) -> None:
    """One tool: what it needs, its input and output, examples.

    \b
    Example:
      toolhub tools show core/fs.writeText
    """
    with connected_by(options) as connection:
        tool = _get(connection, name)
    if wants_json(as_json):
        print_json(message_as_json(tool))
        return
    click.secho(f"{tool.name} {tool.version}", bold=True)
    print_prose(revealed(tool.description))
    print_pairs(_facts(tool))
    for title, schema in (("Takes", tool.input_schema_json), ("Returns", tool.output_schema_json)):
        _show_schema(title, json.loads(schema or b"{}"))
    for example in tool.examples:
        note(legible(f"\n{example.title}:"))
        click.echo(legible(shlex.join(["toolhub", "call", tool.name, example.args_json.decode()])))


@tools.command()
@click.option("--format", "format_name", type=click.Choice(list(_FORMATS)), default="openai", show_default=True)
@_filter_options
@connection_options
def export(format_name: str, **options: Any) -> None:
    """Print tool definitions for a model's tool-calling interface, as JSON with the names that lead back.

    \b
    Example:
      toolhub tools export --format anthropic --tag files
    """
    with connected_by(options) as connection:
        request = pb.ExportToolsRequest(format=_FORMATS[format_name], filter=_filter(options))
        answer = connection.tools.ExportTools(request, timeout=connection.timeout_s, metadata=connection.metadata)
    print_json({"tools": json.loads(answer.tools_json), "names": dict(answer.names)})


def _filter(options: dict[str, Any]) -> tool_pb2.ToolFilter:
    kinds = [tool_pb2.ToolKind.Value(f"TOOL_KIND_{kind.upper()}") for kind in options["kinds"]]
    return tool_pb2.ToolFilter(
        capabilities=options["capabilities"], tags=options["tags"], sources=options["sources"], kinds=kinds
    )


def _get(connection: Connection, name: str) -> tool_pb2.ToolSpec:
    """Raises click.ClickException with near names when there is no such tool."""
    try:
        request = pb.GetToolRequest(name=name)
        return connection.tools.GetTool(request, timeout=connection.timeout_s, metadata=connection.metadata).tool
    except grpc.RpcError as error:
        if status_of(error)[0] is not grpc.StatusCode.NOT_FOUND:
            raise
    known = [tool.name for page in _pages(connection, tool_pb2.ToolFilter()) for tool in page.tools]
    near = difflib.get_close_matches(name, known, n=3)
    advice = f"Did you mean {', '.join(near)}?" if near else "`toolhub tools search` finds one by what it does."
    raise click.ClickException(f"There is no tool named {name!r} that you could call. {advice}")


def _pages(connection: Connection, where: tool_pb2.ToolFilter) -> Iterable[pb.ListToolsResponse]:
    token = ""
    while True:
        request = pb.ListToolsRequest(filter=where, page_size=_PAGE, page_token=token)
        page = connection.tools.ListTools(request, timeout=connection.timeout_s, metadata=connection.metadata)
        yield page
        token = page.next_page_token
        if not token:
            return


def _row(tool: tool_pb2.ToolSpec, all_active: bool) -> tuple[str, ...]:
    needs, does = ", ".join(tool.capabilities) or "nothing", first_line(tool.description)
    if all_active:
        return tool.name, needs, does
    return tool.name, state_name(tool), needs, revealed(tool.state_reason) or does


def _facts(tool: tool_pb2.ToolSpec) -> Iterable[tuple[str, str]]:
    yield "needs", ", ".join(tool.capabilities) or "nothing"
    hints = [field.name for field, value in tool.annotations.ListFields() if value]
    yield "hints", ", ".join(hints) or "none"
    yield "timeout", f"{tool.default_limits.timeout.ToMilliseconds() / 1_000:g} s"
    yield "digest", tool.digest
    if tool.state_reason or tool.state != tool_pb2.TOOL_STATE_ACTIVE:
        yield "state", revealed(state_told(tool))


def _show_schema(title: str, schema: dict[str, Any]) -> None:
    """Fields of an object, the required ones marked by a star."""
    required = set(schema.get("required", ()))
    note(f"\n{title}:" if schema.get("properties") else f"\n{title}: anything")
    if not schema.get("properties"):
        return
    rows = []
    for name, said in schema["properties"].items():
        declared = said if isinstance(said, dict) else {}  # `true` is a schema, too
        branches = (str(b.get("type", "?")) for b in declared.get("anyOf", ()) if isinstance(b, dict))
        kind = declared.get("type") or " | ".join(branches) or "any"
        default = "" if "default" not in declared else json.dumps(declared["default"])
        star = "*" if name in required else ""
        rows.append((f"  {revealed(name)}{star}", str(kind), default, revealed(str(declared.get("description", "")))))
    print_table(("  FIELD", "TYPE", "DEFAULT", "MEANING"), rows)


def _sources_note(sources: Iterable[source_pb2.SourceStatus]) -> str:
    told = [f"{source.source}: {revealed(source.message)}" for source in sources if source.message]
    return "" if not told else " · " + "; ".join(told)
