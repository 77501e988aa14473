"""Tools and a policy of which each step of the nine refuses one: what every entrance is tried with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.tool import Annotations, Primitive, ToolLimits
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

READS: Final = Annotations(read_only=True)


class Step(Tool["Step.In", "Step.Out"]):
    """Does what the step that is meant has to refuse."""

    name = "held/step.plain"
    description = "Count."
    annotations = READS
    limits = ToolLimits(timeout_s=120.0)

    class In(ToolInput, frozen=True):
        count: Annotated[int, Meta(ge=1)] = 3

    class Out(ToolOutput, frozen=True):
        count: Annotated[float, Meta(le=1_000)]

    async def run(self, args: In, context: ToolContext) -> Out:
        return self.Out(count=_stepped(self.name, args.count))


def _stepped(name: str, count: int) -> float:
    if "fails" in name:
        raise refuse(ErrorKind.IO_ERROR, "It fails.")
    if "lies" in name:
        return 5_000
    return float("nan") if "notJson" in name else count


class PromptStep(Tool["PromptStep.In", "PromptStep.Out"]):
    """The same, as an adapter brings a prompt of a source."""

    name = "plain/prompts.mine"
    description = "Count."
    annotations = READS

    class In(ToolInput, frozen=True):
        count: Annotated[int, Meta(ge=1)] = 3

    class Out(ToolOutput, frozen=True):
        count: Annotated[float, Meta(le=1_000)]
        messages: list[dict[str, Any]]

    async def run(self, args: In, context: ToolContext) -> Out:
        count = _stepped(self.name, args.count)
        return self.Out(count=count, messages=[{"role": "user", "content": {"type": "text", "text": str(args.count)}}])


class ReadStep(Tool["ReadStep.In", "ReadStep.Out"]):
    name = "plain/resources.read"
    description = "Count."
    annotations = READS

    class In(ToolInput, frozen=True):
        uri: Annotated[str, Meta(max_length=8)]
        count: int = 3

    class Out(ToolOutput, frozen=True):
        count: Annotated[float, Meta(le=1_000)]
        contents: list[dict[str, Any]]

    async def run(self, args: In, context: ToolContext) -> Out:
        count = _stepped(self.name, args.count)
        return self.Out(count=count, contents=[{"uri": args.uri, "text": str(args.count)}])


class SubscribeStep(Tool["SubscribeStep.In", "SubscribeStep.Out"]):
    name = "plain/resources.subscribe"
    description = "Count."
    annotations = READS
    seen: ClassVar[int] = 0

    class In(ToolInput, frozen=True):
        uri: Annotated[str, Meta(max_length=8)]
        count: int = 3

    class Out(ToolOutput, frozen=True):
        count: Annotated[float, Meta(le=1_000)]

    async def run(self, args: In, context: ToolContext) -> Out:
        SubscribeStep.seen = args.count
        return self.Out(count=_stepped(self.name, args.count))


class CompletionStep(Tool["CompletionStep.In", "CompletionStep.Out"]):
    name = "plain/completion.complete"
    description = "Count."
    annotations = READS

    class In(ToolInput, frozen=True):
        prompt: str
        argument: str
        value: Annotated[str, Meta(max_length=8)]
        count: int = 3

    class Out(ToolOutput, frozen=True):
        count: Annotated[float, Meta(le=1_000)]
        values: list[str]

    async def run(self, args: In, context: ToolContext) -> Out:
        return self.Out(count=_stepped(self.name, args.count), values=[str(args.count)])


class Inner(Tool["Inner.In", "Inner.Out"]):
    """Makes the call from within, as programs, skills, plans and agents do: by the one handle that they are given."""

    name = "held/inner.make"
    description = "Call a tool."
    annotations = READS

    class In(ToolInput, frozen=True):
        tool: str
        args: dict[str, Any]

    class Out(ToolOutput, frozen=True):
        kind: str
        value: dict[str, Any] | None = None

    async def run(self, args: In, context: ToolContext) -> Out:
        assert context.calls is not None
        calls = context.calls()
        result = await calls.restrict_to((args.tool,), 5).invoke(args.tool, args.args, purpose="a test")
        value = result.value if isinstance(result.value, dict) else None
        return self.Out(kind=result.error.kind.value if result.error else "", value=value)


NAMES: Final = ("plain", "fails", "lies", "notJson", "denied", "scarce")
PRIMITIVES: Final[Mapping[str, tuple[type[Tool[Any, Any, Any]], Primitive]]] = {
    "prompts.mine": (PromptStep, Primitive.PROMPT),
    "prompts.shown": (PromptStep, Primitive.PROMPT),
    "resources.read": (ReadStep, Primitive.RESOURCE_READ),
    "resources.subscribe": (SubscribeStep, Primitive.RESOURCE_SUBSCRIPTION),
    "completion.complete": (CompletionStep, Primitive.COMPLETION),
}
"""What a source of each of `NAMES` has."""
PRIMITIVE_TOOLS: Final = [
    (type(f"{kind.__name__}{name}", (kind,), {"name": f"{name.lower()}/{own}.{name}"})(), name.lower(), primitive)
    for name in NAMES
    for own, (kind, primitive) in PRIMITIVES.items()
]
TOOLS: Final = [type(f"Step{name}", (Step,), {"name": f"held/step.{name}"})() for name in NAMES]
POLICY: Final = """
extends: none
grants:
  - {principals: [local], capabilities: [read:fs]}
roles:
  - {principals: [local], roles: [agent]}
rules:
  - id: not-this
    tools: [held/step.denied, denied/prompts.mine.*, denied/resources.*, denied/completion.*]
    effect: DENY
    reason: "Not this one."
limits:
  - {id: scarce, tools: [held/step.scarce], quota: 1}
  - {id: scarce-prompt, tools: [scarce/prompts.mine.scarce], quota: 1}
  - {id: scarce-resource, tools: [scarce/resources.read.scarce], quota: 1}
  - {id: scarce-subscription, tools: [scarce/resources.subscribe.scarce], quota: 1}
  - {id: scarce-completion, tools: [scarce/completion.complete.scarce], quota: 1}
"""
