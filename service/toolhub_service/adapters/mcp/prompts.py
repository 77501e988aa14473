"""Prompts of an MCP server, and the completion of their arguments: each prompt is a tool that returns its messages.

There is a tool per prompt, not one for all: models read a prompt's description like a tool's, so each is checked,
pinned and subject to policy separately, and its arguments have a schema. Completion is one tool per server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs

from toolhub_service.adapters.definitions import CheckSchema, Overrides, SourceTerms, unusable
from toolhub_service.adapters.mcp import failures
from toolhub_service.adapters.mcp.calling import ToolCaller
from toolhub_service.adapters.mcp.link import McpLink, McpServer, McpSession
from toolhub_service.adapters.mcp.lists import count_of, read_list
from toolhub_service.adapters.mcp.result_value import INLINE_MAX_BYTES, LargeParts, unkept
from toolhub_service.adapters.mcp.transports.repairs import take_remarks
from toolhub_service.adapters.tool_names import OWN_NAME_MAX_CHARS, Unnamed, known_name
from toolhub_service.adapters.upstream import as_object, as_string, one_line, quote_foreign
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import Annotations, Primitive, ToolSpec
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.guards.secrets import Redact
from toolhub_service.schema.repaired_json import repair_evidence

PROMPTS_MAX: Final = 500
ARGUMENTS_MAX: Final = 64
PREFIX: Final = "prompts."
"""Precedes a prompt's own name in the tool's name."""
GET: Final = "prompts/get "
"""Precedes a prompt's name in the resource id of its tool."""
COMPLETE: Final = "completion.complete"

READS: Final = Annotations(read_only=True, idempotent=True, open_world=True)
"""The hub sends only requests that the protocol defines as reads."""

_WORDS_MAX_CHARS: Final = 4 * 1024  # of a title, or a description of a prompt or an argument
_MESSAGES_MAX: Final = 200
_RESULT_MAX_BYTES: Final = 512 * 1024  # which an MCP client can take as one message
_VALUES_MAX: Final = 100  # of a completion, by the protocol
_VALUE_MAX_CHARS: Final = 1_000
_ROLES: Final = frozenset({"user", "assistant"})

_MESSAGES: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "description": {"type": "string"},
        "messages": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"role": {"enum": ["user", "assistant"]}, "content": {"type": "object"}},
                "required": ["role", "content"],
            },
        },
    },
    "required": ["messages"],
}
_COMPLETE_INPUT: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "prompt": {"type": "string", "description": "The server's own name of the prompt; or `template`."},
        "template": {"type": "string", "description": "URI template of resources.", "maxLength": 2_000},
        "argument": {"type": "string", "description": "Name of the argument.", "maxLength": 256},
        "value": {"type": "string", "description": "What there is of it so far.", "maxLength": 4_096},
        "arguments": {
            "type": "object",
            "description": "Other arguments that are known.",
            "additionalProperties": {"type": "string"},
            "maxProperties": ARGUMENTS_MAX,
        },
    },
    "required": ["argument", "value"],
    "oneOf": [{"required": ["prompt"]}, {"required": ["template"]}],
    "additionalProperties": False,
}
_COMPLETE_OUTPUT: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "values": {"type": "array", "items": {"type": "string"}, "maxItems": _VALUES_MAX},
        "total": {"type": "integer"},
        "hasMore": {"type": "boolean"},
    },
    "required": ["values"],
}


def fixed_definition(
    terms: SourceTerms,
    overrides: Overrides,
    own_name: str,
    primitive: Primitive,
    description: str,
    input_schema: JsonObject,
    output_schema: JsonObject,
) -> Definition | None:
    """Return the tool that every server with such a feature has, described in the hub's words; None: the operator does
    not offer it. Raises Unnamed."""
    chosen = overrides.of(own_name)
    if not chosen.offered:
        return None
    spec = terms.spec(
        known_name(terms.name, own_name, "A tool"),
        own_name,
        chosen,
        description=description,
        input_schema=input_schema,
        output_schema=output_schema,
        annotations=READS,
    )
    return Definition(replace(spec, primitive=primitive), {"name": own_name, "primitive": primitive.value})


def completion_definition(terms: SourceTerms, overrides: Overrides) -> Definition | None:
    return fixed_definition(
        terms,
        overrides,
        COMPLETE,
        Primitive.COMPLETION,
        description=f"What an argument of a prompt or of a resource template of {terms.name} may be, from what there "
        "is of it.",
        input_schema=_COMPLETE_INPUT,
        output_schema=_COMPLETE_OUTPUT,
    )


class PromptReader:
    """Reads the prompts of one source."""

    def __init__(self, terms: SourceTerms, overrides: Overrides, check_schema: CheckSchema) -> None:
        self._terms = terms
        self._overrides = overrides
        self._check_schema = check_schema

    async def read_all(
        self, link: McpLink, session: McpSession, redact: Redact, problems: list[str], mask: Mask
    ) -> list[Definition]:
        """Return the definitions of the whole list, without the secrets of `mask`. An unusable prompt becomes a problem
        and does not fail the reading."""
        if "prompts" not in session.features:
            return []
        found = await read_list(link, session, "prompts/list", "prompts", PROMPTS_MAX)
        if found.error is not None:
            said = quote_foreign(found.error.error.message, redact)
            problems.append(f"The list of prompts could not be read whole. The server says: {said}")
        elif not found.is_whole:
            problems.append(f"Only the first {len(found.entries)} prompts are offered.")
        definitions = []
        for entry in found.entries:
            try:
                definition = self._read_prompt(mask.object(entry))
            except Unnamed as unnamed:
                problems.append(unnamed.problem)
                continue
            if definition is not None:
                definitions.append(definition)
        return definitions

    def restore_pinned(self, remote: JsonObject) -> Definition | None:
        """Return the definition from a pin. Raises Unnamed."""
        return self._definition(as_string(remote.get("prompt")), as_object(remote.get("inputSchema")) or {})

    def _read_prompt(self, prompt: JsonObject) -> Definition | None:
        name = as_string(prompt.get("name"))
        if not name or len(name) > OWN_NAME_MAX_CHARS:
            raise Unnamed(f"A prompt named `{one_line(name, 80)}` was left out: its name is empty or too long.")
        return self._definition(name, _schema(prompt, name))

    def _definition(self, name: str, schema: JsonObject) -> Definition | None:
        """Return the tool that returns the prompt's messages; None when the operator does not offer it. Raises
        Unnamed."""
        own_name = f"{PREFIX}{name}"
        chosen = self._overrides.of(own_name)
        if not chosen.offered:
            return None
        reason = unusable(schema, self._check_schema)
        if reason:
            raise Unnamed(f"The prompt `{one_line(name, 80)}` was left out: {reason}")
        words = as_string(schema.get("description"))
        spec = self._terms.spec(
            known_name(self._terms.name, own_name, "A prompt"),
            f"{GET}{name}",
            chosen,
            description=f"{words}\n\nGives the messages of the prompt `{name}`.".lstrip(),
            input_schema=schema,
            output_schema=_MESSAGES,
            annotations=READS,
        )
        remote: JsonObject = {"name": own_name, "prompt": name, "inputSchema": schema}
        limits = structs.replace(spec.limits, max_result_bytes=_RESULT_MAX_BYTES)
        spec = replace(spec, primitive=Primitive.PROMPT, limits=limits)
        return Definition(spec, remote, follows_words=self._terms.follows_words)


def _schema(prompt: JsonObject, name: str) -> JsonObject:
    """Return the schema of the arguments, with the prompt's own descriptions. Raises Unnamed."""
    arguments = prompt.get("arguments") or []
    label = f"The prompt `{one_line(name, 80)}` was left out"
    if not isinstance(arguments, Sequence) or isinstance(arguments, str) or len(arguments) > ARGUMENTS_MAX:
        raise Unnamed(f"{label}: its arguments are no list, or more than {ARGUMENTS_MAX}.")
    properties: dict[str, JsonValue] = {}
    required: list[JsonValue] = []
    for argument in arguments:
        fields = as_object(argument) or {}
        own = as_string(fields.get("name"))
        # The whole prompt is left out: without one of its arguments it may mean something else.
        if not own or len(own) > OWN_NAME_MAX_CHARS or own in properties:
            raise Unnamed(f"{label}: an argument has no name of its own.")
        properties[own] = {"type": "string", **_words(fields)}
        if fields.get("required") is True:
            required.append(own)
    schema: dict[str, JsonValue] = {"type": "object", **_words(prompt), "properties": properties}
    if required:
        schema["required"] = required
    return {**schema, "additionalProperties": False}


def _words(fields: JsonObject) -> dict[str, JsonValue]:
    """Return title and description; of a text that is too long for anybody to read the first sentences."""
    words: dict[str, JsonValue] = {}
    for place in ("title", "description"):
        if text := as_string(fields.get(place)):
            words[place] = excerpt(text, _WORDS_MAX_CHARS)
    return words


# Calls


async def get_prompt(server: McpServer, call: GrantedCall, caller: ToolCaller) -> Outcome:
    """Return `{description?, messages: [{role, content}]}`. Raises ToolFailure, QuestionAsked."""
    name = prompt_of(call.spec)
    fields: dict[str, JsonValue] = {"name": name}
    if call.args:
        fields["arguments"] = dict(call.args)
    answer, session = await caller.result(server, call, None, method="prompts/get", fields=fields)
    messages = answer.get("messages")
    if not isinstance(messages, list) or len(messages) > _MESSAGES_MAX:
        raise failures.outside_protocol(call, f"it has no list of at most {_MESSAGES_MAX} messages")
    keeping = LargeParts(call.call, caller.artifacts, INLINE_MAX_BYTES)
    shown: list[JsonValue] = []
    for message in messages:
        fields_of = as_object(message) or {}
        role, content = fields_of.get("role"), as_object(fields_of.get("content"))
        if role not in _ROLES or content is None:
            raise failures.outside_protocol(call, "a message has no role or no content")
        shown.append({"role": role, "content": await keeping.block_value(unkept(content))})
    value: dict[str, JsonValue] = {"messages": shown}
    if words := as_string(answer.get("description")):
        value["description"] = excerpt(words, _WORDS_MAX_CHARS)
    return Outcome(
        value=value,
        evidence=evidence_of(call, session, f"gave the prompt {one_line(name, 80)}", answer),
        artifacts=tuple(keeping.refs),
        truncated=keeping.is_incomplete,
    )


def prompt_of(spec: ToolSpec) -> str:
    """Return the server's own name of the tool's prompt."""
    return spec.resource_id.removeprefix(GET)


async def complete(server: McpServer, call: GrantedCall, caller: ToolCaller) -> Outcome:
    """Return `{values, total?, hasMore?}`. Raises ToolFailure."""
    args = call.args
    ref: JsonObject = {"type": "ref/resource", "uri": args.get("template")}
    if "prompt" in args:
        ref = {"type": "ref/prompt", "name": args["prompt"]}
    fields: dict[str, JsonValue] = {"ref": ref, "argument": {"name": args["argument"], "value": args["value"]}}
    if known := as_object(args.get("arguments")):
        fields["context"] = {"arguments": dict(known)}
    answer, session = await caller.result(server, call, None, method="completion/complete", fields=fields)
    completion = as_object(answer.get("completion")) or {}
    values = completion.get("values")
    if not isinstance(values, list):
        raise failures.outside_protocol(call, "it has no list of values")
    texts: list[JsonValue] = [value for value in values if isinstance(value, str) and len(value) <= _VALUE_MAX_CHARS]
    value: dict[str, JsonValue] = {"values": texts[:_VALUES_MAX]}
    if (total := count_of(completion.get("total"))) is not None:
        value["total"] = total
    if isinstance(completion.get("hasMore"), bool):
        value["hasMore"] = completion["hasMore"]
    return Outcome(value=value, evidence=evidence_of(call, session, "completed an argument", answer))


def evidence_of(
    call: GrantedCall, session: McpSession, what: str, answer: JsonObject | None = None
) -> tuple[Evidence, ...]:
    """Return the evidence; `what` is what the tool did, as part of a sentence. `answer`: what the server said, perhaps
    repaired."""
    attributes = {"source": call.spec.source, "server": session.server, "protocol": session.protocol}
    call_id = call.call.call_id
    proof = Evidence(EvidenceType.TOOL, call_id, f"{call.spec.name} {what}", attributes=attributes)
    repairs = () if answer is None else take_remarks(answer)[1]
    return (proof, *repair_evidence(call_id, repairs))
