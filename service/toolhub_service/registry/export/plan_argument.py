"""The argument with which a model commits the plan of its call, in definitions of tools that may require one.

It belongs to the call and not to the tool: the hub takes it out before it checks the arguments. A schema that describes
it lets also those models use it whose interface allows no further arguments.
"""

from __future__ import annotations

from typing import Final

from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.registry.export.schema_repairs import mapping

PLAN_ARGUMENT: Final = "toolhub_plan"
_SCHEMA: Final[JsonObject] = {
    "type": "string",
    "description": "Leave this out at first: the answer then says what the call would do, and gives a plan. To do "
    "exactly that, make the same call again with the plan here.",
}


def plan_argument(schema: JsonObject) -> str:
    """Return the argument's name beside a tool's own, whose input schema this is: PLAN_ARGUMENT, followed by as many
    underscores as make it no property of the tool."""
    own, name = mapping(schema.get("properties")), PLAN_ARGUMENT
    while name in own:
        name += "_"
    return name


def with_plan_argument(schema: JsonObject) -> JsonObject:
    """Return the input schema with the argument as an optional property."""
    properties: dict[str, JsonValue] = {**mapping(schema.get("properties")), plan_argument(schema): _SCHEMA}
    return {**schema, "properties": properties}
