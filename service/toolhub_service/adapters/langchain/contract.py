"""The arguments of a LangChain tool: those of its caller, and those that only the hub may set.

`tool_call_schema` leaves injected arguments out, but the tool accepts them from any sender, and a schema given as a
dict may even list them. So the schema is closed (`additionalProperties: false`), injected names are removed from it,
and the adapter drops them from arguments whatever the schema says.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from langchain_core.tools import BaseTool, InjectedToolCallId, Tool
from langchain_core.tools.base import get_all_basemodel_annotations
from langchain_core.utils.pydantic import get_fields
from pydantic import BaseModel

_COMPOSING: Final = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if")
# For a `Tool` without a schema: one text.
_SINGLE_INPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"tool_input": {"type": "string"}},
    "required": ["tool_input"],
}


@dataclass(frozen=True, slots=True)
class Contract:
    """How a tool is called."""

    schema: dict[str, Any]
    """Closed schema of the caller's arguments."""
    injected: frozenset[str]
    """Arguments that a caller must never set."""
    required: frozenset[str]
    """The injected ones that are required, except the call id, which LangChain sets itself."""
    aliased: frozenset[str] = frozenset()
    """The injected ones that pydantic reads under another name: a value under their own name may not arrive, and a
    caller's value under the other one might."""


def contract_of(tool: BaseTool) -> Contract:
    """Return the contract. Raises any exception of pydantic or of the tool's own code."""
    needed = _find_injected_args(tool)
    return Contract(
        schema=_close_schema(_schema(tool), frozenset(needed)),
        injected=frozenset(needed),
        required=frozenset(name for name, is_needed in needed.items() if is_needed),
        aliased=_find_aliases(tool, frozenset(needed)),
    )


def _schema(tool: BaseTool) -> dict[str, Any]:
    if isinstance(tool, Tool) and tool.args_schema is None:
        return _SINGLE_INPUT
    schema: Any = tool.tool_call_schema
    if isinstance(schema, dict):
        return schema
    found: dict[str, Any] = (
        schema.model_json_schema() if hasattr(schema, "model_json_schema") else schema.schema()  # pydantic.v1
    )
    return found


def _find_injected_args(tool: BaseTool) -> dict[str, bool]:
    """Return the injected arguments, each with whether it is required."""
    own: frozenset[str] = tool._injected_args_keys  # noqa: SLF001  there is no public way to ask
    parameters = {name: _must_be_given(tool, name) for name in own}
    if isinstance(tool.args_schema, dict) or (isinstance(tool, Tool) and tool.args_schema is None):
        return parameters
    full: Any = tool.get_input_schema()
    hidden = set(get_fields(full)) - set(get_fields(_call_model(tool)))
    annotations = get_all_basemodel_annotations(full)
    fields = get_fields(full)
    # A schema class may hide fields that no parameter of the function names, so both are used.
    by_field = {
        name: _is_required(fields[name]) and not _is_call_id(annotations.get(name))
        for name in hidden | (own & set(fields))
    }
    return parameters | by_field


def _find_aliases(tool: BaseTool, injected: frozenset[str]) -> frozenset[str]:
    if not injected or isinstance(tool.args_schema, dict):
        return frozenset()
    fields: Any = get_fields(tool.get_input_schema())
    return frozenset(
        name
        for name in injected & set(fields)
        if any(getattr(fields[name], place, None) not in (None, name) for place in ("alias", "validation_alias"))
    )


def _call_model(tool: BaseTool) -> type[BaseModel]:
    schema: Any = tool.tool_call_schema
    model: type[BaseModel] = schema
    return model


def _must_be_given(tool: BaseTool, name: str) -> bool:
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or tool._run  # noqa: SLF001
    parameter = inspect.signature(function).parameters.get(name)
    if parameter is None:
        return False
    annotation = inspect.get_annotations(inspect.unwrap(function), eval_str=False).get(name, parameter.annotation)
    is_call_id = "InjectedToolCallId" in annotation if isinstance(annotation, str) else _is_call_id(annotation)
    return parameter.default is inspect.Parameter.empty and not is_call_id


def _is_call_id(annotation: Any) -> bool:
    return any(
        isinstance(part, InjectedToolCallId) or (isinstance(part, type) and issubclass(part, InjectedToolCallId))
        for part in get_args(annotation)[1:]
    )


def _is_required(field: Any) -> bool:
    return bool(field.is_required()) if hasattr(field, "is_required") else bool(getattr(field, "required", False))


def _close_schema(schema: Mapping[str, Any], injected: frozenset[str]) -> dict[str, Any]:
    """Return the schema without injected names, and closed to any other."""
    closed = {key: value for key, value in schema.items() if key not in ("title", "description")}
    closed["type"] = "object"
    properties = closed.get("properties")
    if isinstance(properties, Mapping):
        closed["properties"] = {name: value for name, value in properties.items() if name not in injected}
    required = closed.get("required")
    if isinstance(required, list):
        closed["required"] = [name for name in required if name not in injected]
    if any(key in closed for key in _COMPOSING):
        # Parts of it may name arguments that are in no `properties` here: those are accepted, and no others.
        closed["unevaluatedProperties"] = False
        closed.pop("additionalProperties", None)
        if injected:
            closed["propertyNames"] = {"not": {"enum": sorted(injected)}}
    else:
        closed["additionalProperties"] = False
    return closed
