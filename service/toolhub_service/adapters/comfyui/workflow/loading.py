"""Templates from files and folders.

In a folder, every YAML file is a sidecar, and so is a JSON file with `tool` or `workflow`; graphs may lie beside them.
Subfolders and files whose names begin with a dot are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from toolhub_service.adapters.comfyui.workflow.building import build
from toolhub_service.adapters.comfyui.workflow.graph import (
    GRAPH_MAX_BYTES,
    GRAPH_MAX_DEPTH,
    is_api_format,
    is_editor_format,
)
from toolhub_service.adapters.comfyui.workflow.strict_files import is_yaml, read_value
from toolhub_service.adapters.comfyui.workflow.template import Template, TemplateInvalid, read_sidecar
from toolhub_service.domain.json import JsonValue
from toolhub_service.registry.names import skeleton
from toolhub_service.schema.references import MAX_SCHEMA_DEPTH

FILES_MAX: Final = 1_000
_SUFFIXES: Final = frozenset({".json", ".yaml", ".yml"})


def load_template(path: Path) -> Template:
    """Return the template of this sidecar (JSON or YAML) and the graph that it names. Raises TemplateInvalid."""
    words = _sidecar_data(path)
    if is_editor_format(words) or is_api_format(words):
        raise TemplateInvalid(
            f"it is a graph, and the sidecar beside it is meant: `toolhub workflows init {path.name}` writes one"
        )
    return _build_template(path, words)


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
    return _build_template(path, words) if is_sidecar else None


def _sidecar_data(path: Path) -> JsonValue:
    """Read with the limit for graphs, because a graph may be given by mistake instead of its sidecar."""
    return read_value(path, max_bytes=GRAPH_MAX_BYTES, max_depth=MAX_SCHEMA_DEPTH)


def _build_template(path: Path, words: JsonValue) -> Template:
    sidecar = read_sidecar(words)
    assert isinstance(words, Mapping)  # otherwise it would have been refused
    file = path.parent / Path(sidecar.workflow.file).expanduser()
    try:
        graph = read_value(file, max_bytes=GRAPH_MAX_BYTES, max_depth=GRAPH_MAX_DEPTH)
    except TemplateInvalid as invalid:
        raise TemplateInvalid(*(f"workflow.file: {file}: {problem}" for problem in invalid.problems)) from None
    return build(sidecar, words, graph, str(path))
