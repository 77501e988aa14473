"""policy.yaml text to a document, strictly: the safe YAML loader, no duplicate keys, no aliases, bounded size.

YAML drops the first of two equal keys silently (yaml/pyyaml#165) and aliases can expand without bound (the "billion
laughs"); in a file that says who may delete what, both are refused. Errors name path, line and the nearest key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec
import yaml

from toolhub_service.domain.json import JsonValue
from toolhub_service.guards.yaml_faults import yaml_fault
from toolhub_service.guards.yaml_scalars import quotes_advice
from toolhub_service.policy.document import PolicyDocument
from toolhub_service.policy.soundness import find_semantic_errors

MAX_TEXT_CHARS = 1024 * 1024

Lines = dict[str, int]
"""From a path such as `$.rules[3].when` to its line, from 1."""


class InvalidPolicy(ValueError):
    """The document is not a valid policy, and the one in force stays. `str()` of the error is meant for an operator."""

    def __init__(self, problem: str, path: str = "", line: int | None = None) -> None:
        self.problem = problem
        self.path = path
        """A path such as `rules[3].when`; empty for the whole document."""
        self.line = line
        """From 1; None where the document was not text."""
        at = ", ".join(part for part in (f"line {line}" if line else "", path) if part)
        super().__init__(f"{at}: {problem}" if at else problem)


class _StrictLoader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]  # a gap of the stubs
            raise InvalidPolicy("aliases are not supported: write the value out", line=line)
        return super().compose_node(parent, index)


def parse_policy(source: str | Mapping[str, JsonValue]) -> tuple[PolicyDocument, Lines]:
    """Return the document of YAML text, or of data already loaded. Raises InvalidPolicy."""
    if isinstance(source, str):
        data, lines = _load(source)
    else:
        data, lines = source, {}
    try:
        document = msgspec.convert(data, PolicyDocument)
    except msgspec.ValidationError as error:
        raise explain_invalid_value(str(error), lines) from None
    for path, problem in find_semantic_errors(document):
        raise invalid(problem, path, lines)
    return document, lines


def invalid(problem: str, path: str, lines: Lines) -> InvalidPolicy:
    """Return the error for a place in the document, with the line of the nearest enclosing key."""
    place = path
    while place and place not in lines:
        place = re.sub(r"(\[[^\]]*\]|\.[^.\[]*|\$)$", "", place)
    return InvalidPolicy(problem, path.removeprefix("$").removeprefix("."), lines.get(place))


def _load(text: str) -> tuple[JsonValue, Lines]:
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidPolicy(f"the file has {len(text)} characters; at most {MAX_TEXT_CHARS} are read")
    lines: Lines = {}
    loader: Any = None
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        data = None if node is None else _value(loader, node, "$", lines)
        return {} if data is None else data, lines
    except yaml.MarkedYAMLError as error:
        what, line, column = yaml_fault(error)
        raise InvalidPolicy(
            f"not YAML: {what} (column {column})" if line else f"not YAML: {what}", line=line or None
        ) from None
    except yaml.YAMLError as error:
        raise InvalidPolicy(f"not YAML: {error}") from None
    except RecursionError:
        raise InvalidPolicy("nested too deeply") from None
    except (ValueError, OverflowError) as error:
        if isinstance(error, InvalidPolicy):
            raise
        raise InvalidPolicy("a value looks like a date or number and is not one; put it in quotes") from None
    finally:
        if loader is not None:
            loader.dispose()


def _value(loader: Any, node: yaml.Node, path: str, lines: Lines) -> JsonValue:
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        return _mapping(loader, node, path, lines)
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_value(loader, item, f"{path}[{index}]", lines) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        scalar: JsonValue = loader.construct_object(node, deep=True)
        if scalar is None or isinstance(scalar, bool | int | float | str):
            return scalar
    raise invalid(f"unsupported YAML type {node.tag.rsplit(':', 1)[-1]}: put the value in quotes", path, lines)


def _mapping(loader: Any, node: yaml.MappingNode, path: str, lines: Lines) -> JsonValue:
    found: dict[str, JsonValue] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = loader.construct_object(key_node, deep=True) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str) or key_node.tag == "tag:yaml.org,2002:merge":
            raise InvalidPolicy("keys must be plain names", path.removeprefix("$").removeprefix("."), line)
        if key in found:
            first = lines[f"{path}.{key}"]
            where = f"lines {first} and {line}" if first != line else f"line {line}"
            problem = f"`{key}` appears twice ({where}); merge the two"
            raise InvalidPolicy(problem, path.removeprefix("$").removeprefix("."), line)
        found[key] = _value(loader, value_node, f"{path}.{key}", lines)
        lines[f"{path}.{key}"] = line
    return found


def explain_invalid_value(message: str, lines: Lines) -> InvalidPolicy:
    problem, _, place = message.partition(" - at ")
    path = place.strip("`") or "$"
    unknown = re.search(r"unknown field `(.*)`", problem)
    if unknown is None:
        return invalid(quotes_advice(problem) + _near_choice(problem, path), path, lines)
    key = unknown.group(1)
    known = _keys_at(path)
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
    return invalid(f"unknown key `{key}`; {hint}", f"{path}.{key}", lines)


def _near_choice(problem: str, path: str) -> str:
    """Return the choice that an invalid value may have meant; empty for any other problem."""
    written = re.search(r"^Invalid enum value '(.*)'", problem, re.DOTALL)
    kind = _type_at(path)
    if written is None or not isinstance(kind, msgspec.inspect.LiteralType):
        return ""
    choices = {str(choice).casefold(): choice for choice in kind.values}
    near = get_close_matches(written.group(1).casefold(), choices, n=1, cutoff=0.5)
    return f"; did you mean `{choices[near[0]]}`?" if near else f"; allowed: {', '.join(map(str, kind.values))}"


def _type_at(path: str) -> msgspec.inspect.Type:
    """Return the type at a path of the document."""
    kind = msgspec.inspect.type_info(PolicyDocument)
    for step in re.findall(r"\.(\w+)|\[", path):
        kind = _inner(kind, step)
    return kind


def _keys_at(path: str) -> list[str]:
    """Return the known keys of the section at a path."""
    kind = _type_at(path)
    return [field.encode_name for field in kind.fields] if isinstance(kind, msgspec.inspect.StructType) else []


def _inner(kind: msgspec.inspect.Type, step: str) -> msgspec.inspect.Type:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _inner(kind.type, step)
    if isinstance(kind, msgspec.inspect.StructType) and step:
        kind = next((field.type for field in kind.fields if field.encode_name == step), kind)
    elif isinstance(kind, msgspec.inspect.VarTupleType) and not step:
        kind = kind.item_type
    return kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind
