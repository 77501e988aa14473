"""A template as an author writes it, and ways to write it otherwise."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from toolhub_service.adapters.comfyui.workflow.loading import load_template
from toolhub_service.adapters.comfyui.workflow.template import Template, TemplateInvalid

GRAPH: dict[str, Any] = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "example.png"}, "_meta": {"title": "input image"}},
    "2": {
        "class_type": "ImageScale",
        "inputs": {"image": ["1", 0], "upscale_method": "bilinear", "width": 128, "height": 96, "crop": "disabled"},
    },
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "hub/scaled"}},
    "4": {"class_type": "Noise", "inputs": {"image": ["1", 0], "seed": 7, "text": "a {red|blue} car"}},
}
SIDECAR: dict[str, Any] = {
    "tool": "comfyui/scale_image",
    "version": "1.2.0",
    "description": "Scale an uploaded image.",
    "workflow": {"file": "scale.graph.json"},
    "input_schema": {
        "type": "object",
        "additionalProperties": False,
        "required": ["image", "width"],
        "properties": {
            "image": {"type": "string", "format": "hub-artifact"},
            "width": {"type": "integer", "minimum": 1, "maximum": 4096},
            "height": {"type": "integer", "minimum": 1, "maximum": 4096, "default": 512},
            "method": {"enum": ["nearest-exact", "bilinear", "area"]},
            "seed": {"type": "integer", "minimum": 0, "maximum": 2**53 - 1},
        },
    },
    "bindings": [
        {"from": "/image", "to": "/1/inputs/image", "expect_class": "LoadImage", "transform": "upload"},
        {"from": "/width", "to": "/2/inputs/width", "expect_class": "ImageScale"},
        {"from": "/height", "to": "/2/inputs/height", "expect_class": "ImageScale"},
        {"from": "/method", "to": "/2/inputs/upscale_method", "expect_class": "ImageScale"},
    ],
    "forced": [{"to": "/3/inputs/filename_prefix", "value": "toolhub/{tenant}/{job_id}/out"}],
    "seeds": [{"to": "/4/inputs/seed", "expect_class": "Noise", "from": "/seed"}],
    "outputs": [{"name": "image", "node": "3", "mime": ["image/png"], "max_items": 4}],
    "limits": {"node_class_allowlist": ["LoadImage", "ImageScale", "SaveImage", "Noise"], "max_runtime_s": 300},
}


def sidecar(**changes: Any) -> dict[str, Any]:
    """A copy of its own; a change to None takes the key out."""
    made = {**copy.deepcopy(SIDECAR), **changes}
    return {key: value for key, value in made.items() if value is not None}


def graph(**nodes: Any) -> dict[str, Any]:
    """A copy of its own, with these nodes by `n<id>`."""
    return {**copy.deepcopy(GRAPH), **{name.removeprefix("n"): node for name, node in nodes.items()}}


def write(folder: Path, words: Any = None, nodes: Any = None, name: str = "scale.json") -> Path:
    """The sidecar's path."""
    (folder / "scale.graph.json").write_text(json.dumps(GRAPH if nodes is None else nodes))
    path = folder / name
    path.write_text(json.dumps(SIDECAR if words is None else words))
    return path


def made(folder: Path, nodes: Any = None, **changes: Any) -> Template:
    return load_template(write(folder, sidecar(**changes), nodes))


def problems(folder: Path, nodes: Any = None, **changes: Any) -> tuple[str, ...]:
    with pytest.raises(TemplateInvalid) as refused:
        made(folder, nodes, **changes)
    return refused.value.problems


def property_of(name: str, **words: Any) -> dict[str, Any]:
    """The input schema with one argument declared otherwise."""
    schema: dict[str, Any] = copy.deepcopy(SIDECAR["input_schema"])
    schema["properties"][name] = words
    return schema
