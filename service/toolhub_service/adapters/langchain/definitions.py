"""From loaded LangChain tools to `Definition`s: each one by itself, so that a broken one harms no sibling.

Nothing in LangChain says whether a tool changes anything: it does, unless the operator's terms say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from toolhub_service.adapters.langchain.bound_tool import BoundTool
from toolhub_service.adapters.langchain.terms import LangChainTerms
from toolhub_service.adapters.overrides import Override, Overrides
from toolhub_service.adapters.schema_use import CheckSchema
from toolhub_service.adapters.shortening import one_line, shortened
from toolhub_service.adapters.tool_names import OWN_NAME_MAX_CHARS, full_name
from toolhub_service.domain.errors import HubFailure, ToolFailure
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import Annotations, ToolKind, ToolLimits, ToolSpec
from toolhub_service.registry.names import check_name, skeleton

DESCRIPTION_MAX_BYTES: Final = 16 * 1024
PROBLEM_MAX_CHARS: Final = 500
RETRIES: Final = 2
"""Where the operator has said that a repeat is safe."""

OUTPUT_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "The result for a model; text blocks joined by line breaks."},
        "content": {"type": "array", "description": "Content blocks, when the result is more than one text."},
        "artifact": {"description": "What it gives besides the text; described where it is not JSON or too large."},
    },
    "required": ["text"],
    "additionalProperties": False,
}
"""Of every LangChain tool."""
_STAND_IN: Final[JsonObject] = {"type": "object"}


def definitions_of(
    tools: Iterable[BoundTool], terms: LangChainTerms, overrides: Overrides, check_schema: CheckSchema
) -> tuple[tuple[Definition, ...], tuple[str, ...]]:
    """Definitions by name, and why tools were left out, one sentence each."""
    found: dict[str, Definition] = {}
    problems: list[str] = []
    for bound in sorted(tools, key=lambda bound: bound.own_name):
        override = overrides.of(bound.own_name)
        if not override.offered:
            continue
        definition = _definition(bound, terms, override, check_schema)
        if isinstance(definition, str):
            problems.append(definition)
        elif found.setdefault(skeleton(definition.spec.name), definition) is not definition:
            problems.append(f"{_shown(bound)} was left out: its name reads like that of another tool.")
    return tuple(found.values()), tuple(problems)


def _definition(
    bound: BoundTool, terms: LangChainTerms, override: Override, check_schema: CheckSchema
) -> Definition | str:
    """The definition, or why there can be none."""
    if not bound.own_name or len(bound.own_name) > OWN_NAME_MAX_CHARS:
        return f"{_shown(bound)} was left out: its name is empty or too long."
    name = full_name(terms.name, bound.own_name)
    try:
        check_name(name)
    except HubFailure as refused:
        return f"{_shown(bound)} was left out: {refused.message}."
    problem = bound.problem or _unusable(bound.schema, check_schema)
    schema = _STAND_IN if problem else _plain(bound.schema)
    remote: JsonObject = {
        "name": bound.own_name,
        "description": shortened(bound.description, DESCRIPTION_MAX_BYTES),
        "inputSchema": schema,
    }
    return Definition(_spec(name, bound, schema, terms, override), remote, one_line(problem, PROBLEM_MAX_CHARS))


def _spec(name: str, bound: BoundTool, schema: JsonObject, terms: LangChainTerms, override: Override) -> ToolSpec:
    annotations = Annotations(
        read_only=override.read_only is True,
        destructive=override.destructive is True,
        idempotent=override.idempotent is True,
    )
    capabilities = terms.capabilities if override.capabilities is None else override.capabilities
    return ToolSpec(
        name=name,
        kind=ToolKind.LANGCHAIN,
        description=shortened(bound.description, DESCRIPTION_MAX_BYTES),
        input_schema=schema,
        output_schema=OUTPUT_SCHEMA,
        tags=tuple(dict.fromkeys((*terms.tags, "langchain", terms.name))),
        capabilities=frozenset(capabilities or (terms.upstream,)),
        annotations=annotations,
        limits=ToolLimits(
            timeout_s=override.timeout_s or terms.timeout_s,
            max_retries=RETRIES if annotations.safe_to_repeat else 0,
            max_concurrency=terms.max_concurrency,
        ),
        source=terms.name,
        endpoint=terms.endpoint,
        resource_id=bound.own_name,
        upstream=terms.upstream,
    )


def _unusable(schema: dict[str, Any], check_schema: CheckSchema) -> str:
    """Why; empty when it can be used."""
    try:
        check_schema(_plain(schema))
    except ToolFailure as failure:
        return f"Its argument schema cannot be used: {failure.error.message}"
    except HubFailure as failure:
        return f"Its argument schema cannot be used: {failure.message}"
    except (ValueError, TypeError, RecursionError) as refused:
        return f"Its argument schema cannot be used: {str(refused) or 'it is nested too deeply.'}"
    return ""


def _plain(schema: dict[str, Any]) -> JsonObject:
    """A copy that is JSON and nothing else. Raises TypeError, ValueError."""
    copy: JsonObject = msgspec.json.decode(msgspec.json.encode(schema))
    return copy


def _shown(bound: BoundTool) -> str:
    return f"A tool named `{one_line(bound.own_name, 80)}`"
