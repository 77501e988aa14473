"""From a workflow to a `Definition`: as the operator has configured it, or as n8n's API tells of it.

Of a configured workflow every word is the operator's. Of a discovered one nothing is believed but where it is called:
its name, tags and description are untrusted text, it has no schema (any object, tagged `open-schema`), and only the
operator's overrides say that it changes nothing. `Definition.remote` holds what callers rely on; what a workflow does
inside can change without any of it changing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from toolhub_service.adapters.definitions import (
    OWN_NAME_MAX_CHARS,
    CheckSchema,
    Override,
    Overrides,
    Unnamed,
    known_name,
    unusable,
)
from toolhub_service.adapters.n8n.client import WITHOUT_BODY, DiscoveryTerms, N8nTerms, WorkflowTerms
from toolhub_service.adapters.n8n.kind import N8nSource, N8nWorkflow, workflow_terms
from toolhub_service.adapters.n8n.resources import WEBHOOK, Webhook, id_of, is_path, nodes_of, webhooks_of
from toolhub_service.adapters.source_kind import WorkflowReport, WorkflowTool, summary_of
from toolhub_service.adapters.upstream import as_object, kept_text, one_line, shortened
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import (
    Annotations,
    CostHints,
    IdempotencyMode,
    ToolKind,
    ToolLimits,
    ToolSpec,
)
from toolhub_service.guards.headers import Headers
from toolhub_service.guards.masking import Mask
from toolhub_service.schema.compiled import compile_schema

_TEXT_MAX_BYTES: Final = 16 * 1024
_TAGS_MAX: Final = 50
_TAG_MAX_BYTES: Final = 256
_OF_WEBHOOK: Final = ("method", "path", "responseMode", "authentication")
_STICKY_NOTE: Final = "n8n-nodes-base.stickyNote"


@dataclass(frozen=True, slots=True)
class Discovered:
    """A workflow as n8n tells of it, or as a pin has kept it."""

    name: str
    description: str
    tags: tuple[str, ...]
    webhook: Webhook
    is_async: bool

    def workflow(self, headers: Headers) -> WorkflowTerms:
        """Called where it was found and nowhere else: one that has moved is another until it is accepted again."""
        return WorkflowTerms(
            description=self.description,
            webhook=self.webhook.path,
            workflow_id=self.webhook.workflow_id,
            method=self.webhook.method,
            is_async=self.is_async,
            headers=headers,
        )

    def remote(self) -> JsonObject:
        """What callers rely on."""
        return {
            "name": self.name,
            "description": kept_text(self.description, _TEXT_MAX_BYTES),
            "tags": [kept_text(tag, _TAG_MAX_BYTES) for tag in self.tags],
            "workflowId": self.webhook.workflow_id,
            "webhook": {
                "method": self.webhook.method,
                "path": self.webhook.path,
                "responseMode": self.webhook.response_mode,
                "authentication": self.webhook.authentication,
            },
            "mode": "async" if self.is_async else "sync",
        }


def discovered(workflow: JsonObject, terms: DiscoveryTerms) -> Discovered | str | None:
    """None for one that is not meant to be offered; a sentence for one that cannot be."""
    name, tags = workflow.get("name"), tags_of(workflow)
    if workflow.get("active") is not True or not set(terms.tags) <= set(tags):
        return None
    if not any(nodes_of(workflow, WEBHOOK)) or not id_of(workflow.get("id")):
        return None
    if not isinstance(name, str) or not name.strip() or len(name) > OWN_NAME_MAX_CHARS:
        return f"The workflow {id_of(workflow.get('id'))} was left out: its name is empty or too long."
    webhooks = webhooks_of(workflow)
    if len(webhooks) != 1:
        count = "none that can be called" if not webhooks else "several"
        return f"The workflow {id_of(workflow.get('id'))} was left out: of webhooks it has {count}."
    is_async = webhooks[0].names_execution if terms.mode == "auto" else terms.mode == "async"
    return Discovered(name, description_of(workflow), tags, webhooks[0], is_async)


def restored(remote: JsonObject) -> Discovered | None:
    """From what a pin has kept; None when that cannot be."""
    kept = as_object(remote.get("webhook")) or {}
    name, description, tags = remote.get("name"), remote.get("description"), remote.get("tags")
    method, path, mode, demanded = (kept.get(part) for part in _OF_WEBHOOK)
    if not (isinstance(name, str) and isinstance(method, str) and isinstance(path, str)):
        return None
    webhook = Webhook(
        method,
        path,
        id_of(remote.get("workflowId")),
        response_mode=mode if isinstance(mode, str) else "",
        authentication=demanded if isinstance(demanded, str) else "",
    )
    words = description if isinstance(description, str) else ""
    known = tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list | tuple) else ()
    return Discovered(name, words, known, webhook, remote.get("mode") == "async")


def tags_of(workflow: JsonObject) -> tuple[str, ...]:
    tags = workflow.get("tags")
    told = [as_object(tag) or {} for tag in tags[:_TAGS_MAX]] if isinstance(tags, list) else []
    return tuple(name for tag in told if isinstance(name := tag.get("name"), str))


def description_of(workflow: JsonObject) -> str:
    """Its own description, else the note at its webhook, else its first sticky note."""
    notes: list[JsonValue] = [node.get("notes") for node in nodes_of(workflow, WEBHOOK)]
    stickies = [(as_object(node.get("parameters")) or {}).get("content") for node in nodes_of(workflow, _STICKY_NOTE)]
    return shortened(next(_texts([workflow.get("description"), *notes, *stickies]), ""), _TEXT_MAX_BYTES)


def _texts(values: Sequence[JsonValue]) -> Iterator[str]:
    return (value.strip() for value in values if isinstance(value, str) and value.strip())


OPEN_SCHEMA: Final = "open-schema"
DESCRIPTION_MAX_BYTES: Final = 16 * 1024
PROBLEM_MAX_CHARS: Final = 500
RETRIES: Final = 2
"""Where a repeat is safe."""
NO_MASK: Final = Mask()

_ANY_OBJECT: Final[JsonObject] = {"type": "object"}
_ANYTHING: Final[JsonObject] = {}
_SCALARS: Final = frozenset({"string", "number", "integer", "boolean", "null"})


class DefinitionMaker:
    """Makes the definitions of one source."""

    def __init__(
        self,
        terms: N8nTerms,
        endpoint: str,
        overrides: Overrides,
        check_schema: CheckSchema,
        mask: Mask = NO_MASK,
    ) -> None:
        """`check_schema` raises ToolFailure, HubFailure or ValueError for a schema that the hub cannot judge by.

        `mask` hides the source's own secrets in what n8n says of its workflows.
        """
        self._terms = terms
        self._endpoint = endpoint
        self._overrides = overrides
        self._check_schema = check_schema
        self._mask = mask

    def configured(self, own_name: str, workflow: WorkflowTerms, problem: str = "") -> Definition | None:
        """None when it is not offered. Raises Unnamed."""
        wrong = problem or self._wrong(workflow)
        description = workflow.description or f"The n8n workflow `{own_name}`."
        remote: dict[str, JsonValue] = {
            "name": own_name,
            "description": description,
            "inputSchema": workflow.input_schema,
            "outputSchema": workflow.output_schema,
        }
        return self._made(own_name, workflow, description, remote, wrong, is_operators=True)

    def discovered(self, found: Discovered) -> Definition | None:
        """None when it is not offered. Raises Unnamed."""
        own_name = found.name
        if self._mask.text(own_name) != own_name:
            raise Unnamed("A workflow was left out: its name holds a secret of the source.")
        remote = self._mask.object(found.remote())
        description = self._mask.text(found.description)
        return self._made(own_name, found.workflow(self._terms.headers), description, remote, "", is_operators=False)

    def _made(
        self,
        own_name: str,
        workflow: WorkflowTerms,
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
        workflow: WorkflowTerms,
        description: str,
        override: Override,
        *,
        is_usable: bool,
    ) -> ToolSpec:
        terms = self._terms
        annotations = Annotations(
            read_only=override.read_only is True,
            destructive=override.destructive is True,
            idempotent=override.idempotent is True or workflow.deduplicates,
            open_world=True,
            supports_progress=workflow.is_async,
        )
        capabilities = terms.capabilities if override.capabilities is None else override.capabilities
        marks = () if workflow.input_schema is not None else (OPEN_SCHEMA,)
        return ToolSpec(
            name=name,
            kind=ToolKind.N8N,
            description=shortened(description, DESCRIPTION_MAX_BYTES),
            input_schema=(workflow.input_schema or _ANY_OBJECT) if is_usable else _ANY_OBJECT,
            output_schema=workflow.output_schema if is_usable else _ANYTHING,
            version=workflow.version,
            tags=tuple(dict.fromkeys((*terms.tags, "n8n", terms.name, *marks))),
            capabilities=frozenset(capabilities or (terms.upstream,)),
            annotations=annotations,
            cost=CostHints(is_async=workflow.is_async),
            limits=ToolLimits(
                timeout_s=override.timeout_s or terms.timeout_s,
                max_retries=RETRIES if annotations.safe_to_repeat else 0,
                max_concurrency=terms.max_concurrency,
                job_timeout_s=(override.timeout_s or 0.0) if workflow.is_async else 0.0,
            ),
            idempotency=IdempotencyMode.DERIVED if workflow.derived_key else IdempotencyMode.KEYED,
            source=terms.name,
            endpoint=self._endpoint,
            resource_id=own_name,
            upstream=terms.upstream,
        )

    def _wrong(self, workflow: WorkflowTerms) -> str:
        """Why the operator's entry cannot be used, with what to do; empty when it can."""
        if not workflow.webhook and not workflow.workflow_id:
            return "It says neither `webhook` nor `workflow_id`."
        if not workflow.webhook and not self._terms.api_key:
            return "It is named by `workflow_id` alone, which is looked up through n8n's API: set `api_key`."
        if workflow.webhook and not is_path(workflow.webhook):
            return "Its `webhook` is no path: plain words between slashes, without parameters, `.` and `..`."
        if workflow.is_async and not self._terms.api_key:
            return "With `mode: async` its execution is followed through n8n's API: set `api_key`."
        return self._wrong_schema(workflow)

    def _wrong_schema(self, workflow: WorkflowTerms) -> str:
        for place, schema in (("input_schema", workflow.input_schema), ("output_schema", workflow.output_schema)):
            reason = unusable(schema, self._check_schema) if schema else ""
            if reason:
                return f"Its `{place}` cannot be used: {reason}"
        schema = workflow.input_schema
        if schema is not None and schema.get("type") != "object":
            return 'Its `input_schema` cannot be used: arguments are an object, and it does not say `"type": "object"`.'
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


# The check of `toolhub workflows check`, which asks no server: a stand-in for what only the hub knows.
_SET: Final = "set"
_HOST: Final = "http://n8n"


def preview(name: str, source: N8nSource, _object_info: JsonObject | None = None) -> WorkflowReport:
    """The tools that a source's configured workflows become, and what is wrong with them."""
    notes: tuple[str, ...] = ()
    if source.discover is not None:
        note = f"what `discover` finds is known to a running hub only: `toolhub tools list --source {name}`"
        notes = (f"sources.{name}: {note}",)
    problems: tuple[str, ...] = ()
    path = source.url.rstrip("/") if isinstance(source.url, str) else ""
    if path.endswith(("/webhook", "/webhook-test", "/rest", source.api_path.rstrip("/") or "/api/v1")):
        wrong = "it is the base of the server: leave out what follows the host (or the proxy's path)"
        problems = (f"sources.{name}.url: {wrong}",)
    return WorkflowReport(tuple(_previewed(name, source)), problems, notes)


def _previewed(name: str, source: N8nSource) -> Iterator[WorkflowTool]:
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
        if made is None:
            continue
        called = f"the webhook of workflow {workflow.workflow_id}"
        if workflow.webhook:
            called = f"{source.webhook_path.rstrip('/')}/{workflow.webhook.strip('/')}"
        yield WorkflowTool(
            made.spec.name,
            "n8n",
            place,
            made.spec.version,
            made.spec.description,
            workflow.mode,
            tuple(sorted(made.spec.capabilities)),
            summary_of(workflow.input_schema or {}),
            summary_of(workflow.output_schema),
            {"calls": f"{workflow.method} {called}"},
            tuple(filter(None, (made.problem, _path_problem(workflow.webhook)))),
            tuple(_warnings(source, workflow)),
        )


def _path_problem(webhook: str) -> str:
    """What is wrong with a path that was copied from n8n's editor; empty when nothing is."""
    if "webhook-test" in webhook.split("/"):
        return (
            "`webhook` is the address of a test run, which works once after a click in the editor: activate the "
            "workflow and name the path of its Production URL"
        )
    if webhook.strip("/").startswith("webhook/"):
        return "`webhook` begins after `/webhook/`, which the hub puts before it: leave that out"
    return ""


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
