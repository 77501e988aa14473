"""Makes a `Definition` of a workflow that the operator has configured, or that n8n's API reports.

All texts of a configured workflow are the operator's. Of a discovered one only its address is trusted: name, tags and
description are untrusted text, it has no schema (any object, tagged `open-schema`), and only the operator's overrides
declare that it changes nothing. `Definition.remote` holds what callers rely on; the nodes inside a workflow can change
without any of it changing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from msgspec import structs

from toolhub_service.adapters.definitions import ANY_OBJECT, PROBLEM_MAX_CHARS, Overrides, SourceTerms, unusable
from toolhub_service.adapters.n8n.kind import WITHOUT_BODY, N8nSource, N8nWorkflow
from toolhub_service.adapters.n8n.server import N8nTerms
from toolhub_service.adapters.n8n.workflow import Discovered, is_path
from toolhub_service.adapters.source_kind import WorkflowReport, WorkflowTool, summary_of
from toolhub_service.adapters.tool_names import Unnamed, known_name
from toolhub_service.adapters.upstream import one_line
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import Annotations, CostHints, IdempotencyMode, ToolKind, ToolSpec
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.sections.source_config import ToolTerms

OPEN_SCHEMA: Final = "open-schema"

_SCALARS: Final = frozenset({"string", "number", "integer", "boolean", "null"})


class DefinitionMaker:
    """Makes the definitions of one source."""

    def __init__(self, terms: N8nTerms) -> None:
        """Raises ValueError when an `error_pattern` is no regular expression."""
        self._terms = terms
        self._overrides = Overrides(terms.entry.tools)

    def define_entry(self, own_name: str, workflow: N8nWorkflow, problem: str = "") -> Definition | None:
        """Return the definition; None when the workflow is not offered. Raises Unnamed."""
        wrong = problem or self._wrong(workflow)
        description = workflow.description or f"The n8n workflow `{own_name}`."
        remote: dict[str, JsonValue] = {
            "name": own_name,
            "description": description,
            "inputSchema": workflow.input_schema,
            "outputSchema": workflow.output_schema,
        }
        return self._make_definition(own_name, workflow, description, remote, wrong, is_operators=True)

    def define_found(self, found: Discovered) -> Definition | None:
        """Return the definition; None when the workflow is not offered. Raises Unnamed."""
        own_name = found.name
        mask = self._terms.mask
        if mask.text(own_name) != own_name:
            raise Unnamed("A workflow was left out: its name contains a secret of the source.")
        remote, description = mask.object(found.remote()), mask.text(found.description)
        return self._make_definition(own_name, found.entry(), description, remote, "", is_operators=False)

    def _make_definition(
        self,
        own_name: str,
        workflow: N8nWorkflow,
        description: str,
        remote: JsonObject,
        problem: str,
        *,
        is_operators: bool,
    ) -> Definition | None:
        override = self._overrides.of(own_name)
        if not override.offered:
            return None
        name = known_name(self._terms.name, own_name, "A workflow")
        spec = self._spec(name, own_name, workflow, description, override, is_usable=not problem)
        shown = one_line(problem, PROBLEM_MAX_CHARS) if problem else ""
        return Definition(spec, remote, shown, is_operators=is_operators)

    def _spec(
        self,
        name: str,
        own_name: str,
        workflow: N8nWorkflow,
        description: str,
        override: ToolTerms,
        *,
        is_usable: bool,
    ) -> ToolSpec:
        terms = SourceTerms.of(ToolKind.N8N, self._terms.name, self._terms.endpoint, self._terms.entry)
        spec = terms.spec(
            name,
            own_name,
            override,
            description=description,
            input_schema=(workflow.input_schema or ANY_OBJECT) if is_usable else ANY_OBJECT,
            output_schema=workflow.output_schema if is_usable else {},
            annotations=Annotations(
                read_only=override.read_only is True,
                destructive=override.destructive is True,
                # A workflow that checks its keys does its work once, however often it is called.
                idempotent=override.idempotent is True or workflow.deduplicates,
                open_world=True,
                supports_progress=workflow.is_async,
            ),
        )
        return replace(
            spec,
            version=workflow.version,
            tags=spec.tags if workflow.input_schema is not None else tuple(dict.fromkeys((*spec.tags, OPEN_SCHEMA))),
            cost=CostHints(is_async=workflow.is_async),
            # The source's `timeout_s` applies to calls: an execution that is followed may take days.
            limits=structs.replace(
                spec.limits, job_timeout_s=(override.timeout_s or 0.0) if workflow.is_async else 0.0
            ),
            idempotency=IdempotencyMode.DERIVED if workflow.derived_key else IdempotencyMode.KEYED,
        )

    def _wrong(self, workflow: N8nWorkflow) -> str:
        """Return why the operator's entry cannot be used, with what to do; empty when it can."""
        if not workflow.path and not workflow.workflow_id:
            return "It has neither `webhook` nor `workflow_id`."
        if not workflow.path and not self._terms.api_key:
            return "It is named by `workflow_id` alone, which is looked up through n8n's API: set `api_key`."
        if workflow.path and not is_path(workflow.path):
            return "Its `webhook` is not a path: write plain segments, without parameters, `.` and `..`."
        if workflow.is_async and not self._terms.api_key:
            return "With `mode: async` its execution is followed through n8n's API: set `api_key`."
        return self._wrong_schema(workflow)

    def _wrong_schema(self, workflow: N8nWorkflow) -> str:
        for place, schema in (("input_schema", workflow.input_schema), ("output_schema", workflow.output_schema)):
            reason = unusable(schema, compile_schema) if schema else ""
            if reason:
                return f"Its `{place}` cannot be used: {reason}"
        schema = workflow.input_schema
        if schema is not None and schema.get("type") != "object":
            return 'Its `input_schema` cannot be used: it lacks `"type": "object"`, and arguments are an object.'
        properties = schema.get("properties") if schema is not None else None
        named: Mapping[str, JsonValue] = properties if isinstance(properties, Mapping) else {}
        if workflow.idempotency_field and workflow.method in WITHOUT_BODY:
            return f"`idempotency_field` needs a body, and {workflow.method} has none."
        if workflow.idempotency_field in named and workflow.idempotency_field:
            return f"`idempotency_field` is `{workflow.idempotency_field}`, which is an argument of callers, too."
        if workflow.method in WITHOUT_BODY:
            nested = [name for name, member in named.items() if not _is_scalar(member)]
            if nested:
                what = f"Arguments of {workflow.method} go into the query, and `{nested[0]}` need not be plain: "
                return f"{what}give it a `type` of string, number, integer or boolean."
        return ""


def _is_scalar(schema: JsonValue) -> bool:
    if not isinstance(schema, Mapping):
        return False
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return kinds in _SCALARS
    if isinstance(kinds, list) and kinds:
        return all(isinstance(kind, str) and kind in _SCALARS for kind in kinds)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return isinstance(choices, list) and not any(isinstance(choice, Mapping | list) for choice in choices)


# For `toolhub workflows check`, which asks no server and resolves no secret.


def preview(name: str, source: N8nSource, _object_info: JsonObject | None = None) -> WorkflowReport:
    """Return the tools that a source's configured workflows become, and their problems."""
    notes: tuple[str, ...] = ()
    if source.discover is not None:
        note = f"only a running hub knows what `discover` finds: `toolhub tools list --source {name}`"
        notes = (f"sources.{name}: {note}",)
    problems: tuple[str, ...] = ()
    path = source.url.rstrip("/") if isinstance(source.url, str) else ""
    if path.endswith(("/webhook", "/webhook-test", "/rest", source.api_path.rstrip("/") or "/api/v1")):
        wrong = "it is the base URL of the server: leave out everything after the host (or the proxy's path)"
        problems = (f"sources.{name}.url: {wrong}",)
    return WorkflowReport(tuple(_preview_workflows(name, source)), problems, notes)


def _preview_workflows(name: str, source: N8nSource) -> Iterator[WorkflowTool]:
    maker = DefinitionMaker(N8nTerms(name, "http://n8n", source, api_key="set" if source.api_key else ""))
    for own_name, workflow in source.workflows.items():
        place = f"sources.{name}.workflows.{own_name}"
        try:
            made = maker.define_entry(own_name, workflow)
        except Unnamed as unnamed:
            yield WorkflowTool(own_name, "n8n", place, problems=(unnamed.problem,))
            continue
        if made is None:
            continue
        called = f"the webhook of workflow {workflow.workflow_id}"
        if workflow.webhook:
            called = f"{source.webhook_path.rstrip('/')}/{workflow.path}"
        yield WorkflowTool(
            name=made.spec.name,
            kind="n8n",
            place=place,
            version=made.spec.version,
            description=made.spec.description,
            mode=workflow.mode,
            capabilities=tuple(sorted(made.spec.capabilities)),
            arguments=summary_of(workflow.input_schema or {}),
            results=summary_of(workflow.output_schema),
            facts={"calls": f"{workflow.method} {called}"},
            problems=tuple(filter(None, (made.problem, _path_problem(workflow.path)))),
            warnings=tuple(_warnings(source, workflow)),
        )


def _path_problem(webhook: str) -> str:
    """Return what is wrong with a path copied from n8n's editor; empty when nothing is."""
    if "webhook-test" in webhook.split("/"):
        return (
            "`webhook` is the address of a test run, which works once after a click in the editor: activate the "
            "workflow and name the path of its Production URL"
        )
    if webhook.startswith("webhook/"):
        return "`webhook` begins after `/webhook/`, which the hub puts before it: leave that out"
    return ""


def _warnings(source: N8nSource, workflow: N8nWorkflow) -> Iterator[str]:
    if not workflow.description:
        yield "it has no description; models choose tools by it: say what it does and when to use it"
    schema = workflow.input_schema
    if schema is None:
        yield "it has no input_schema, so it accepts any object: declare what the workflow reads"
    elif "additionalProperties" not in schema and "unevaluatedProperties" not in schema:
        yield "its input_schema passes any other argument to n8n: set `additionalProperties: false`"
    if not source.api_key:
        yield "without `api_key` an empty or lost answer cannot be looked up in n8n"
