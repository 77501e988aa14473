"""The tools that an n8n source's configured workflows become, checked without asking n8n."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from toolhub_service.adapters.definitions import Overrides, Unnamed
from toolhub_service.adapters.n8n.client import N8nTerms
from toolhub_service.adapters.n8n.definitions import DefinitionMaker
from toolhub_service.adapters.n8n.kind import N8nSource, N8nWorkflow, workflow_terms
from toolhub_service.adapters.source_config import Value
from toolhub_service.adapters.source_kind import WorkflowReport, WorkflowTool, summary_of
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.source import Definition
from toolhub_service.schema.compiled import compile_schema

_SET: Final = "set"
"""In the place of a credential, of which only counts whether there is one."""
_HOST: Final = "http://n8n"
"""In the place of the server's own, which is not asked."""


def preview(name: str, source: N8nSource, _object_info: JsonObject | None = None) -> WorkflowReport:
    """Of the source of that name; what ComfyUI has to say of its nodes is none of it."""
    notes: tuple[str, ...] = ()
    if source.discover is not None:
        told = f"what `discover` finds is known to a running hub only: `toolhub tools list --source {name}`"
        notes = (f"sources.{name}: {told}",)
    return WorkflowReport(tuple(_tools(name, source)), tuple(_problems(name, source)), notes)


def _tools(name: str, source: N8nSource) -> Iterator[WorkflowTool]:
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
            yield _tool(place, source, workflow, made)


def _tool(place: str, source: N8nSource, workflow: N8nWorkflow, made: Definition) -> WorkflowTool:
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
        tuple(_warnings(source, workflow)),
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


def _problems(name: str, source: N8nSource) -> Iterator[str]:
    path = _text(source.url).rstrip("/")
    if path.endswith(("/webhook", "/webhook-test", "/rest", source.api_path.rstrip("/") or "/api/v1")):
        yield f"sources.{name}.url: it is the base of the server: leave out what follows the host (or the proxy's path)"


def _warnings(source: N8nSource, workflow: N8nWorkflow) -> Iterator[str]:
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
