"""JSON and YAML files of templates, read strictly: bounded, no key twice, no aliases, JSON values only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, cast

import yaml

from toolhub_service.adapters.comfyui.template import TemplateInvalid
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.schema.canonical_json import NotJson, dumps
from toolhub_service.schema.strict_json import loads

_YAML: Final = frozenset({".yaml", ".yml"})


def is_yaml(path: Path) -> bool:
    return path.suffix.lower() in _YAML


def read_value(path: Path, *, max_bytes: int, max_depth: int) -> JsonValue:
    """What the file holds: YAML by its suffix, else JSON. Raises TemplateInvalid."""
    data = _read(path, max_bytes)
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
            f"it holds what JSON has no word for, such as a date, which belongs in quotes; or it has more than "
            f"{max_depth} levels"
        ) from None
    return cast(JsonValue, value)  # in the author's order, which is the one that callers see


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        if not path.is_file():
            raise TemplateInvalid("there is no such file" if not path.exists() else "it is no regular file")
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
        raise TemplateInvalid("it is not YAML, or a value is not what it looks like; put it in quotes") from None
    except RecursionError:
        raise TemplateInvalid("it is nested too deeply") from None


class _Strict(yaml.SafeLoader):
    """Refuses aliases, which may expand without bound, and a key that stands twice, of which the last would count."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # a gap of the stubs
            raise yaml.constructor.ConstructorError(None, None, "aliases are not read: write the value out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(None, None, "a key must be text; quote it", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"`{key.value[:64]}` stands twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)
