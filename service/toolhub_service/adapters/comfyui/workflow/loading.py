"""Templates from files and folders.

In a folder, every YAML file is a sidecar, and so is a JSON file with `tool` or `workflow`; graphs may lie beside them.
Subfolders and files whose names begin with a dot are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import yaml

from toolhub_service.adapters.comfyui.workflow.building import build
from toolhub_service.adapters.comfyui.workflow.graph import (
    GRAPH_MAX_BYTES,
    GRAPH_MAX_DEPTH,
    is_api_format,
    is_editor_format,
)
from toolhub_service.adapters.comfyui.workflow.template import Template, TemplateInvalid, read_sidecar
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.registry.catalog import skeleton
from toolhub_service.schema.canonical_json import NotJson, dumps
from toolhub_service.schema.references import MAX_SCHEMA_DEPTH
from toolhub_service.schema.strict_json import loads

# JSON and YAML files of templates, parsed strictly: bounded, without duplicate keys, aliases and tags, JSON values
# only.
#
# Templates come from other people's repositories: one must not prevent the reading of others, nor take minutes.

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
    data = _read(path, min(max_bytes, YAML_MAX_BYTES) if is_yaml(path) else max_bytes)
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


def _read(path: Path, max_bytes: int) -> bytes:
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
            raise _refused("aliases are not supported: write the value out", event)
        if getattr(event, "tag", None) is not None:
            raise _refused("tags are not supported: write the plain value", event)
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and node.tag in (_INTEGER, _FLOAT) and len(node.value) > _NUMBER_MAX_CHARS:
            raise _refused("a number is too long", event)
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


def _refused(why: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, why, event.start_mark)


FILES_MAX: Final = 1_000
_SUFFIXES: Final = frozenset({".json", ".yaml", ".yml"})


def load_template(path: Path) -> Template:
    """Return the template of this sidecar (JSON or YAML) and the graph that it names. Raises TemplateInvalid."""
    words = _sidecar_data(path)
    if is_editor_format(words) or is_api_format(words):
        raise TemplateInvalid(
            f"it is a graph, and the sidecar beside it is meant: `toolhub workflows init {path.name}` writes one"
        )
    return _built(path, words)


def load_templates(places: Sequence[str]) -> tuple[list[Template], list[str]]:
    """Return the templates of sidecar files and of folders, in order of their files; and a sentence for each problem,
    which begins with the file. Of two whose names look alike the second is left out and reported."""
    found: dict[str, Template] = {}
    problems: list[str] = []
    for path, is_named in _files(places, problems).items():
        try:
            template = load_template(path) if is_named else _of_folder(path)
        except TemplateInvalid as invalid:
            problems.extend(f"{path}: {problem}" for problem in invalid.problems)
            continue
        if template is None:
            continue
        first = found.setdefault(skeleton(template.name), template)
        if first is not template:
            problems.append(f"{path}: `{template.name}` reads like `{first.name}` of {first.path}; rename one of them")
    return list(found.values()), problems


def _files(places: Sequence[str], problems: list[str]) -> dict[Path, bool]:
    """Return each file once, with whether it is named explicitly; one that was only found in a folder is not."""
    paths = [Path(place).expanduser() for place in places]
    folders = {path for path in paths if path.is_dir()}
    seen: dict[Path, bool] = {}
    for path in paths:
        if path not in folders:
            seen.setdefault(path, path.parent not in folders)
            continue
        try:
            inside = sorted(
                below
                for below in path.iterdir()
                if below.suffix.lower() in _SUFFIXES and not below.name.startswith(".") and below.is_file()
            )
        except OSError as failed:
            problems.append(f"{path}: the folder cannot be read: {failed.strerror}")
            continue
        if len(inside) > FILES_MAX:
            problems.append(f"{path}: it has {len(inside):,} files; {FILES_MAX:,} at most are read")
        for below in inside[:FILES_MAX]:
            seen.setdefault(below, False)
    return seen


def _of_folder(path: Path) -> Template | None:
    """Return the template; None for a JSON file that is no sidecar, such as a graph. Raises TemplateInvalid."""
    words = _sidecar_data(path)
    is_sidecar = is_yaml(path) or (
        isinstance(words, Mapping) and not is_api_format(words) and not words.keys().isdisjoint({"tool", "workflow"})
    )
    return _built(path, words) if is_sidecar else None


def _sidecar_data(path: Path) -> JsonValue:
    """Read with the limit for graphs, because a graph may be given by mistake instead of its sidecar."""
    return read_value(path, max_bytes=GRAPH_MAX_BYTES, max_depth=MAX_SCHEMA_DEPTH)


def _built(path: Path, words: JsonValue) -> Template:
    sidecar = read_sidecar(words)
    assert isinstance(words, Mapping)  # otherwise it would have been refused
    file = path.parent / Path(sidecar.workflow.file).expanduser()
    try:
        graph = read_value(file, max_bytes=GRAPH_MAX_BYTES, max_depth=GRAPH_MAX_DEPTH)
    except TemplateInvalid as invalid:
        raise TemplateInvalid(*(f"workflow.file: {file}: {problem}" for problem in invalid.problems)) from None
    return build(sidecar, words, graph, str(path))
