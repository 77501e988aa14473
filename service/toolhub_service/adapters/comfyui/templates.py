"""Templates from files and folders.

In a folder, every YAML file is a sidecar, and of JSON files those that have `tool` or `workflow`; graphs may lie beside
them. A folder is not searched below, and what begins with a dot is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from toolhub_service.adapters.comfyui.building import build
from toolhub_service.adapters.comfyui.graph import GRAPH_MAX_BYTES, GRAPH_MAX_DEPTH, is_nodes, is_of_editor
from toolhub_service.adapters.comfyui.sidecar import read_sidecar
from toolhub_service.adapters.comfyui.template import Template, TemplateInvalid
from toolhub_service.adapters.comfyui.texts import is_yaml, read_value
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.registry.names import skeleton
from toolhub_service.schema.refusal import MAX_SCHEMA_DEPTH

SIDECAR_MAX_BYTES: Final = 1024 * 1024
FILES_MAX: Final = 1_000
_SUFFIXES: Final = frozenset({".json", ".yaml", ".yml"})


def load_template(path: Path) -> Template:
    """The template that this sidecar (JSON or YAML) and the graph it names are. Raises TemplateInvalid."""
    words = _words(path)
    if is_of_editor(words) or is_nodes(words):
        raise TemplateInvalid(
            f"it is a graph, and the sidecar beside it is meant: `toolhub workflows init {path.name}` writes one"
        )
    return _built(path, words)


def load_templates(places: Sequence[str]) -> tuple[list[Template], list[str]]:
    """Templates of sidecar files and of folders of them, in order of their files; and what could not be read, a
    sentence each that begins with the file. Of two with names that read alike the second is left out and told."""
    found: dict[str, Template] = {}
    problems: list[str] = []
    for path in _files(places, problems):
        try:
            template = _of_folder(path) if path.parent in _folders(places) else load_template(path)
        except TemplateInvalid as invalid:
            problems.extend(f"{path}: {problem}" for problem in invalid.problems)
            continue
        if template is None:
            continue
        first = found.setdefault(skeleton(template.name), template)
        if first is not template:
            problems.append(f"{path}: `{template.name}` reads like `{first.name}` of {first.path}; rename one of them")
    return list(found.values()), problems


def _folders(places: Sequence[str]) -> set[Path]:
    return {path for path in map(_expanded, places) if path.is_dir()}


def _expanded(place: str) -> Path:
    return Path(place).expanduser()


def _files(places: Sequence[str], problems: list[str]) -> Iterator[Path]:
    """Each file once."""
    seen: dict[Path, None] = {}
    for path in map(_expanded, places):
        if not path.is_dir():
            seen.setdefault(path)
            continue
        try:
            inside = sorted(below for below in path.iterdir() if _may_be_sidecar(below))
        except OSError as failed:
            problems.append(f"{path}: the folder cannot be read: {failed.strerror}")
            continue
        if len(inside) > FILES_MAX:
            problems.append(f"{path}: it has {len(inside):,} files; {FILES_MAX:,} at most are read")
        seen.update(dict.fromkeys(inside[:FILES_MAX]))
    yield from seen


def _may_be_sidecar(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES and not path.name.startswith(".") and path.is_file()


def _of_folder(path: Path) -> Template | None:
    """None for a JSON file that is no sidecar, such as a graph. Raises TemplateInvalid."""
    words = _words(path)
    is_sidecar = is_yaml(path) or (
        isinstance(words, Mapping) and not is_nodes(words) and not words.keys().isdisjoint({"tool", "workflow"})
    )
    return _built(path, words) if is_sidecar else None


def _words(path: Path) -> JsonValue:
    """A graph that was named in the place of its sidecar may be larger than one."""
    return read_value(path, max_bytes=GRAPH_MAX_BYTES, max_depth=MAX_SCHEMA_DEPTH)


def _built(path: Path, words: JsonValue) -> Template:
    sidecar = read_sidecar(words)
    assert isinstance(words, Mapping)  # else it would have been refused
    return build(sidecar, words, _graph(path.parent / Path(sidecar.workflow.file).expanduser()), str(path))


def _graph(path: Path) -> JsonObject:
    try:
        graph = read_value(path, max_bytes=GRAPH_MAX_BYTES, max_depth=GRAPH_MAX_DEPTH)
    except TemplateInvalid as invalid:
        raise TemplateInvalid(*(f"workflow.file: {path}: {problem}" for problem in invalid.problems)) from None
    return graph  # type: ignore[return-value]  # `build` judges it
