"""Prompts of sources as a client is shown them, and what completes their arguments and those of templates."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CompleteRequestParams, PromptReference

from toolhub_service.domain.call import Principal
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.tool import Primitive, ToolSpec
from toolhub_service.mcp_server.convert_calls import ARTIFACT_URI, text_of
from toolhub_service.mcp_server.offer import TTL_MS
from toolhub_service.mcp_server.primitives.source_primitives import Primitives, Requester, meta_of, protocol_error
from toolhub_service.mcp_server.primitives.source_resources import SourceResources, shown_uri
from toolhub_service.registry.export.exported_names import MCP_MAX_CHARS, ExportedNames
from toolhub_service.schema import canonical_json

_PAGE_MAX_BYTES: Final = 512 * 1024
_BLOCKS: Final = frozenset({"text", "image", "audio", "resource", "resource_link"})
_NO_VALUES: Final[JsonObject] = {"values": [], "hasMore": False}


class Prompts:
    def __init__(self, primitives: Primitives, resources: SourceResources) -> None:
        self._primitives = primitives
        self._resources = resources
        self._names = ExportedNames((), MCP_MAX_CHARS)
        self._tools: dict[str, str] = {}
        self._named: Mapping[str, ToolSpec] | None = None

    def page(self, principal: Principal, cursor: str) -> dict[str, Any]:
        """Return a ListPromptsResult: available prompts that policy could allow, in the order of the tools' names."""
        names = self._current_names()
        specs = [spec for spec in self._all().values() if self._primitives.may_see(principal, spec)]
        start = bisect_right(specs, cursor, key=lambda spec: spec.name) if cursor else 0
        page: dict[str, Any] = {"ttlMs": TTL_MS, "cacheScope": "private", "resultType": "complete", "prompts": []}
        size_bytes = 0
        for spec in specs[start:]:
            prompt = _prompt(names.exported_name(_short(spec)), spec.input_schema)
            size_bytes += len(canonical_json.dumps(prompt))
            if page["prompts"] and size_bytes > _PAGE_MAX_BYTES:
                page["nextCursor"] = specs[start + len(page["prompts"]) - 1].name
                break
            page["prompts"].append(prompt)
        return page

    async def get(self, requester: Requester, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Return a GetPromptResult. Raises the same MCPError for a missing prompt and one that policy hides."""
        spec = self._spec(name)
        if spec is None:
            raise _no_prompt()
        answer = await self._primitives.call(requester, spec, arguments)
        if answer.error is not None:
            if self._primitives.is_hidden(requester.principal, spec):
                raise _no_prompt()
            raise protocol_error(answer.error)
        value: Any = answer.value if isinstance(answer.value, Mapping) else {}  # a text, where all was cut
        messages = [
            {"role": message["role"], "content": _content(message["content"], spec.source)}
            for message in value.get("messages", ())
            if isinstance(message, Mapping)
        ]
        result: dict[str, Any] = {"messages": messages, "resultType": "complete", "_meta": meta_of(answer, spec)}
        if "description" in value:
            result["description"] = value["description"]
        return result

    async def complete(self, requester: Requester, params: CompleteRequestParams) -> dict[str, Any]:
        """Return a CompleteResult; for a source without completion, no values. Raises MCPError."""
        args: dict[str, Any] = {"argument": params.argument.name, "value": params.argument.value}
        if params.context is not None and params.context.arguments:
            args["arguments"] = params.context.arguments
        if isinstance(params.ref, PromptReference):
            prompt = self._spec(params.ref.name)
            if prompt is None or not self._primitives.may_see(requester.principal, prompt):
                raise _no_prompt()
            source = prompt.source
            args["prompt"] = prompt.resource_id.partition(" ")[2]
        elif params.ref.uri.startswith(ARTIFACT_URI):
            return _to_completion_result(_NO_VALUES)
        else:
            source, args["template"] = await self._resources.source_of_template(requester, params.ref.uri)
        spec = self._primitives.of_source(Primitive.COMPLETION, source)
        if spec is None:
            return _to_completion_result(_NO_VALUES)
        answer = await self._primitives.call(requester, spec, args)
        if answer.error is not None:
            if self._primitives.is_hidden(requester.principal, spec):
                return _to_completion_result(_NO_VALUES)
            raise protocol_error(answer.error)
        return _to_completion_result(answer.value) | {"_meta": meta_of(answer, spec)}

    def _all(self) -> Mapping[str, ToolSpec]:
        return self._primitives.all(Primitive.PROMPT)

    def _spec(self, name: str) -> ToolSpec | None:
        """Return the prompt that a client names by its listed name, or by its tool's."""
        short = self._current_names().original(name)
        return self._all().get(self._tools[short] if short is not None else name)

    def _current_names(self) -> ExportedNames:
        named = self._all()
        if named is not self._named:
            self._tools = {_short(spec): spec.name for spec in named.values()}
            bare = [short for short in self._tools if self._primitives.is_unprefixed(short)]
            self._names = ExportedNames(self._tools, MCP_MAX_CHARS, unprefixed=bare)
            self._named = named
        return self._names


def _short(spec: ToolSpec) -> str:
    """`acme/prompts.greet` is the prompt `acme/greet`."""
    return spec.name.replace("/prompts.", "/", 1)


def _no_prompt() -> MCPError:
    return MCPError(INVALID_PARAMS, "There is no prompt of this name that you may get. Take one from prompts/list.")


def _prompt(name: str, schema: JsonObject) -> dict[str, Any]:
    """Return a prompt as listed: its descriptions, and its arguments', are in the schema of its tool."""
    properties = schema.get("properties")
    required = schema.get("required")
    arguments: list[dict[str, JsonValue]] = []
    for own, rule in properties.items() if isinstance(properties, Mapping) else ():
        is_required = isinstance(required, list) and own in required
        arguments.append({"name": own, **_title_and_description(rule), "required": is_required})
    return {"name": name, **_title_and_description(schema), "arguments": arguments}


def _title_and_description(rule: JsonValue) -> dict[str, JsonValue]:
    if not isinstance(rule, Mapping):
        return {}
    return {place: rule[place] for place in ("title", "description") if isinstance(rule.get(place), str)}


def _content(block: JsonObject, source: str) -> dict[str, Any]:
    """Return a content block for clients; content stored as an artifact becomes a link."""
    resource = block.get("resource")
    holder = resource if isinstance(resource, Mapping) else block
    if isinstance(kept := holder.get("artifact"), str):
        media_type = holder.get("mimeType") or "application/octet-stream"
        link = {"type": "resource_link", "uri": ARTIFACT_URI + kept, "name": kept}
        return {**link, "mimeType": media_type, "size": holder.get("bytes")}
    if block.get("type") not in _BLOCKS or "dropped" in holder:
        return {"type": "text", "text": text_of(dict(block))}
    if isinstance(uri := holder.get("uri"), str):
        named = {**holder, "uri": shown_uri(source, uri)}
        return {**block, "resource": named} if holder is not block else named
    return dict(block)


def _to_completion_result(value: JsonValue) -> dict[str, Any]:
    return {"completion": value, "resultType": "complete"}
