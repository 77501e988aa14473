"""Defaults: code, never the model, fills in what was left out of a call.

A plan is compiled once per schema and applied to arguments that are already valid:
- only what is absent is filled; an explicit null is present;
- a missing parent is never created for the sake of a child's default; a parent that is itself filled by a default
  object is completed inside;
- arrays are completed item by item; local `$ref` is followed, cyclic ones too; the first definition in allOf wins;
- nothing comes from anyOf, oneOf, not, if or the dependent keywords, except for a tag that selects exactly one branch;
- a default that its own subschema rejects is dropped; arrays and objects are copied for every call.
Keywords that constrain a whole object (oneOf over `required`, maxProperties, dependentRequired, …) can still reject the
completed arguments: `ToolSchemas.complete` checks and gives such defaults up.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any, Final
from urllib.parse import quote

from msgspec import structs

from toolhub_service.domain.errors.failure import Violation
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.schema.canonical_json import dumps, measure
from toolhub_service.schema.compiled import BoundedCache, CompiledSchema, compile_schema
from toolhub_service.schema.default_plan import (
    MAX_FILLED_BYTES,
    Fill,
    Filling,
    PlanBuilder,
    PlanNode,
    fill_bytes,
    prune,
)
from toolhub_service.schema.references import MAX_INSTANCE_DEPTH, MAX_SCHEMA_DEPTH, References, SchemaRefused, step_of
from toolhub_service.schema.relaxing import compile_relaxed

# The parts of a tool's contract that steps 2, 3 and 7 need, created once per definition digest.

_CACHED_TOOLS: Final = 16_384
# Keywords of a schema that constrain each property by itself, require some, or annotate.
_OF_SINGLE_PROPERTIES: Final = frozenset(
    "$schema $comment $defs definitions title description examples default type properties required "
    "additionalProperties".split()
)
_MAX_TRIED_DEFAULTS: Final = 32
_MAX_WORK_PER_TRY: Final = 100_000


class ToolSchemas:
    """The compiled contract of one tool. Immutable; safe to share between tasks and threads."""

    __slots__ = ("_scalars", "defaults", "input", "output", "validate_input", "validate_output")

    def __init__(self, spec: ToolSpec) -> None:
        compiled = compile_relaxed if spec.unenforced else compile_schema
        self.input: CompiledSchema = compiled(spec.input_schema)
        self.output: CompiledSchema = compiled(spec.output_schema)
        self.validate_input: Callable[[JsonValue], tuple[Violation, ...]] = self.input.validate
        """Step 2: returns violations of the raw arguments; empty when they are valid."""
        self.validate_output: Callable[[JsonValue], tuple[Violation, ...]] = self.output.validate
        """Step 7: returns violations of a result; empty when it is valid."""
        self.defaults: DefaultsPlan = compile_defaults(self.input)
        # Defaults that each fit their property, where no rule concerns two properties: nothing has to be tried.
        self._scalars = self.defaults.scalars() if _checks_properties_alone(self.input.document) else None

    def complete(self, args: JsonObject) -> tuple[JsonObject, tuple[str, ...]]:
        """Step 3: valid arguments with defaults, and JSON Pointers of what was filled. The result is valid too.

        Where all defaults together break the schema, they are tried one by one and those that break it are given up;
        where trying would be expensive, all are.

        Raises:
            ToolFailure: INVALID_INPUT when the defaults would add more than 1 MiB.
        """
        if self._scalars is not None:
            added: dict[str, JsonValue] = {}
            steps: list[str] = []
            for fill in self._scalars:  # a loop, because a comprehension costs a call
                if fill.name not in args:
                    added[fill.name] = fill.value
                    steps.append(fill.step)
            return {**args, **added} if added else args, tuple(steps)
        completed, filled = self.defaults.fill(args)
        if not filled or self.input.is_valid(completed):
            return completed, filled
        values, _ = measure(args, MAX_INSTANCE_DEPTH)
        if values * self.input.bound.chain_work > _MAX_WORK_PER_TRY:
            return args, ()
        return self._complete_one_by_one(args, filled)

    def _complete_one_by_one(self, args: JsonObject, filled: tuple[str, ...]) -> tuple[JsonObject, tuple[str, ...]]:
        left_out = set(filled)
        completed = args
        kept: tuple[str, ...] = ()
        for path in filled[:_MAX_TRIED_DEFAULTS]:
            left_out.discard(path)
            attempt, attempted = self.defaults.fill(args, skip=left_out)
            if self.input.is_valid(attempt):
                completed, kept = attempt, attempted
            else:
                left_out.add(path)
        return completed, kept


def _checks_properties_alone(document: JsonValue) -> bool:
    """Return whether a valid object stays valid with one more declared property that is valid by itself."""
    return isinstance(document, Mapping) and document.keys() <= _OF_SINGLE_PROPERTIES


def for_tool(spec: ToolSpec) -> ToolSchemas:
    """The compiled contract of `spec`, found by its digest.

    Raises:
        SchemaRefused: a schema of the tool is invalid, hostile or too large; the tool must be quarantined.
    """
    schemas = _cache.get(spec.digest)
    if schemas is None:
        schemas = ToolSchemas(spec)
        _cache.put(spec.digest, schemas)
    return schemas


_cache: BoundedCache[ToolSchemas] = BoundedCache(_CACHED_TOOLS)


# Which declared defaults fit their own subschema: one in seven of public tool schemas' defaults does not.
#
# All are validated by one compiled schema: `{"properties": {"0": {"$ref": "<document>#/pointer/0"}, …}}` with the
# document embedded under an id of its own, so that its references keep their meaning. It is bounded like any schema: a
# hostile default is not run against a hostile schema.

_EMBEDDED_ID: Final = "urn:toolhub:schema"


class DefaultChecks:
    """Validates values against subschemas of one document, named by the identity of their dict."""

    def __init__(self, document: dict[str, Any], schemas: list[int]) -> None:
        self._names = {schema: str(position) for position, schema in enumerate(dict.fromkeys(schemas))}
        pointers = _pointers(document, set(self._names))
        wrapped = _wrapped(document, {self._names[key]: path for key, path in pointers.items()})
        try:
            self._schema = CompiledSchema(dumps(wrapped), max_depth=MAX_SCHEMA_DEPTH + 2)
        except SchemaRefused:
            self._names = {}

    def fits(self, schema: int, value: Any) -> bool:
        """Return whether `value` is valid against the subschema; False where that is unknown."""
        name = self._names.get(schema)
        return name is not None and self._schema.is_valid({name: value})


def _wrapped(document: dict[str, Any], pointers: dict[str, str]) -> dict[str, Any]:
    dialect = {"$schema": document["$schema"]} if "$schema" in document else {}
    keyword = "id" if "draft-04" in str(document.get("$schema")) else "$id"
    own = str(document.get(keyword, "")).partition("#")[0]
    identifier = own if ":" in own else _EMBEDDED_ID
    return {
        **dialect,
        "properties": {name: {"$ref": f"{identifier}#{quote(path, safe='/~')}"} for name, path in pointers.items()},
        "definitions": {"document": {**document, keyword: identifier}},
    }


def _pointers(document: dict[str, Any], wanted: set[int]) -> dict[int, str]:
    """Return JSON Pointers of the containers with these identities."""
    found: dict[int, str] = {}
    pending: list[tuple[Any, str]] = [(document, "")]
    while pending:
        value, path = pending.pop()
        if id(value) in wanted:
            found[id(value)] = path
        if isinstance(value, dict):
            pending += [(item, path + step_of(name)) for name, item in value.items() if isinstance(item, dict | list)]
        elif isinstance(value, list):
            pending += [(item, f"{path}/{at}") for at, item in enumerate(value) if isinstance(item, dict | list)]
    return found


_MAX_DEFAULT_VALUES: Final = 1000
_MAX_DEFAULTS_INSIDE: Final = 16


class DefaultsPlan:
    """The defaults of one schema. Immutable; safe to share between tasks and threads."""

    __slots__ = ("_root", "is_empty")

    def __init__(self, root: PlanNode) -> None:
        self._root = root
        self.is_empty = not root.useful

    def scalars(self) -> tuple[Fill, ...] | None:
        """All defaults of the plan if they are a few scalars at the top level and nothing below; else None."""
        root = self._root
        is_flat = not (root.children or root.picks or root.items or root.first_items)
        are_small = sum(fill.size_bytes for fill in root.fills) <= MAX_FILLED_BYTES
        are_scalars = not any(isinstance(fill.value, dict | list) for fill in root.fills)
        return root.fills if is_flat and are_small and are_scalars else None

    def fill(self, args: JsonObject, *, skip: Container[str] = ()) -> tuple[JsonObject, tuple[str, ...]]:
        """(completed arguments, JSON Pointers of what was filled).

        `args` is never changed and is returned itself when nothing was absent; untouched parts are shared with it.
        `args` is at most 64 levels deep, which its validation has made sure. `skip` names pointers not to fill.

        Raises:
            ToolFailure: INVALID_INPUT when the defaults would add more than 1 MiB.
        """
        if self.is_empty:
            return args, ()
        filling = Filling(skip)
        completed = filling.over(self._root, args, "")
        return completed, tuple(filling.filled)


def compile_defaults(schema: CompiledSchema) -> DefaultsPlan:
    """Return the defaults plan of an accepted schema."""
    if not isinstance(schema.document, dict) or not _mentions_default(schema.document):
        return DefaultsPlan(PlanNode())
    references = References(schema.document)
    builder = PlanBuilder(references)
    root = builder.build()
    nodes = list(builder.nodes.values())
    checks = DefaultChecks(schema.document, [fill.schema for node in nodes for fill in node.fills])
    for node in nodes:
        node.fills = tuple(fill for fill in node.fills if checks.fits(fill.schema, fill.value))
    prune(nodes)
    completion = _Completion(checks)
    for node in nodes:
        completion.complete(node)
    return DefaultsPlan(root)


class _Completion:
    """Completes default objects and arrays once with the defaults of their own subschemas.

    While the defaults of a place are being completed, its own default objects are left out: a default never contains
    itself.
    """

    def __init__(self, checks: DefaultChecks) -> None:
        self._checks = checks
        self._begun: set[int] = set()

    def complete(self, node: PlanNode, depth: int = 0) -> None:
        if id(node) in self._begun or depth > _MAX_DEFAULTS_INSIDE:
            return
        self._begun.add(id(node))
        declared = node.fills
        node.fills = tuple(fill for fill in declared if not isinstance(fill.value, dict | list))
        for successor in node.successors():
            self.complete(successor, depth + 1)
        node.fills = tuple([self._completed(fill, node.child(fill.name)) for fill in declared])

    def _completed(self, fill: Fill, inside: PlanNode | None) -> Fill:
        if inside is None or not isinstance(fill.value, dict | list):
            return fill
        value = Filling().over(inside, fill.value, "")
        small = measure(value, MAX_INSTANCE_DEPTH)[0] <= _MAX_DEFAULT_VALUES
        if not small or not self._checks.fits(fill.schema, value):
            return fill
        return structs.replace(fill, value=value, size_bytes=fill_bytes(fill.name, value))


def _mentions_default(document: dict[str, Any]) -> bool:
    pending: list[Any] = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if "default" in value:
                return True
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return False
