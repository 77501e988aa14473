"""Workflows as tools, checked without asking any server: the tool that each becomes, and everything wrong with it.

ComfyUI templates are read as the hub reads them, n8n's workflows are made into definitions by the adapter's own maker,
so that what passes here is what a hub takes. Secrets are not looked up: `toolhub sources check` says which are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from toolhub_service.adapters.comfyui.node_classes import problems_with
from toolhub_service.adapters.comfyui.template import OutputTerms, OutputType, Template
from toolhub_service.adapters.comfyui.templates import load_templates
from toolhub_service.adapters.n8n.definitions import DefinitionMaker
from toolhub_service.adapters.n8n.terms import N8nTerms
from toolhub_service.adapters.overrides import Overrides
from toolhub_service.adapters.tool_names import Unnamed, full_name
from toolhub_service.app.argument_summary import summary_of
from toolhub_service.app.n8n_workflow_terms import workflow_terms
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.source import Definition
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.settings.source_terms import Value
from toolhub_service.settings.sources import SourcesDocument
from toolhub_service.settings.workflow_sources import ComfyUiSource, N8nSource, N8nWorkflow

_SET: Final = "set"
"""In the place of a credential, of which only counts whether there is one."""
_HOST: Final = "http://n8n"
"""In the place of the server's own, which is not asked."""


@dataclass(frozen=True, slots=True)
class WorkflowTool:
    """The tool that a workflow becomes."""

    name: str
    """Full; of a template without a source its own name."""
    kind: str
    place: str
    """File, or path in sources.yaml."""
    version: str = ""
    description: str = ""
    mode: str = ""
    """`sync`, `async` or `job`."""
    capabilities: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Name to what it takes, in a few words."""
    results: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else tells it from others: digests, where it is called."""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkflowReport:
    tools: tuple[WorkflowTool, ...]
    problems: tuple[str, ...] = ()
    """Of what did not even become a tool, each with its place."""
    notes: tuple[str, ...] = ()
    """What cannot be told without a server."""

    @property
    def ok(self) -> bool:
        return not self.problems and not any(tool.problems for tool in self.tools)


def check_places(places: Sequence[str], object_info: JsonObject | None) -> WorkflowReport:
    """Sidecars of ComfyUI, without a source."""
    templates, problems = load_templates(places)
    tools = [_template_tool(template, template.name, (), object_info) for template in templates]
    return WorkflowReport(tuple(tools), tuple(problems))


def check_sources(document: SourcesDocument, object_info: JsonObject | None) -> WorkflowReport:
    """Every n8n and ComfyUI source of sources.yaml that is not switched off."""
    tools: list[WorkflowTool] = []
    problems: list[str] = []
    notes: list[str] = []
    for name, source in document.sources.items():
        if isinstance(source, N8nSource) and source.enabled:
            if source.discover is not None:
                told = f"what `discover` finds is known to a running hub only: `toolhub tools list --source {name}`"
                notes.append(f"sources.{name}: {told}")
            tools += _n8n_tools(name, source)
            problems += _n8n_problems(name, source)
        elif isinstance(source, ComfyUiSource) and source.enabled:
            templates, unread = load_templates(source.templates)
            tools += _comfyui_tools(name, source, templates, object_info)
            problems += [f"sources.{name}.templates: {problem}" for problem in unread]
            if not templates and not unread:
                problems.append(f"sources.{name}.templates: there is no sidecar in {', '.join(source.templates)}")
    return WorkflowReport(tuple(tools), tuple(problems), tuple(notes))


def _comfyui_tools(
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
        name,
        "comfyui",
        template.path,
        template.version,
        template.description,
        "job",
        capabilities,
        summary_of(template.input_schema),
        {output.name: _output(output) for output in template.outputs},
        {
            "template": template.sha256,
            "graph": template.workflow_sha256,
            "nodes": ", ".join(sorted(template.node_classes)),
        },
        problems_with(template, object_info) if object_info is not None else (),
        template.warnings,
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _output(output: OutputTerms) -> str:
    count = (
        str(output.max_items) if output.min_items == output.max_items else f"{output.min_items} to {output.max_items}"
    )
    if output.type is OutputType.TEXT:
        return f"{count} texts of node {output.node}"
    return f"{count} files of node {output.node}" + (f", {' or '.join(output.mime)}" if output.mime else "")


def _n8n_tools(name: str, source: N8nSource) -> Iterator[WorkflowTool]:
    terms = N8nTerms(
        name,
        _HOST,
        api_key=_SET if source.api_key else "",
        capabilities=source.capabilities,
        timeout_s=source.timeout_s,
    )
    maker = DefinitionMaker(terms, _HOST, Overrides(source.tools), compile_schema)
    for own_name, workflow in source.workflows.items():
        place = f"sources.{name}.workflows.{own_name}"
        try:
            made = maker.configured(own_name, workflow_terms(workflow))
        except Unnamed as unnamed:
            yield WorkflowTool(own_name, "n8n", place, problems=(unnamed.problem,))
            continue
        if made is not None:
            yield _n8n_tool(place, source, workflow, made)


def _n8n_tool(place: str, source: N8nSource, workflow: N8nWorkflow, made: Definition) -> WorkflowTool:
    return WorkflowTool(
        made.spec.name,
        "n8n",
        place,
        made.spec.version,
        made.spec.description,
        workflow.mode,
        tuple(sorted(made.spec.capabilities)),
        summary_of(workflow.input_schema or {}),
        summary_of(workflow.output_schema),
        {"calls": _called(source, workflow)},
        tuple(filter(None, (made.problem, *_misplaced(workflow)))),
        tuple(_n8n_warnings(source, workflow)),
    )


def _called(source: N8nSource, workflow: N8nWorkflow) -> str:
    if not workflow.webhook:
        return f"{workflow.method} the webhook of workflow {workflow.workflow_id}"
    return f"{workflow.method} {source.webhook_path.rstrip('/')}/{workflow.webhook.strip('/')}"


def _misplaced(workflow: N8nWorkflow) -> Iterator[str]:
    """What a person pastes from n8n's editor and is not meant here."""
    if "webhook-test" in workflow.webhook.split("/"):
        yield (
            "`webhook` is the address of a test run, which works once after a click in the editor: activate the "
            "workflow and name the path of its Production URL"
        )
    elif workflow.webhook.strip("/").startswith("webhook/"):
        yield "`webhook` begins after `/webhook/`, which the hub puts before it: leave that out"


def _n8n_problems(name: str, source: N8nSource) -> Iterator[str]:
    path = _text(source.url).rstrip("/")
    if path.endswith(("/webhook", "/webhook-test", "/rest", source.api_path.rstrip("/") or "/api/v1")):
        yield f"sources.{name}.url: it is the base of the server: leave out what follows the host (or the proxy's path)"


def _n8n_warnings(source: N8nSource, workflow: N8nWorkflow) -> Iterator[str]:
    if not workflow.description:
        yield "it has no description, by which models choose tools: say what it does and when to use it"
    schema = workflow.input_schema
    if schema is None:
        yield "it has no input_schema, so it takes any object: say what the workflow reads, and all else is refused"
    elif "additionalProperties" not in schema and "unevaluatedProperties" not in schema:
        yield "its input_schema lets any other argument through to n8n: say `additionalProperties: false`"
    if not source.api_key:
        yield "without `api_key` an answer that says nothing, or that is lost, cannot be looked up in n8n"


def _text(value: Value) -> str:
    return value if isinstance(value, str) else ""
