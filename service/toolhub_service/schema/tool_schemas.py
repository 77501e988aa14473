"""The parts of a tool's contract that steps 2, 3 and 7 need, created once per definition digest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from toolhub_service.domain.errors.failure import Violation
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.schema.canonical_json import measure
from toolhub_service.schema.compiled import BoundedCache, CompiledSchema, compile_schema
from toolhub_service.schema.defaults import DefaultsPlan, compile_defaults
from toolhub_service.schema.references import MAX_INSTANCE_DEPTH
from toolhub_service.schema.relaxing import compile_relaxed

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
