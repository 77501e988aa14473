"""`toolhub tools …`: list, search, show and export tools."""

from __future__ import annotations

import difflib
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click
import grpc

from toolhub.v1 import registry_service_pb2, source_pb2, tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.cli.completion import complete_source, complete_tag, complete_tool
from toolhub_service.cli.connection.client import (
    PAGE_MAX,
    Connection,
    HubRefused,
    connect_by_options,
    connection_options,
    status_of,
)
from toolhub_service.cli.registry import register, snapshot, state_name, state_text, unregister
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import (
    EXIT_REFUSED,
    count_text,
    first_line,
    footnote,
    json_option,
    message_as_json,
    note,
    print_answer,
    print_json,
    print_line,
    print_pairs,
    print_prose,
    print_table,
    print_text,
    style,
    text_option,
    wants_json,
)


def _knows_sources(connection: Connection, sources: Sequence[str], *, is_empty: bool) -> bool:
    """Return whether every source of the filter exists, as far as the caller may list sources. Prints why not."""
    if not sources:
        return True
    try:
        answer = connection.call(connection.registry.ListSources, registry_service_pb2.ListSourcesRequest())
    except grpc.RpcError:
        return True  # not worth an error: the list itself was answered
    known = {status.source: status for status in answer.sources}
    asked = sources if is_empty else [name for name in sources if name not in known]
    if asked:
        note("; ".join(_missing_tools(asked, known)), err=True)
    return all(name in known for name in sources)


def _missing_tools(sources: Sequence[str], known: dict[str, source_pb2.SourceStatus]) -> Iterator[str]:
    for name in sources:
        status = known.get(name)
        if status is None:
            yield f"There is no source {name!r}. Sources of this hub: {', '.join(known)}"
        elif status.tools:
            quarantined = f", {status.quarantined} of them quarantined" if status.quarantined else ""
            tools = count_text(status.tools, "tool")
            yield f"{name} has {tools}{quarantined}; none matches and is allowed by your policy"
        else:
            yield f"{name} has no tools"


_REASONS_MAX = 4
# Minimal similarity of a suggestion (difflib): names of one family share so much that less fits them all.
_NEAR = 0.8
# Shown of each hit; --json prints all.
_WHY_MAX_CHARS = 56


def print_hits(answer: pb.SearchToolsResponse) -> None:
    """Print one line for each hit, best first."""
    rows = [(f"{hit.score:.2f}", hit.tool.name, why(hit), first_line(hit.tool.description)) for hit in answer.hits]
    if rows:
        print_table(("SCORE", "TOOL", "WHY", "DESCRIPTION"), rows, is_cut=True)
    footnote(summary_of_search(answer), *_sources_notes(answer.sources))


def summary_of_search(answer: pb.SearchToolsResponse) -> str:
    """Return how many tools matched, and by which signals they are ranked."""
    if not answer.hits:
        return "No tool matches. `toolhub tools list` shows all tools."
    text = f"{len(answer.hits)} of {answer.total_size} matching tools, best first"
    if len(answer.ranked_by) > 1:
        text += f", by {', '.join(answer.ranked_by)}"
    return f"{text} · {answer.note}" if answer.note else text


def why(hit: pb.SearchHit) -> str:
    """Return a text such as `file 3.1 (name, description), read 2.0 (name), meaning #2`: the strongest reasons that
    fit."""
    shown = ""
    for reason in hit.reasons[:_REASONS_MAX]:
        more = f"{shown}, {_reason(reason)}" if shown else _reason(reason)
        if shown and len(more) > _WHY_MAX_CHARS:
            return f"{shown}, …"
        shown = more
    return shown or ", ".join(hit.matched_terms[:_REASONS_MAX])


def _reason(reason: pb.SearchReason) -> str:
    if reason.part == "meaning":
        return f"meaning #{reason.rank}"
    word = reason.word
    if reason.part == "related" and reason.found and reason.found != reason.word:
        word = f"{reason.word} ~ {reason.found}"
    return f"{word} {reason.score:.1f} ({', '.join(reason.fields) or reason.part})"


_EVERY = "all"
_STATES = {
    "active": tool_pb2.TOOL_STATE_ACTIVE,
    "unavailable": tool_pb2.TOOL_STATE_UNAVAILABLE,
    "quarantined": tool_pb2.TOOL_STATE_QUARANTINED,
    "disabled": tool_pb2.TOOL_STATE_DISABLED,
}
# `app/kinds.py` is not used: importing the adapters would double the start time of these commands.
_KINDS = [name.removeprefix("TOOL_KIND_").lower() for name in tool_pb2.ToolKind.keys()[1:]]
_FORMATS = {
    name.removeprefix("EXPORT_FORMAT_").removesuffix("_STUBS").lower(): number
    for name, number in pb.ExportFormat.items()[1:]
}


@click.group(cls=SuggestingGroup)
def tools() -> None:
    """List, search, show, export and register tools."""


for command in (register, unregister, snapshot):
    tools.add_command(command)


def _filter_options(command: Any) -> Any:
    for option in (
        click.option(
            "--capability",
            "capabilities",
            multiple=True,
            help="Only tools that need this capability, such as write:fs or 'write:*'; repeatable.",
        ),
        click.option(
            "--tag", "tags", multiple=True, shell_complete=complete_tag, help="Only tools with this tag; repeatable."
        ),
        click.option(
            "--source",
            "sources",
            multiple=True,
            shell_complete=complete_source,
            help="Only tools of this source; repeatable.",
        ),
        click.option(
            "--kind",
            "kinds",
            multiple=True,
            type=click.Choice(_KINDS, case_sensitive=False),
            help="Only tools of this kind; repeatable.",
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
    help="Only tools in this state; repeatable. Only operators see quarantined tools.",
)
@text_option
@connection_options
def list_tools(states: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """List the tools that your policy allows you to call.

    \b
    Examples:
      toolhub tools list
      toolhub tools list --capability 'write:*' -o json
      toolhub tools list --source github --state quarantined
    """
    where = _filter(options)
    where.states.extend(_STATES[name] for name in (_STATES if _EVERY in states else states))
    with connect_by_options(options) as connection:
        pages = _pages(connection, where)
        found = [tool for page in pages for tool in page.tools]
        is_known = _knows_sources(connection, options["sources"], is_empty=not found)
    _print_tools(found, pages[0], as_json)
    if not is_known:
        sys.exit(EXIT_REFUSED)


def _print_tools(found: Sequence[tool_pb2.ToolSpec], first: pb.ListToolsResponse, as_json: bool) -> None:
    if wants_json(as_json):
        denied = {"deniedSize": first.denied_size} if first.HasField("denied_size") else {}
        print_json({"tools": [message_as_json(tool) for tool in found], "totalSize": first.total_size, **denied})
        return
    text = "No tool allowed by your policy matches."
    if found:
        all_active = all(tool.state == tool_pb2.TOOL_STATE_ACTIVE for tool in found)
        headings = ("TOOL", "NEEDS", "DESCRIPTION") if all_active else ("TOOL", "STATE", "NEEDS", "DESCRIPTION")
        print_table(headings, (_row(tool, all_active) for tool in found), is_cut=True)
        text = f"{count_text(len(found), 'tool')} allowed by your policy. `toolhub tools show TOOL` shows one in full."
    if first.denied_size:
        text += f" `toolhub tools snapshot` also shows operators the {count_text(first.denied_size, 'tool')} denied."
    footnote(text, *_sources_notes(first.sources))


@tools.command()
@click.argument("query", nargs=-1, required=True)
@click.option("--limit", default=10, show_default=True, help="Maximum number of tools to show.")
@_filter_options
@text_option
@connection_options
def search(query: tuple[str, ...], limit: int, as_json: bool, **options: Any) -> None:
    """Find tools by what they do, and see why each was found.

    The column WHY lists the reasons for a tool's rank, strongest first: words of the query with their score and the
    fields they occur in, related words, words of earlier calls, and its rank by meaning (embeddings).

    \b
    Example:
      toolhub tools search write a file
    """
    with connect_by_options(options) as connection:
        request = pb.SearchToolsRequest(query=" ".join(query), filter=_filter(options), page_size=limit)
        answer = _hits(connection, request)
        is_known = _knows_sources(connection, options["sources"], is_empty=not answer.hits)
    print_answer(answer, as_json, print_hits)
    if not is_known:
        sys.exit(EXIT_REFUSED)


@tools.command()
@click.argument("name", shell_complete=complete_tool)
@json_option
@connection_options
def show(name: str, as_json: bool, **options: Any) -> None:
    """Show one tool: the capabilities it needs, input, output and examples.

    \b
    Example:
      toolhub tools show core/fs.writeText
    """
    with connect_by_options(options) as connection:
        tool = _get(connection, name)
    print_answer(tool, as_json, _show_tool)


def _show_tool(tool: tool_pb2.ToolSpec) -> None:
    print_line(style(f"{tool.name} {tool.version}", bold=True))
    print_prose(tool.description)
    print_pairs(_facts(tool))
    for title, schema in (("Takes", tool.input_schema_json), ("Returns", tool.output_schema_json)):
        _show_schema(title, json.loads(schema or b"{}"))
    for example in tool.examples:
        note(f"\n{example.title}:")
        print_line(shlex.join(["toolhub", "call", tool.name, example.args_json.decode()]))


@tools.command()
@click.option(
    "--format",
    "format_name",
    type=click.Choice(list(_FORMATS)),
    default="openai",
    show_default=True,
    help="API that the definitions are for, or language of the stubs for programs.",
)
@_filter_options
@connection_options
def export(format_name: str, **options: Any) -> None:
    """Print tool definitions as JSON for a model's tool-calling API, with the mapping back; python, typescript: stubs.

    \b
    Example:
      toolhub tools export --format anthropic --tag files
    """
    with connect_by_options(options) as connection:
        request = pb.ExportToolsRequest(format=_FORMATS[format_name], filter=_filter(options))
        pages = list(connection.pages(connection.tools.ExportTools, request))
    if format_name in ("python", "typescript"):
        print_text("".join(page.text for page in pages), nl=False)
        return
    tools = [tool for page in pages for tool in json.loads(page.tools_json)]
    print_json({"tools": tools, "names": {short: name for page in pages for short, name in page.names.items()}})


def _filter(options: dict[str, Any]) -> tool_pb2.ToolFilter:
    kinds = [tool_pb2.ToolKind.Value(f"TOOL_KIND_{kind.upper()}") for kind in options["kinds"]]
    return tool_pb2.ToolFilter(
        capabilities=options["capabilities"], tags=options["tags"], sources=options["sources"], kinds=kinds
    )


def _get(connection: Connection, name: str) -> tool_pb2.ToolSpec:
    """Return the tool. Raises HubRefused, which says whether no tool has that name or the policy hides it."""
    try:
        request = pb.GetToolRequest(name=name)
        return connection.call(connection.tools.GetTool, request).tool
    except grpc.RpcError as error:
        if status_of(error)[0] is not grpc.StatusCode.NOT_FOUND:
            raise
    hidden = _find_hidden(connection, name)
    if hidden is not None:
        needs = ", ".join(hidden.capabilities) or "no capability"
        raise HubRefused(f"Your policy does not allow {name}, which needs {needs}. {_to_allow(connection, hidden)}")
    known = [tool.name for page in _pages(connection, tool_pb2.ToolFilter()) for tool in page.tools]
    near = difflib.get_close_matches(name, known, n=3, cutoff=_NEAR)
    advice = f"Did you mean {', '.join(near)}?" if near else "`toolhub tools search WORDS` finds tools by what they do."
    raise HubRefused(f"There is no tool named {name!r} that you could call. {advice}")


def _to_allow(connection: Connection, hidden: tool_pb2.ToolSpec) -> str:
    """Return how to see or grant what is missing: `policy explain` knows the tools of the hub's machine, not of
    sources."""
    from toolhub_service.policy.suggested_lines import grant_command

    principal = connection.call(connection.tools.GetServerInfo, pb.GetServerInfoRequest()).principal
    if hidden.kind == tool_pb2.TOOL_KIND_CORE:
        who = "" if principal == "local" else f" --principal {shlex.quote(principal)}"
        return f"To see what is missing: toolhub policy explain{who} --tool {hidden.name} --args '{{}}'"
    command = grant_command(principal, hidden.capabilities)
    return f"Unless a rule denies it, this allows it, on the hub's machine: {command}"


def _find_hidden(connection: Connection, name: str) -> tool_pb2.ToolSpec | None:
    """Return the tool that the policy hides; None if there is none, or the caller is no operator."""
    try:
        request = registry_service_pb2.GetSnapshotRequest(view=tool_pb2.TOOL_VIEW_BASIC)
        pages = list(connection.pages(connection.registry.GetSnapshot, request))
    except grpc.RpcError:
        return None
    return next((tool for page in pages for tool in page.tools if tool.name == name), None)


def _hits(connection: Connection, request: pb.SearchToolsRequest) -> pb.SearchToolsResponse:
    """Return as many hits as requested, from as many pages as it takes."""
    whole = pb.SearchToolsResponse()
    for page in connection.pages(connection.tools.SearchTools, request):
        hits = [*whole.hits, *page.hits][: request.page_size or None]
        whole = page
        del whole.hits[:]
        whole.hits.extend(hits)
        if len(hits) >= request.page_size:
            break
    return whole


def _pages(connection: Connection, where: tool_pb2.ToolFilter) -> list[pb.ListToolsResponse]:
    return list(connection.pages(connection.tools.ListTools, pb.ListToolsRequest(filter=where, page_size=PAGE_MAX)))


def _row(tool: tool_pb2.ToolSpec, all_active: bool) -> tuple[str, ...]:
    needs, does = ", ".join(tool.capabilities) or "nothing", first_line(tool.description)
    if all_active:
        return tool.name, needs, does
    return tool.name, state_name(tool), needs, tool.state_reason or does


def _facts(tool: tool_pb2.ToolSpec) -> Iterable[tuple[str, str]]:
    yield "needs", ", ".join(tool.capabilities) or "nothing"
    hints = [field.name for field, value in tool.annotations.ListFields() if value]
    yield "hints", ", ".join(hints) or "none"
    yield "timeout", f"{tool.default_limits.timeout.ToMilliseconds() / 1_000:g} s"
    yield "digest", tool.digest
    if tool.state_reason or tool.state != tool_pb2.TOOL_STATE_ACTIVE:
        yield "state", state_text(tool)


def _show_schema(title: str, schema: dict[str, Any]) -> None:
    """Print the fields of an object; a star marks the required ones."""
    required = set(schema.get("required", ()))
    note(f"\n{title}:" if schema.get("properties") else f"\n{title}: anything")
    if not schema.get("properties"):
        return
    rows = []
    for name, field in schema["properties"].items():
        declared = field if isinstance(field, dict) else {}  # `true` is also a schema
        branches = (str(b.get("type", "?")) for b in declared.get("anyOf", ()) if isinstance(b, dict))
        kind = declared.get("type") or " | ".join(branches) or "any"
        default = "" if "default" not in declared else json.dumps(declared["default"])
        star = "*" if name in required else ""
        rows.append((f"  {name}{star}", str(kind), default, str(declared.get("description", ""))))
    print_table(("  FIELD", "TYPE", "DEFAULT", "MEANING"), rows)


def _sources_notes(sources: Iterable[source_pb2.SourceStatus]) -> list[str]:
    return [f"{source.source}: {source.message}" for source in sources if source.message]
