"""`toolhub workflows …`: graphs of ComfyUI and workflows of n8n on their way to tools, without a server or a hub."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from toolhub_service.cli.output import counted, json_option, note, print_json, wants_json
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.settings_options import read_settings, settings_options
from toolhub_service.cli.source_files import sources_path
from toolhub_service.cli.workflow_view import print_report

if TYPE_CHECKING:
    from toolhub_service.app.workflow_checks import WorkflowReport
    from toolhub_service.domain.json import JsonObject

_EXIT_INVALID = 1
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*")
_FILE = click.Path(path_type=Path, dir_okay=False)
_object_info = click.option(
    "--object-info", type=_FILE, help="A saved answer of the server's /object_info: its nodes, bounds and choices."
)


@click.group(cls=SuggestingGroup)
def workflows() -> None:
    """Workflows as tools: ComfyUI templates and n8n definitions, checked before a hub reads them."""


@workflows.command()
@click.argument("places", nargs=-1, metavar="[PATH]...", type=click.Path())
@click.option("--sources", "sources_file", type=_FILE, help="The sources.yaml meant; else the one the hub would read.")
@_object_info
@json_option
@settings_options
def check(
    places: tuple[str, ...],
    *,
    sources_file: Path | None,
    object_info: Path | None,
    as_json: bool,
    config_file: Path | None,
    data_dir: Path | None,
) -> None:
    """Which tools do these become, and what is wrong with them? Exits 1 when anything is.

    PATH is a sidecar of ComfyUI or a folder of them; without one, the n8n and ComfyUI sources of sources.yaml are
    checked, whose paths count from its folder. No server is asked. What a server would say of nodes is told with
    --object-info:

    \b
    Examples:
      toolhub workflows check
      toolhub workflows check scale_image.yaml
      curl -s http://gpu-1:8188/object_info > nodes.json
      toolhub workflows check templates/ --object-info nodes.json
    """
    from toolhub_service.app.workflow_checks import WorkflowReport, check_places

    nodes, problem = _read_nodes(object_info)
    if problem:
        report = WorkflowReport((), (problem,))
    else:
        report = check_places(places, nodes) if places else WorkflowReport(())
        if sources_file is not None or not places:
            of_sources = _check_sources(sources_file, config_file, data_dir, nodes)
            report = WorkflowReport(
                report.tools + of_sources.tools, report.problems + of_sources.problems, of_sources.notes
            )
    _tell(report, as_json=as_json)
    if not report.ok:
        sys.exit(_EXIT_INVALID)


@workflows.command()
@click.argument("graph", type=_FILE)
@click.option("--name", default="", help="Of the tool, without its source; else after the file.")
@click.option("--out", type=_FILE, help="The sidecar to write; else NAME.yaml beside the graph.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@_object_info
def init(graph: Path, *, name: str, out: Path | None, force: bool, object_info: Path | None) -> None:
    """Write a first sidecar for GRAPH, a workflow that was exported from ComfyUI with Workflow → Export (API).

    Its numbers, switches and texts become arguments, images are uploaded, seeds drawn, file names forced: take out what
    nobody should choose, and describe the rest. With --object-info, bounds and choices are the server's.

    \b
    Example:
      toolhub workflows init portrait.json --name portrait.draw --object-info nodes.json
    """
    from toolhub_service.adapters.comfyui.template import TemplateInvalid
    from toolhub_service.app.file_edit import replace_text
    from toolhub_service.app.workflow_starting import first_sidecar

    name = name or re.sub(r"[^A-Za-z0-9_.-]+", "_", graph.stem).strip("._-")
    if _NAME.fullmatch(name) is None:
        raise click.UsageError("--name: words of letters, digits, `_` and `-`, joined by dots, such as `portrait.draw`")
    sidecar = out or graph.with_name(f"{name}.yaml")
    if sidecar.exists() and not force:
        raise click.ClickException(f"{sidecar} is there already: name another with --out, or say --force")
    nodes, problem = _read_nodes(object_info)
    if problem:
        raise click.ClickException(problem)
    try:
        text = first_sidecar(graph, sidecar, name, nodes)
    except TemplateInvalid as invalid:
        raise click.ClickException("\n".join(invalid.problems)) from invalid
    replace_text(sidecar, text)
    click.echo(f"Wrote {sidecar}.")
    note(f"Look it over, describe it, then: toolhub workflows check {sidecar}", err=True)


def _read_nodes(path: Path | None) -> tuple[JsonObject | None, str]:
    """What the server knows, if it was given; else, or why not."""
    from toolhub_service.adapters.comfyui.template import TemplateInvalid
    from toolhub_service.app.workflow_starting import read_object_info

    try:
        return (None if path is None else read_object_info(path)), ""
    except TemplateInvalid as invalid:
        return None, invalid.problems[0]


def _check_sources(
    chosen: Path | None, config_file: Path | None, data_dir: Path | None, nodes: JsonObject | None
) -> WorkflowReport:
    from toolhub_service.app.sources_file import SourcesFile
    from toolhub_service.app.workflow_checks import WorkflowReport, check_sources
    from toolhub_service.settings.loading import SettingsInvalid

    settings = read_settings(config_file, data_dir)
    required = chosen is not None or bool(settings.sources.file)
    try:
        document = SourcesFile(sources_path(settings, chosen), required=required).load()
    except SettingsInvalid as invalid:
        return WorkflowReport((), (str(invalid),))
    return check_sources(document, nodes)


def _tell(report: WorkflowReport, *, as_json: bool) -> None:
    if wants_json(as_json):
        tools: list[dict[str, Any]] = [asdict(tool) for tool in report.tools]
        print_json({"ok": report.ok, "tools": tools, "problems": list(report.problems), "notes": list(report.notes)})
        return
    print_report(report)
    wrong = sum(bool(tool.problems) for tool in report.tools) + len(report.problems)
    told = counted(len(report.tools), "tool") if report.tools else "No workflow was found"
    note(f"{told}, {counted(wrong, 'of them wrong') if wrong else 'nothing wrong'}" if report.tools or wrong else told)
