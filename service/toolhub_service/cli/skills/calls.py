"""`toolhub skills list` and `run`: the skills of a hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from toolhub_service.cli.call import call, request_options
from toolhub_service.cli.completion import complete_skill
from toolhub_service.cli.connection.client import connect_by_options, connection_options
from toolhub_service.cli.terminal.output import (
    count_text,
    enum_name,
    first_line,
    footnote,
    json_option,
    print_json,
    print_table,
    text_option,
    wants_json,
)

if TYPE_CHECKING:
    from toolhub.v1.tool_pb2 import ToolSpec
    from toolhub_service.cli.connection.client import Connection

_READ = ".read"


@click.command("list")
@text_option
@connection_options
def list_skills(as_json: bool, **options: Any) -> None:
    """List the skills that your policy allows you to use, with their problems.

    \b
    Examples:
      toolhub skills list
      toolhub skills list -o json | jq -r '.skills[].name'
    """
    with connect_by_options(options) as connection:
        found, denied = _skills(connection)
        remarks = _remarks(connection)
    if wants_json(as_json):
        print_json({"skills": list(found.values()), "deniedTools": denied, "remarks": remarks})
        return
    rows = [
        (each["name"], each["run"] or "–", each["state"], first_line(each["description"])) for each in found.values()
    ]
    if rows:
        print_table(("SKILL", "RUNS AS", "STATE", "DESCRIPTION"), rows, is_cut=True)
        footnote("`toolhub skills run NAME` runs or reads one; `toolhub skills show NAME` shows its files.")
        if any(each["state"] == "QUARANTINED" for each in found.values()):
            footnote(
                "QUARANTINED: new or changed. An operator reviews it: `toolhub pins list`, `toolhub pins accept TOOL`."
            )
    else:
        footnote(_none_found(denied))
    for remark in remarks:
        footnote(f"! {remark}")


@click.command()
@click.argument("name", shell_complete=complete_skill)
@click.argument("arguments", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Show what each step would do; change nothing.")
@click.option(
    "--idempotency-key",
    default="",
    help="A second call with the same key returns the first result and has no second effect.",
)
@request_options("called by hand")
@json_option
@connection_options
@click.pass_context
def run(context: click.Context, /, name: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Run the skill NAME with ARGUMENTS: by calling its tool. Of a skill without a sidecar the text is printed.

    NAME is the skill's name, or its tool's if several sources have a skill of that name. ARGUMENTS are those of
    `toolhub call`: a JSON object, @file, - for standard input, or key=value pairs.

    \b
    Examples:
      toolhub skills run word-count text='how many words are these'
      toolhub skills run pdf-forms resource=references/fields.md
    """
    with connect_by_options(options) as connection:
        tool = _tool_of(*_skills(connection), name)
    context.invoke(call, tool=tool, arguments=arguments, **options)


def _none_found(denied: int) -> str:
    if not denied:
        return "The hub has no skills. `toolhub skills add --help` shows how to add some."
    count = count_text(denied, "tool")
    return (
        f"Your policy denies you all skills ({count}). An operator grants the capability of their source in "
        "policy.yaml; `toolhub policy explain --tool NAME` prints the line."
    )


def _tool_of(found: Mapping[str, Mapping[str, str]], denied: int, name: str) -> str:
    """Return the tool to call."""
    if "/" in name:
        return name
    named = [each for each in found.values() if each["name"].partition("/")[2] == name]
    if len(named) > 1:
        raise click.ClickException(
            f"Several sources have a skill {name!r}: {', '.join(each['name'] for each in named)}"
        )
    if not named:
        known = ", ".join(each["name"].partition("/")[2] for each in found.values())
        skills = f"Skills: {known}" if known else _none_found(denied)
        raise click.ClickException(f"There is no skill {name!r} that you may use. {skills}")
    return named[0]["run"] or named[0]["read"]


def _skills(connection: Connection) -> tuple[dict[str, dict[str, str]], int]:
    """Return by full name the tools that read and run it, state and description; and how many tools policy denies."""
    from toolhub.v1 import tool_pb2
    from toolhub.v1 import tool_service_pb2 as pb
    from toolhub_service.cli.connection.client import PAGE_MAX

    states = (tool_pb2.TOOL_STATE_ACTIVE, tool_pb2.TOOL_STATE_UNAVAILABLE, tool_pb2.TOOL_STATE_QUARANTINED)
    where = tool_pb2.ToolFilter(kinds=[tool_pb2.TOOL_KIND_SKILL], states=states)
    request = pb.ListToolsRequest(filter=where, page_size=PAGE_MAX)
    found: dict[str, dict[str, str]] = {}
    denied = 0
    for page in connection.pages(connection.tools.ListTools, request):
        denied = page.denied_size
        for tool in page.tools:
            _put(found, tool)
    return found, denied


def _put(found: dict[str, dict[str, str]], tool: ToolSpec) -> None:
    name = tool.name.removesuffix(_READ)
    kept = found.setdefault(name, {"name": name, "read": "", "run": "", "state": "", "description": ""})
    # One skill is two tools: one reads it, and one runs it where it can be run.
    kept["read" if tool.name.endswith(_READ) else "run"] = tool.name
    # The tool that runs a skill describes it better than the one that reads it, whichever comes first.
    if not kept["description"] or tool.name == name:
        kept["state"], kept["description"] = enum_name(tool, "state"), tool.description


def _remarks(connection: Connection) -> list[str]:
    """Return what the sources of skills report, if the caller may see sources."""
    import grpc

    from toolhub.v1 import registry_service_pb2 as registry
    from toolhub.v1 import tool_pb2

    try:
        listed = connection.call(connection.registry.ListSources, registry.ListSourcesRequest()).sources
    # Remarks are for operators; the hub refuses the list of sources to anyone else.
    except grpc.RpcError:
        return []
    skills = [status for status in listed if status.kind == tool_pb2.TOOL_KIND_SKILL]
    return [text for status in skills for text in (*([status.message] if status.message else []), *status.diagnostics)]
