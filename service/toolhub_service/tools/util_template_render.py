"""core/util.template.render: text from a Mustache template and JSON values."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from msgspec import Meta, field

from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, Example
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.mustache import RenderLimits, render
from toolhub_service.tools.step_budget import LongSteps
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class TemplateRender(Tool["TemplateRender.In", "TemplateRender.Out"]):
    name = "core/util.template.render"
    description = (
        "Render a Mustache template over JSON data, for reports and mails. {{name}} is HTML-escaped, {{{name}}} not. "
        "{{#items}}…{{/items}} repeats for a list or shows for a true value, {{^items}}…{{/items}} shows for false, "
        "null, 0 and empty; {{.}} is the current item, {{a.b}} a nested value, {{>name}} a partial from `partials`. "
        "No code, no files: missing names render as nothing. Output and work are bounded."
    )
    tags = ("template", "mustache", "render", "report", "markdown", "util")
    annotations = Annotations(read_only=True, idempotent=True)
    examples = (
        Example(
            "A list in Markdown",
            {
                "template": "# {{title}}\n{{#items}}\n- {{.}}\n{{/items}}\n",
                "data": {"title": "Fruit", "items": ["fig", "plum"]},
            },
        ),
    )

    class In(ToolInput, frozen=True):
        template: Annotated[str, Meta(description="The Mustache template.")]
        data: Annotated[Any, Meta(description="The JSON value to render, usually an object.")] = None
        partials: Annotated[dict[str, str], Meta(description="Templates that {{>name}} includes, by name.")] = field(
            default_factory=dict
        )

    class Out(ToolOutput, frozen=True):
        text: str

    def __init__(self, limits: RenderLimits | None = None) -> None:
        self._limits = limits or RenderLimits()
        self._at_once = self._limits.at_once
        self._long = LongSteps()

    async def run(self, args: TemplateRender.In, context: ToolContext) -> TemplateRender.Out:
        rendering = partial(render, args.template, args.data, args.partials)
        text = await self._long.run(rendering, self._at_once, self._limits, context)
        context.proves(EvidenceType.TEXT, "text", f"Rendered {len(text)} characters.")
        return self.Out(text=text)
