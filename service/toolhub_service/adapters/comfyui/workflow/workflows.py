"""The tools that ComfyUI templates become, checked without a server; and a first sidecar for an exported graph."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from toolhub_service.adapters.comfyui.kind import ComfyUiSource
from toolhub_service.adapters.comfyui.workflow.draft_sidecar import draft_of
from toolhub_service.adapters.comfyui.workflow.graph import (
    GRAPH_MAX_BYTES,
    GRAPH_MAX_DEPTH,
    graph_problems,
)
from toolhub_service.adapters.comfyui.workflow.loading import load_templates
from toolhub_service.adapters.comfyui.workflow.node_classes import problems_with
from toolhub_service.adapters.comfyui.workflow.strict_files import read_value
from toolhub_service.adapters.comfyui.workflow.template import (
    Output,
    OutputType,
    Template,
    TemplateInvalid,
)
from toolhub_service.adapters.definitions import Overrides
from toolhub_service.adapters.source_kind import WorkflowReport, WorkflowTool, summary_of
from toolhub_service.adapters.tool_names import full_name
from toolhub_service.domain.json import JsonObject

OBJECT_INFO_MAX_BYTES: Final = 64 * 1024 * 1024
_DEPTH_MAX: Final = 64
_WIDTH: Final = 110
_HEADING: Final = """\
# A tool made of {file}. Say what it does, take out the arguments that nobody should choose,
# each with its binding, narrow and describe the others, then: toolhub workflows check {name}
"""


class _Plain(yaml.SafeDumper):
    """Writes repeated values in full: a sidecar may not contain aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def read_object_info(path: Path) -> JsonObject:
    """Return a saved answer of GET /object_info. Raises TemplateInvalid."""
    try:
        found = read_value(path, max_bytes=OBJECT_INFO_MAX_BYTES, max_depth=_DEPTH_MAX)
    except TemplateInvalid as invalid:
        raise TemplateInvalid(*(f"{path}: {problem}" for problem in invalid.problems)) from None
    if not isinstance(found, dict) or not all(
        isinstance(described, dict) and "input" in described for described in found.values()
    ):
        raise TemplateInvalid(
            f"{path}: it is not a response of /object_info: save one with `curl <server>/object_info`"
        )
    return found


def first_sidecar(graph: Path, sidecar: Path, name: str, object_info: JsonObject | None) -> str:
    """Return the sidecar as YAML. Raises TemplateInvalid."""
    try:
        nodes = read_value(graph, max_bytes=GRAPH_MAX_BYTES, max_depth=GRAPH_MAX_DEPTH)
    except TemplateInvalid as invalid:
        raise TemplateInvalid(*(f"{graph}: {problem}" for problem in invalid.problems)) from None
    unsound = graph_problems(nodes)
    if unsound or not isinstance(nodes, dict):
        raise TemplateInvalid(*(f"{graph}: {problem}" for problem in unsound))
    file = os.path.relpath(graph.resolve(), sidecar.resolve().parent)
    words = draft_of(nodes, name, file, object_info)
    if not words["outputs"]:
        raise TemplateInvalid(f"{graph}: none of its nodes saves or previews anything: add one, such as Save Image")
    text = yaml.dump(words, Dumper=_Plain, sort_keys=False, default_flow_style=None, width=_WIDTH, allow_unicode=True)
    return _HEADING.format(file=file, name=sidecar.name) + str(text)


def check_places(places: Sequence[str], object_info: JsonObject | None) -> WorkflowReport:
    """Check ComfyUI sidecars without a source."""
    templates, problems = load_templates(places)
    if not templates and not problems:
        problems = [f"there is no sidecar in {', '.join(places)}: `toolhub workflows init GRAPH` writes a first one"]
    tools = [_template_tool(template, template.name, (), object_info) for template in templates]
    return WorkflowReport(tuple(tools), tuple(problems))


def preview(name: str, source: ComfyUiSource, object_info: JsonObject | None) -> WorkflowReport:
    """Preview the source of that name; `object_info` is a saved answer of the server, to check node classes."""
    templates, unread = load_templates(source.templates)
    problems = [f"sources.{name}.templates: {problem}" for problem in unread]
    if not templates and not unread:
        problems.append(f"sources.{name}.templates: there is no sidecar in {', '.join(source.templates)}")
    return WorkflowReport(tuple(_tools(name, source, templates, object_info)), tuple(problems))


def _tools(
    name: str, source: ComfyUiSource, templates: Sequence[Template], object_info: JsonObject | None
) -> Iterator[WorkflowTool]:
    overrides = Overrides(source.tools)
    for template in templates:
        terms = overrides.of(template.name)
        if terms.offered:
            capabilities = source.capabilities if terms.capabilities is None else terms.capabilities
            held = tuple(sorted(capabilities or (f"comfyui:{name}",)))
            yield _template_tool(template, full_name(name, template.name), held, object_info)


def _template_tool(
    template: Template, name: str, capabilities: tuple[str, ...], object_info: JsonObject | None
) -> WorkflowTool:
    return WorkflowTool(
        name=name,
        kind="comfyui",
        place=template.path,
        version=template.version,
        description=template.description,
        mode="job",
        capabilities=capabilities,
        arguments=summary_of(template.input_schema),
        results={output.name: _output(output) for output in template.outputs},
        facts={
            "template": template.sha256,
            "graph": template.workflow_sha256,
            "nodes": ", ".join(sorted(template.node_classes)),
        },
        problems=problems_with(template, object_info) if object_info is not None else (),
        warnings=template.warnings,
    )


def _output(output: Output) -> str:
    count = (
        str(output.max_items) if output.min_items == output.max_items else f"{output.min_items} to {output.max_items}"
    )
    if output.type is OutputType.TEXT:
        return f"{count} texts of node {output.node}"
    return f"{count} files of node {output.node}" + (f", {' or '.join(output.mime)}" if output.mime else "")
