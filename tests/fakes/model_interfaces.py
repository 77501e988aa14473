"""The validators of model interfaces, as far as their rules are documented or reported: what each would refuse.

Each returns the complaints about one tool; none means that the request is accepted. docs/model-forms.md has the same
rules for people. Sources, by the marks that stand beside the rules:

[O1] OpenAI: "array schema missing items" (streamnative/streamnative-mcp-server#26, campfirein/byterover-cli#42)
[O2] OpenAI: a description of at most 1,024 characters (modelcontextprotocol/servers#799, getsentry/sentry-mcp#106)
[O3] OpenAI: "schema must be a JSON Schema of 'type: \"object\"'" (vercel/ai#1485); no combinator at the root
[O4] OpenAI and Azure, structured outputs: every object closed and all its properties required, no root `anyOf`, at most
     5 levels, 100 properties, 500 values of enumerations, 15,000 characters of names and values, none of the keywords
     beside (learn.microsoft.com, "How to use structured outputs")
[A1] Anthropic: "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'" (anthropics/claude-code#79418)
[A2] Anthropic: "does not support oneOf, allOf, or anyOf at the top level" (anthropics/claude-code#40075)
[A3] Anthropic: "must match JSON Schema draft 2020-12" (anthropics/claude-code#63673)
[G1] Gemini: the fields of `Schema`, the values of `Type` (ai.google.dev/api/caching#Schema); others are "Cannot find
     field", `type` is no list (zed-industries/zed#44875, #53919)
[G2] Gemini: values of `enum` are texts (microsoft/azure-devops-mcp#145), and none is empty
[G3] Gemini: names of functions and parameters (cloud.google.com, FunctionDeclaration)
[G4] Gemini: an object has properties, an array has items (danny-avila/LibreChat#13845)
[G5] Vertex AI: "When using any_of, it must be the only field set" (anomalyco/opencode#15795)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import jsonschema_rs

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DESCRIPTION_MAX_CHARS: Final = 1_024
_COMBINATORS: Final = ("oneOf", "anyOf", "allOf", "enum", "const", "not")


def openai(tool: dict[str, Any]) -> list[str]:
    function = tool["function"]
    return [*_named(function), *_described(function), *_root(function["parameters"]), *_items(function["parameters"])]


def _named(tool: dict[str, Any]) -> Iterator[str]:
    if not _NAME.fullmatch(tool["name"]):
        yield f"name {tool['name']!r}"


def _described(tool: dict[str, Any]) -> Iterator[str]:
    if len(tool["description"]) > _DESCRIPTION_MAX_CHARS:  # [O2]
        yield "string too long: description"


def _root(schema: dict[str, Any]) -> Iterator[str]:
    if schema.get("type") != "object":  # [O3]
        yield "schema must be of type object"
    yield from (f"{keyword} at the root" for keyword in _COMBINATORS if keyword in schema)


def _items(schema: dict[str, Any]) -> Iterator[str]:
    for path, node in _nodes(schema, ""):
        kinds = node.get("type")
        if (kinds == "array" or (isinstance(kinds, list) and "array" in kinds)) and not isinstance(
            node.get("items"), dict
        ):
            yield f"{path}: array schema missing items"  # [O1]


_STRICT_KEYWORDS: Final = {"type", "description", "enum", "anyOf", "properties", "required", "items"} | {
    "additionalProperties"
}


def openai_strict(tool: dict[str, Any]) -> list[str]:
    function = tool["function"]
    found = [*openai(tool)]
    if function["strict"] is False:  # such a function may stand beside strict ones
        return found
    schema, chars, properties, values = function["parameters"], 0, 0, 0
    for path, node in _nodes(schema, ""):
        found += [f"{path}: {keyword} is not permitted" for keyword in node.keys() - _STRICT_KEYWORDS]
        if not {"type", "anyOf"} & node.keys():
            found.append(f"{path}: schema must have a 'type' key")
        if "object" in _listed(node.get("type")):
            names = list(node.get("properties", {}))
            if node.get("additionalProperties") is not False or sorted(node.get("required", [])) != sorted(names):
                found.append(f"{path}: additionalProperties must be false and required hold every key")
            properties += len(names)
            chars += sum(map(len, names))
        members = node.get("enum", [])
        values += len(members)
        chars += sum(len(str(member)) for member in members)
    if properties > 100 or values > 500 or chars > 15_000 or _levels(schema) > 5:  # [O4]
        found.append(f"too large: {properties} properties, {values} values, {chars} chars, {_levels(schema)} levels")
    return found


def _listed(kinds: Any) -> list[str]:
    return kinds if isinstance(kinds, list) else [kinds]


def _levels(node: dict[str, Any]) -> int:
    inner = [*node.get("properties", {}).values(), *([node["items"]] if "items" in node else [])]
    below = max(map(_levels, inner), default=0)
    own = 1 if {"object", "array"} & set(_listed(node.get("type"))) else 0
    return max([own + below, *map(_levels, node.get("anyOf", []))])


_ANTHROPIC_KEY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def anthropic(tool: dict[str, Any]) -> list[str]:
    schema = tool["input_schema"]
    found = [*_named(tool)]
    if schema.get("type") != "object":
        found.append("input_schema.type must be object")
    found += [f"{keyword} at the top level" for keyword in ("oneOf", "allOf", "anyOf") if keyword in schema]  # [A2]
    for path, node in _nodes(schema, ""):
        for name in node.get("properties", {}):
            if not _ANTHROPIC_KEY.fullmatch(name):
                found.append(f"{path}: property keys should match pattern: {name!r}")  # [A1]
    plain = {key: value for key, value in schema.items() if key != "$schema"}
    if not jsonschema_rs.meta.is_valid({**plain, "$schema": "https://json-schema.org/draft/2020-12/schema"}):
        found.append("must match JSON Schema draft 2020-12")  # [A3]
    return found


_GEMINI_FIELDS: Final = (
    "type format title description nullable enum maxItems minItems properties required minProperties maxProperties "
    "minLength maxLength pattern example anyOf propertyOrdering default items minimum maximum"
).split()
_GEMINI_TYPES: Final = ("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT")
_GEMINI_FORMATS: Final = {"STRING": ("enum", "date-time"), "NUMBER": ("float", "double"), "INTEGER": ("int32", "int64")}
_GEMINI_FUNCTION: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_GEMINI_PARAMETER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def gemini(tool: dict[str, Any]) -> list[str]:
    found = [] if _GEMINI_FUNCTION.fullmatch(tool["name"]) else [f"name {tool['name']!r}"]  # [G3]
    if "parameters" in tool:
        found += _gemini_schema(tool["parameters"], "")
        found += [] if tool["parameters"].get("type") == "OBJECT" else ["parameters must be an OBJECT"]
    return found


def _gemini_schema(node: dict[str, Any], path: str) -> Iterator[str]:
    yield from (f"{path}: unknown name {name!r}: cannot find field" for name in node.keys() - set(_GEMINI_FIELDS))
    if "anyOf" in node:
        if len(node) > 1:
            yield f"{path}: when using any_of, it must be the only field set"  # [G5]
        for at, option in enumerate(node["anyOf"]):
            yield from _gemini_schema(option, f"{path}/anyOf/{at}")
        return
    yield from _gemini_values(node, path)
    properties = node.get("properties", {})
    for name in node.get("required", []):
        if name not in properties:
            yield f"{path}: required {name!r} is not defined"
    for name, child in properties.items():
        if not _GEMINI_PARAMETER.fullmatch(name):  # [G3]
            yield f"{path}: parameter {name!r}"
        yield from _gemini_schema(child, f"{path}/{name}")
    if "items" in node:
        yield from _gemini_schema(node["items"], f"{path}/items")


def _gemini_values(node: dict[str, Any], path: str) -> Iterator[str]:
    kind = node.get("type")
    if kind not in _GEMINI_TYPES:  # [G1]
        yield f"{path}: invalid type {kind!r}"
    if "format" in node and node["format"] not in _GEMINI_FORMATS.get(str(kind), ()):
        yield f"{path}: format {node['format']!r}"
    for member in node.get("enum", []):  # [G2]
        if kind != "STRING" or not isinstance(member, str) or not member:
            yield f"{path}: enum {member!r}"
    if kind == "OBJECT" and not node.get("properties"):  # [G4]
        yield f"{path}: should be non-empty for OBJECT type"
    if kind == "ARRAY" and "items" not in node:
        yield f"{path}: items: missing field"


_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_SINGLES: Final = (
    "items additionalProperties additionalItems prefixItems anyOf oneOf allOf not if then else contains propertyNames "
    "unevaluatedItems unevaluatedProperties"
).split()


def _nodes(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema object with its place."""
    if isinstance(node, list):
        for at, item in enumerate(node):
            yield from _nodes(item, f"{path}/{at}")
    if not isinstance(node, dict):
        return
    yield path, node
    for keyword in _MAPS:
        if isinstance(node.get(keyword), dict):
            for name, child in node[keyword].items():
                yield from _nodes(child, f"{path}/{keyword}/{name}")
    for keyword in _SINGLES:
        yield from _nodes(node.get(keyword), f"{path}/{keyword}")
