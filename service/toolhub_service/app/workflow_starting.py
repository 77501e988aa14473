"""A first sidecar for an exported graph, for `toolhub workflows init`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import yaml

from toolhub_service.adapters.comfyui.drafting import draft_of
from toolhub_service.adapters.comfyui.graph import GRAPH_MAX_BYTES, GRAPH_MAX_DEPTH, graph_problems
from toolhub_service.adapters.comfyui.template import TemplateInvalid
from toolhub_service.adapters.comfyui.texts import read_value
from toolhub_service.domain.json import JsonObject

OBJECT_INFO_MAX_BYTES: Final = 64 * 1024 * 1024
_DEPTH_MAX: Final = 64
_WIDTH: Final = 110
_HEADING: Final = """\
# A tool made of {file}. Say what it does, take out the arguments that nobody should choose,
# each with its binding, narrow and describe the others, then: toolhub workflows check {name}
"""


def read_object_info(path: Path) -> JsonObject:
    """A saved answer of GET /object_info. Raises TemplateInvalid."""
    try:
        found = read_value(path, max_bytes=OBJECT_INFO_MAX_BYTES, max_depth=_DEPTH_MAX)
    except TemplateInvalid as invalid:
        raise TemplateInvalid(*(f"{path}: {problem}" for problem in invalid.problems)) from None
    if not isinstance(found, dict) or not all(isinstance(told, dict) and "input" in told for told in found.values()):
        raise TemplateInvalid(f"{path}: it is no answer of /object_info: save one with `curl <server>/object_info`")
    return found


def first_sidecar(graph: Path, sidecar: Path, name: str, object_info: JsonObject | None) -> str:
    """The sidecar's text, YAML. Raises TemplateInvalid."""
    try:
        nodes = read_value(graph, max_bytes=GRAPH_MAX_BYTES, max_depth=GRAPH_MAX_DEPTH)
    except TemplateInvalid as invalid:
        raise TemplateInvalid(*(f"{graph}: {problem}" for problem in invalid.problems)) from None
    unsound = graph_problems(nodes)
    if unsound or not isinstance(nodes, dict):
        raise TemplateInvalid(*(f"{graph}: {problem}" for problem in unsound))
    file = os.path.relpath(graph.resolve(), sidecar.resolve().parent)
    words = draft_of(nodes, name, file, object_info)
    if not words["outputs"]:
        raise TemplateInvalid(f"{graph}: no node of it saves or previews anything: add one, such as Save Image")
    text = yaml.safe_dump(words, sort_keys=False, default_flow_style=None, width=_WIDTH, allow_unicode=True)
    return _HEADING.format(file=file, name=sidecar.name) + str(text)
