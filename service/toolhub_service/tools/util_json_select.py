"""core/util.json.select: a part of a JSON value, by JMESPath or JSONPath."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, Example
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.query import Language, QueryLimits, select
from toolhub_service.tools.step_budget import LongSteps
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

_BOOKS: JsonObject = {"books": [{"title": "Emma", "price": 8}, {"title": "Ulysses", "price": 20}]}


class JsonSelect(Tool["JsonSelect.In", "JsonSelect.Out"]):
    name = "core/util.json.select"
    description = (
        "Select, filter or reshape a part of a JSON value, to pass on less. JMESPath (default) returns one value, null "
        "when nothing matches; JSONPath (RFC 9535, starts with $) returns the list of all matches. "
        "Work and result are bounded."
    )
    tags = ("json", "jmespath", "jsonpath", "select", "filter", "query", "util")
    annotations = Annotations(read_only=True, idempotent=True)
    examples = (
        Example("Titles of cheap books", {"json": _BOOKS, "path": "books[?price < `10`].title"}),
        Example(
            "The same in JSONPath", {"json": _BOOKS, "path": "$.books[?@.price < 10].title", "language": "jsonpath"}
        ),
    )

    class In(ToolInput, frozen=True):
        json: Annotated[Any, Meta(description="The value to select from: an object or array, not JSON as text.")]
        path: Annotated[str, Meta(description="The JMESPath or JSONPath expression.", min_length=1, max_length=2048)]
        language: Annotated[Language, Meta(description="Which language the path is written in.")] = "jmespath"

    class Out(ToolOutput, frozen=True):
        value: Any

    def __init__(self, limits: QueryLimits | None = None) -> None:
        self._limits = limits or QueryLimits()
        self._at_once = self._limits.at_once
        self._long = LongSteps()

    async def run(self, args: JsonSelect.In, context: ToolContext) -> JsonSelect.Out:
        selecting = partial(select, args.json, args.path, args.language)
        value = await self._long.run(selecting, self._at_once, self._limits, context)
        context.proves(EvidenceType.TOOL, args.path[:200], f"Selected by {args.language}: {_shape(value)}.")
        return self.Out(value=value)


def _shape(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    return "nothing" if value is None else "one value"
