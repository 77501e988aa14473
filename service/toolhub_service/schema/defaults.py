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

from collections.abc import Container
from typing import Any, Final

from msgspec import structs

from toolhub_service.domain.json import JsonObject
from toolhub_service.schema.canonical_json import measure
from toolhub_service.schema.compiled import CompiledSchema
from toolhub_service.schema.default_checks import DefaultChecks
from toolhub_service.schema.default_plan import MAX_FILLED_BYTES, Fill, Filling, PlanNode, fill_bytes
from toolhub_service.schema.plan_builder import PlanBuilder, prune
from toolhub_service.schema.references import MAX_INSTANCE_DEPTH, References

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
        node.fills = tuple([self._complete_fill(fill, node.child(fill.name)) for fill in declared])

    def _complete_fill(self, fill: Fill, inside: PlanNode | None) -> Fill:
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
