"""core/tool.describe: what a tool does and takes, in full, for a model that was shown a cut description."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, Example
from toolhub_service.registry.export.exported_names import DESCRIBE_TOOL, exported_names
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class ToolDescribe(Tool["ToolDescribe.In", "ToolDescribe.Out"]):
    name = DESCRIBE_TOOL
    description = (
        "Return the whole description and the input schema of a tool that you may call. Use it where a description "
        "ends with a note that it was cut."
    )
    tags = ("describe", "help")
    annotations = Annotations(read_only=True, idempotent=True)
    examples = (Example("Read all about one tool", {"name": "core/http.request"}),)

    class In(ToolInput, frozen=True):
        name: Annotated[str, Meta(description="The tool's name, as you were given it.", min_length=1, max_length=256)]

    class Out(ToolOutput, frozen=True):
        name: str
        description: str
        input_schema: dict[str, Any]

    async def run(self, args: ToolDescribe.In, context: ToolContext) -> ToolDescribe.Out:
        found = []
        if context.calls is not None:
            found = list(
                await context.calls().offered_tools(
                    lambda spec: args.name == spec.name or args.name in exported_names(spec.name)
                )
            )
        exact = [spec for spec in found if spec.name == args.name] or found
        if len(exact) != 1:
            message = f"There is no tool {args.name!r} that you may call. Give the name under which you would call it."
            raise refuse(ErrorKind.TOOL_NOT_FOUND, message)
        (spec,) = exact
        context.proves(EvidenceType.TOOL, spec.name, f"Described {spec.name} {spec.version}.")
        return self.Out(name=spec.name, description=spec.description, input_schema=dict(spec.input_schema))
