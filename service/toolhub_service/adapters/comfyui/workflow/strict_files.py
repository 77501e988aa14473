"""JSON and YAML files of templates, parsed strictly: bounded, no duplicate keys, aliases or tags, JSON values only.

Templates come from other people's repositories: one must not prevent the reading of others, nor take minutes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, cast

import yaml

from toolhub_service.adapters.comfyui.workflow.template import TemplateInvalid
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.schema.canonical_json import NotJson, dumps
from toolhub_service.schema.strict_json import loads

YAML_MAX_BYTES: Final = 256 * 1024
"""Parsing YAML takes some 20 microseconds a byte; JSON may be larger."""
_YAML: Final = frozenset({".yaml", ".yml"})
# YAML has sexagesimal numbers, whose parsing time grows with the square of their length.
_NUMBER_MAX_CHARS: Final = 64
_INTEGER: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"


def is_yaml(path: Path) -> bool:
    return path.suffix.lower() in _YAML


def read_value(path: Path, *, max_bytes: int, max_depth: int) -> JsonValue:
    """Return the value in the file: YAML by its suffix, else JSON. Raises TemplateInvalid."""
    data = _read_file(path, min(max_bytes, YAML_MAX_BYTES) if is_yaml(path) else max_bytes)
    if not is_yaml(path):
        try:
            return loads(data, max_bytes=max_bytes, max_depth=max_depth)
        except ToolFailure as failure:
            raise TemplateInvalid(f"it cannot be read: {failure.error.message}") from None
    value = _load_yaml(data)
    try:
        loads(dumps(value), max_bytes=2 * max_bytes, max_depth=max_depth)
    except (NotJson, ToolFailure):
        raise TemplateInvalid(
            f"it has a value that JSON cannot express, such as a date (put it in quotes), or more than {max_depth} "
            "levels"
        ) from None
    return cast("JsonValue", value)  # in the author's order, which callers see


def _read_file(path: Path, max_bytes: int) -> bytes:
    try:
        if not path.is_file():
            raise TemplateInvalid("the file does not exist" if not path.exists() else "it is not a regular file")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as failed:
        raise TemplateInvalid(f"it cannot be read: {os.strerror(failed.errno or 0)}") from None
    if len(data) > max_bytes:
        raise TemplateInvalid(f"it has more than {max_bytes:,} bytes")
    return data


def _load_yaml(data: bytes) -> Any:
    try:
        return yaml.load(data.decode("utf-8"), _Strict)  # noqa: S506 - a SafeLoader
    except UnicodeDecodeError:
        raise TemplateInvalid("it is not UTF-8") from None
    except yaml.MarkedYAMLError as broken:
        mark = broken.problem_mark or broken.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise TemplateInvalid(f"it is not YAML: {broken.problem or broken.context}{where}") from None
    except (yaml.YAMLError, ValueError, OverflowError):
        raise TemplateInvalid(
            "it is not YAML, or a value looks like a date or number and is not one; put it in quotes"
        ) from None
    except RecursionError:
        raise TemplateInvalid("it is nested too deeply") from None


class _Strict(yaml.SafeLoader):
    """Refuses aliases, which may expand without limit; tags, which change the type of a value; and duplicate keys, of
    which only the last would count."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # a gap of the stubs
        if isinstance(event, yaml.events.AliasEvent):
            raise _yaml_error("aliases are not supported: write the value out", event)
        if getattr(event, "tag", None) is not None:
            raise _yaml_error("tags are not supported: write the plain value", event)
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and node.tag in (_INTEGER, _FLOAT) and len(node.value) > _NUMBER_MAX_CHARS:
            raise _yaml_error("a number is too long", event)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(None, None, "a key must be text; quote it", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"`{key.value[:64]}` appears twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _yaml_error(why: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, why, event.start_mark)
