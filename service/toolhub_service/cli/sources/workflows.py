"""`toolhub workflows …`: check n8n workflows and ComfyUI templates as tools, without a server or a hub."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import structs

from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import (
    EXIT_REFUSED,
    count_text,
    note,
    print_json,
    print_line,
    print_pairs,
    print_prose,
    style,
    text_option,
    wants_json,
)

if TYPE_CHECKING:
    from toolhub_service.adapters.source_kind import WorkflowReport, WorkflowTool
    from toolhub_service.domain.json import JsonObject


_INDENT = "    "


def print_report(report: WorkflowReport) -> None:
    for tool in report.tools:
        _print_tool(tool)
        print_line()
    for problem in report.problems:
        print_prose(problem, _INDENT, "✗", "red")
    for remark in report.notes:
        print_prose(remark, _INDENT, "·")


def _print_tool(tool: WorkflowTool) -> None:
    mark, colour = ("✗", "red") if tool.problems else ("!", "yellow") if tool.warnings else ("✓", "green")
    print_line(style(f"{mark} {tool.name}", fg=colour, bold=True), nl=False)
    print_line(style(f"  {tool.version}  {tool.kind}, {tool.mode or 'not offered'}", dim=True))
    if tool.description:
        print_prose(_INDENT + tool.description.partition("\n")[0], _INDENT)
    print_pairs((f"{_INDENT}{name}", value) for name, value in _facts(tool))
    for problem in tool.problems:
        print_prose(f"{_INDENT}✗ {problem}", f"{_INDENT}  ")
    for warning in tool.warnings:
        print_prose(f"{_INDENT}! {warning}", f"{_INDENT}  ")


def _facts(tool: WorkflowTool) -> Iterator[tuple[str, str]]:
    yield "from", tool.place
    if tool.capabilities:
        yield "needs", ", ".join(tool.capabilities)
    for name, about in tool.arguments.items():
        yield f"takes {name}", about
    for name, about in tool.results.items():
        yield f"gives {name}", about
    yield from tool.facts.items()


_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*")
_FILE = click.Path(path_type=Path, dir_okay=False)
_object_info = click.option(
    "--object-info",
    type=_FILE,
    help="Saved response of the ComfyUI server's /object_info: its nodes, bounds and choices.",
)


@click.group(cls=SuggestingGroup)
def workflows() -> None:
    """Check ComfyUI templates and n8n workflows before a hub offers them as tools."""


@workflows.command()
@click.argument("places", nargs=-1, metavar="[PATH]...", type=click.Path())
@click.option(
    "--sources", "sources_file", type=_FILE, help="Path of sources.yaml; default: the file that the hub would read."
)
@_object_info
@text_option
@settings_options
def check(
    places: tuple[str, ...], *, sources_file: Path | None, object_info: Path | None, as_json: bool, **options: Any
) -> None:
    """Show the tools that the files define, and their problems; exit 1 when there are problems or no tools.

    PATH is a ComfyUI sidecar or a folder of them. Without PATH the n8n and ComfyUI sources of sources.yaml are checked;
    paths in it are relative to its folder. The check contacts no server: save what the server knows about its nodes and
    pass it with --object-info.

    \b
    Examples:
      toolhub workflows check
      toolhub workflows check scale_image.yaml
      curl -s http://gpu-1:8188/object_info > nodes.json
      toolhub workflows check templates/ --object-info nodes.json
    """
    from toolhub_service.adapters.comfyui.workflow.workflows import check_places
    from toolhub_service.adapters.source_kind import WorkflowReport

    nodes, problem = _read_nodes(object_info)
    if problem:
        report = WorkflowReport((), (problem,))
    else:
        report = check_places(places, nodes) if places else WorkflowReport(())
        if sources_file is not None or not places:
            of_sources = _check_sources(sources_file, nodes, options)
            report = WorkflowReport(
                report.tools + of_sources.tools, report.problems + of_sources.problems, of_sources.notes
            )
    _report(report, as_json=as_json)
    if not report.ok:
        sys.exit(EXIT_REFUSED)


@workflows.command()
@click.argument("graph", type=_FILE)
@click.option("--name", default="", help="Name of the tool, without its source; default: the file's name.")
@click.option("--out", type=_FILE, help="Sidecar file to write; default: NAME.yaml beside GRAPH.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@_object_info
def init(graph: Path, *, name: str, out: Path | None, force: bool, object_info: Path | None) -> None:
    """Write a draft of a sidecar for GRAPH, a workflow exported from ComfyUI with Workflow → Export (API).

    Numbers, switches and texts become arguments; images are uploaded, seeds are random and output file names are fixed.
    Edit the sidecar: remove arguments that callers should not set, and describe the others. --object-info adds the
    server's bounds and choices.

    \b
    Example:
      toolhub workflows init portrait.json --name portrait.draw --object-info nodes.json
    """
    from toolhub_service.adapters.comfyui.workflow.template import TemplateInvalid
    from toolhub_service.adapters.comfyui.workflow.workflows import first_sidecar
    from toolhub_service.app.config_files.editing import replace_text

    name = name or re.sub(r"[^A-Za-z0-9_.-]+", "_", graph.stem).strip("._-")
    if _NAME.fullmatch(name) is None:
        raise click.UsageError(
            "--name takes words of letters, digits, `_` and `-`, joined by dots, such as `portrait.draw`."
        )
    sidecar = out or graph.with_name(f"{name}.yaml")
    if sidecar.exists() and not force:
        raise click.ClickException(
            f"{sidecar} exists already. Write another file with --out, or replace it with --force."
        )
    nodes, problem = _read_nodes(object_info)
    if problem:
        raise click.ClickException(problem)
    try:
        text = first_sidecar(graph, sidecar, name, nodes)
    except TemplateInvalid as invalid:
        raise click.ClickException("\n".join(invalid.problems)) from invalid
    replace_text(sidecar, text)
    print_line(f"Wrote {sidecar}.")
    note(f"Edit it, then run: toolhub workflows check {sidecar}", err=True)


def _read_nodes(path: Path | None) -> tuple[JsonObject | None, str]:
    """(the nodes of --object-info, or None; why the file cannot be read, or empty)."""
    from toolhub_service.adapters.comfyui.workflow.template import TemplateInvalid
    from toolhub_service.adapters.comfyui.workflow.workflows import read_object_info

    try:
        return (None if path is None else read_object_info(path)), ""
    except TemplateInvalid as invalid:
        return None, invalid.problems[0]


def _check_sources(chosen: Path | None, nodes: JsonObject | None, options: dict[str, Any]) -> WorkflowReport:
    from toolhub_service.adapters.source_kind import WorkflowReport
    from toolhub_service.app.config_files.paths import Paths
    from toolhub_service.app.config_files.sources_file import SourcesFile
    from toolhub_service.app.kinds import preview_sources
    from toolhub_service.settings.loading import SettingsInvalid

    settings = read_settings(**options)
    required, place = chosen is not None or bool(settings.sources.file), chosen or Paths(settings).sources
    try:
        document = SourcesFile(place, required=required).load()
    except SettingsInvalid as invalid:
        return WorkflowReport((), (str(invalid),))
    report = preview_sources(document.sources, nodes)
    if report.tools or report.problems or report.notes:
        return report
    what = "has no enabled n8n or ComfyUI source with workflows" if place.exists() else "does not exist"
    return WorkflowReport((), (f"{place} {what}. Give sidecars or folders of them, or another file with --sources.",))


def _report(report: WorkflowReport, *, as_json: bool) -> None:
    if wants_json(as_json):
        tools: list[dict[str, Any]] = [structs.asdict(tool) for tool in report.tools]
        print_json({"ok": report.ok, "tools": tools, "problems": list(report.problems), "notes": list(report.notes)})
        return
    print_report(report)
    wrong = sum(bool(tool.problems) for tool in report.tools) + len(report.problems)
    if report.tools:
        verdict = count_text(wrong, "of them wrong") if wrong else "nothing wrong"
        note(f"{count_text(len(report.tools), 'tool')}, {verdict}")
    elif not report.problems:
        note("No workflow was found.")
