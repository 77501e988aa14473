"""A schema compiled once and run many times: bounded before, always offline, linear patterns only.

Engine: jsonschema_rs (Rust) with retrieval off and a linear regex engine. The declared draft is honoured (4, 6, 7,
2019-09, 2020-12; default 2020-12, as in MCP). `format` is an annotation, as drafts 2019-09 and later say, and is not
asserted in any draft: guards, not formats, check paths, hosts and addresses.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import OrderedDict
from typing import Any, Final, Generic, TypeVar, cast

import jsonschema_rs

from toolhub_service.domain.errors.failure import ToolFailure, Violation
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.schema import violations
from toolhub_service.schema.canonical_json import NotJson, dumps, measure
from toolhub_service.schema.pattern_bound import LINEAR_PATTERNS, bound_patterns
from toolhub_service.schema.references import (
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_TOTAL_WORK,
    References,
    SchemaRefused,
)
from toolhub_service.schema.rules import pointer
from toolhub_service.schema.strict_json import loads
from toolhub_service.schema.work_bound import WorkBound, bound_work

# A bounded map that drops what was used least recently.

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """Values by digest. A look-up costs two dictionary operations."""

    def __init__(self, capacity: int, max_weight: int = sys.maxsize) -> None:
        """Limits for the number of values, and for the sum of the weights given to `put`."""
        self._capacity = capacity
        self._max_weight = max_weight
        self._values: OrderedDict[str, Value] = OrderedDict()
        self._weights: dict[str, int] = {}
        self._weight = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, digest: str) -> Value | None:
        value = self._values.get(digest)
        if value is not None:
            try:
                self._values.move_to_end(digest)
            except KeyError:  # another thread has just dropped it; the value is still valid
                return value
        return value

    def put(self, digest: str, value: Value, weight: int = 1) -> None:
        self._weight += weight - self._weights.get(digest, 0)
        self._weights[digest] = weight
        self._values[digest] = value
        while len(self._values) > self._capacity or (self._weight > self._max_weight and len(self._values) > 1):
            forgotten, _ = self._values.popitem(last=False)
            self._weight -= self._weights.pop(forgotten, 0)


_CACHED_SCHEMAS: Final = 4096
# Bytes of JSON; compiled it takes about ten times as much. A source that sends ever new large schemas cannot fill
# memory.
_CACHED_BYTES: Final = 32 * 1024 * 1024
_KNOWN_GOOD: Final = 65_536
# The engine collects every error before it returns the first: beyond this much work it gets a part of the value.
_MAX_DETAILED_WORK: Final = 20_000


class CompiledSchema:
    """One compiled schema. Immutable; safe to share between tasks and threads."""

    __slots__ = ("_accepts_all", "_engine", "_hints", "bound", "document")

    def __init__(self, text: bytes, *, max_depth: int = MAX_SCHEMA_DEPTH) -> None:
        """`text` is canonical JSON, its size bounded by the caller. Raises SchemaRefused."""
        document = _document(text, max_depth)
        references = References(document if isinstance(document, dict) else {})
        self.bound: WorkBound = bound_work(references)
        bound_patterns(references.nodes)
        self.document = document
        """The schema itself: to be read, never changed."""
        self._engine = _engine(text)
        self._accepts_all = document is True or document == {}
        self._hints = {} if references.has_embedded_resources else references.document

    def is_valid(self, value: JsonValue) -> bool:
        """Return whether `value` is valid and within the bounds of the schema."""
        if self._accepts_all:
            return True
        values, depth = measure(value, self.bound.max_depth)
        if depth > self.bound.max_depth or values * self.bound.chain_work > MAX_TOTAL_WORK:
            return False
        try:
            return self._engine.is_valid(value)
        except ValueError:
            return False

    def validate(self, value: JsonValue) -> tuple[Violation, ...]:
        """Return at most five violations, worded for repair; empty when `value` is valid."""
        if self._accepts_all:
            return ()
        values, depth = measure(value, self.bound.max_depth)
        if depth > self.bound.max_depth or values * self.bound.chain_work > MAX_TOTAL_WORK:
            return (self._beyond_bounds(values, depth),)
        try:
            # Nearly all values are valid, and that check costs far less than the list of errors.
            return () if self._engine.is_valid(value) else self._explain(value)
        except ValueError:
            return (violations.not_json(),)

    def _beyond_bounds(self, values: int, depth: int) -> Violation:
        if depth > self.bound.max_depth:
            return violations.too_deep(self.bound.max_depth)
        return violations.too_large(values, MAX_TOTAL_WORK // self.bound.chain_work)

    def _explain(self, value: JsonValue) -> tuple[Violation, ...]:
        return violations.explain(self._engine, self._hints, value, _MAX_DETAILED_WORK // self.bound.chain_work)


def compile_schema(schema: JsonObject | bool) -> CompiledSchema:
    """Return the compiled form of `schema`, created once per canonical digest. Raises SchemaRefused."""
    text = _text(schema)
    digest = hashlib.sha256(text).hexdigest()
    compiled = _cache.get(digest)
    if compiled is None:
        compiled = CompiledSchema(text)
        _cache.put(digest, compiled, len(text))
        _good.put(digest, True)
    return compiled


def check_schema(schema: JsonObject | bool) -> None:
    """Check that the schema can be compiled; the result is kept longer than the compiled forms of many large ones could
    be.

    Raises SchemaRefused.
    """
    if _good.get(hashlib.sha256(_text(schema)).hexdigest()) is None:
        compile_schema(schema)


def read_schema(schema: JsonObject) -> dict[str, Any]:
    """Return a copy that may be changed, with its members in their order. Raises SchemaRefused beyond the bounds."""
    _document(_text(schema), MAX_SCHEMA_DEPTH)
    copy: dict[str, Any] = json.loads(json.dumps(schema))
    return copy


def _engine(text: bytes) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(
            text.decode(), offline=True, pattern_options=LINEAR_PATTERNS, validate_formats=False
        )
    except jsonschema_rs.ValidationError as error:
        raise explain_refusal(error) from None
    except (ValueError, jsonschema_rs.ReferencingError):
        raise SchemaRefused("invalid", "It cannot be compiled; validate it against its draft.") from None


def _document(text: bytes, max_depth: int) -> dict[str, Any] | bool:
    """Return a copy of the schema, its depth checked before anything reads it recursively."""
    try:
        return cast("dict[str, Any] | bool", loads(text, max_bytes=len(text), max_depth=max_depth))
    except ToolFailure:
        raise SchemaRefused("too_deep", f"Nest it at most {MAX_SCHEMA_DEPTH} levels; move parts to $defs.") from None


def _text(schema: JsonObject | bool) -> bytes:
    try:
        text = dumps(schema)
    except NotJson:
        raise SchemaRefused("invalid", "It is not a JSON value, or is nested too deeply.") from None
    if not text.startswith((b"{", b"true", b"false")):
        raise SchemaRefused("invalid", "A schema is an object or a boolean.")
    if len(text) > MAX_SCHEMA_BYTES:
        raise SchemaRefused("too_large", f"It has {len(text):,} bytes; the limit is {MAX_SCHEMA_BYTES:,}.")
    return text


def explain_refusal(error: jsonschema_rs.ValidationError) -> SchemaRefused:
    kind = error.kind
    where = pointer(error.instance_path) or "the root"
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Referencing):
        if "meta-schema" in error.message:
            return SchemaRefused("dialect", "Its $schema is not draft 4, 6, 7, 2019-09 or 2020-12.")
        return SchemaRefused("reference", "A $ref points outside the document; copy its target to $defs.")
    return SchemaRefused("invalid", f"The keyword at {where} breaks its draft's meta-schema ({kind.name}).")


_cache: BoundedCache[CompiledSchema] = BoundedCache(_CACHED_SCHEMAS, _CACHED_BYTES)
_good: BoundedCache[bool] = BoundedCache(_KNOWN_GOOD)
