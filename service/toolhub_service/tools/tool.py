"""`Tool[Input, Output, Report]`: how a built-in or custom tool is written.

A tool is a class with a typed input, a typed output (msgspec Structs, from which both JSON Schemas are made,
camelCase on the wire, unknown fields refused) and one async function. Everything else about it is declared.

    class Shout(Tool["Shout.In", "Shout.Out"]):
        name = "demo/text.shout"
        description = "Return the text in capitals."
        annotations = Annotations(read_only=True, idempotent=True)

        class In(ToolInput, frozen=True):
            text: Annotated[str, Meta(description="What to shout.", max_length=1000)]

        class Out(ToolOutput, frozen=True):
            text: str

        async def run(self, args: In, context: ToolContext) -> Out:
            return self.Out(text=args.text.upper())
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar, cast

import msgspec

from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.tool import (
    Annotations,
    CostHints,
    DatabaseTerms,
    Example,
    GuardedArgument,
    IdempotencyMode,
    ToolKind,
    ToolLimits,
    ToolSpec,
    ToolState,
)
from toolhub_service.registry.export.schema_repairs import repair
from toolhub_service.tools.context import Report, ToolContext


class ToolInput(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Arguments of a tool: snake_case in Python, camelCase on the wire."""


class ToolOutput(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Result of a tool: snake_case in Python, camelCase on the wire."""


Input = TypeVar("Input", bound=ToolInput)
Output = TypeVar("Output", bound=ToolOutput)


class Tool(Generic[Input, Output, Report]):
    """One tool. Subclasses declare the class variables, `In`, `Out` and `run`; needs are constructor arguments.

    `Report`: what the tool reports while it runs, when that is more than `ToolProgress`:
    `run(self, args: In, context: ToolContext[CopyProgress])`.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    """For the model: what it does, what it returns, when to use something else."""
    version: ClassVar[str] = "1.0.0"
    tags: ClassVar[tuple[str, ...]] = ()
    capabilities: ClassVar[frozenset[str]] = frozenset()
    annotations: ClassVar[Annotations] = Annotations()
    cost: ClassVar[CostHints] = CostHints()
    limits: ClassVar[ToolLimits] = ToolLimits()
    idempotency: ClassVar[IdempotencyMode] = IdempotencyMode.KEYED
    guarded: ClassVar[tuple[GuardedArgument, ...]] = ()
    examples: ClassVar[tuple[Example, ...]] = ()
    replays: ClassVar[bool] = False
    """Whether its only effects are calls that it makes by `context.calls().durable()`: see `ToolSpec.replays`."""

    In: ClassVar[type[ToolInput]]
    Out: ClassVar[type[ToolOutput]]

    async def run(self, args: Input, context: ToolContext[Report]) -> Output:
        """Do the work before `context.deadline_s`. Raises ToolFailure with a message that says what to do."""
        raise TypeError(f"{type(self).__name__} must define run()")

    def effects(self, args: Input, context: ToolContext) -> Sequence[str]:
        """Return what a call with these arguments would do now, one sentence per effect, for plans. Must change
        nothing.

        Raises ToolFailure when the call would fail.
        """
        return ()

    async def foresee(self, args: Input, context: ToolContext) -> Sequence[str]:
        """Return the same for dry runs of a tool that must run something to know it, without effect and within the
        deadline."""
        return self.effects(args, context)

    def touches(self, args: Input) -> Sequence[str]:
        """Return paths of the workspace that a call with these arguments would destroy, overwrite or move: plans and
        approvals apply only to the state that they showed."""
        return ()

    def has_side_effects(self, args: Input) -> bool:
        """Return whether a call with these arguments may change something; narrower than the annotation, never
        wider."""
        return not self.annotations.read_only

    def upstream(self, args: Input) -> str:
        """Return the key of the breaker and concurrency limit that a call belongs to; empty: the tool's own."""
        return ""

    def full_description(self) -> str:
        """Return the description as it is registered: subclasses add what depends on the configuration, such as
        names."""
        return self.description

    def databases(self) -> tuple[DatabaseTerms, ...]:
        """Return the terms that arguments of role SQL are checked by, one per configured connection; empty: all are
        refused."""
        return ()

    def unavailable_reason(self) -> str:
        """Return why the tool cannot work here (no key, no binary); empty when it can."""
        return ""


def spec_of(tool: Tool[ToolInput, ToolOutput], *, source: str) -> ToolSpec:
    """Return the definition under which a tool is registered."""
    reason = tool.unavailable_reason()
    return ToolSpec(
        name=tool.name,
        kind=ToolKind.CORE,
        version=tool.version,
        description=tool.full_description(),
        tags=tool.tags,
        input_schema=schema_of(tool.In),
        output_schema=schema_of(tool.Out),
        capabilities=tool.capabilities,
        annotations=tool.annotations,
        cost=tool.cost,
        limits=tool.limits,
        idempotency=tool.idempotency,
        guarded=tool.guarded,
        databases=tool.databases(),
        examples=tool.examples,
        replays=tool.replays,
        source=source,
        state=ToolState.UNAVAILABLE if reason else ToolState.ACTIVE,
        state_reason=reason,
    )


def schema_of(struct: type[msgspec.Struct]) -> JsonObject:
    """Return the JSON Schema 2020-12 of a Struct, its own definition at the root and the others under `$defs`."""
    (root,), components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    own = root["$ref"].rsplit("/", 1)[-1]
    # msgspec titles a schema with the class's name, which is meaningless to a caller.
    schema = {key: value for key, value in components.pop(own).items() if key != "title"}
    if components:
        schema["$defs"] = components
    return repair(cast(JsonObject, schema))  # msgspec writes `list[Any]` without `items`
