"""Templates for the fake ComfyUI, written into a folder as their authors would: a graph and a sidecar each.

`blur` makes a picture of nothing and blurs it (five nodes), `scale` scales an uploaded one, `paint` has a seed and
steps, and `note` leaves a text.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

PREFIX = "toolhub/{tenant}/{job_id}/out"


def _closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def _pixels(most: int = 512) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": most}


def _node(class_type: str, title: str = "", **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs, **({"_meta": {"title": title}} if title else {})}


def _blurred(name: str, origin: str) -> dict[str, Any]:
    return _node("ImageBlur", name, image=[origin, 0], blur_radius=3, sigma=1.0)


BLUR: dict[str, Any] = {
    "graph": {
        "1": _node("EmptyImage", "canvas", width=64, height=48, batch_size=1, color=255),
        "2": _blurred("first blur", "1"),
        "3": _blurred("second blur", "2"),
        "4": _blurred("third blur", "3"),
        "5": _node("SaveImage", images=["4", 0], filename_prefix="hub/blur"),
    },
    "sidecar": {
        "tool": "blur",
        "description": "Make a blurred picture of one colour.",
        "input_schema": _closed(width=_pixels(), color={"type": "integer", "minimum": 0, "maximum": 16777215}),
        "bindings": [
            {"from": "/width", "to": "/1/inputs/width", "expect_class": "EmptyImage"},
            {"from": "/color", "to": "/1/inputs/color", "expect_class": "EmptyImage"},
        ],
        "forced": [{"to": "/5/inputs/filename_prefix", "value": PREFIX}],
        "outputs": [{"name": "image", "node": "5", "mime": ["image/png"], "max_items": 4, "max_bytes": 1_000_000}],
    },
}
SCALE: dict[str, Any] = {
    "graph": {
        "1": _node("LoadImage", "input", image="example.png"),
        "2": _node("ImageScale", image=["1", 0], upscale_method="area", width=128, height=96, crop="disabled"),
        "3": _node("SaveImage", images=["2", 0], filename_prefix="hub/scaled"),
    },
    "sidecar": {
        "tool": "scale",
        "description": "Scale an uploaded picture.",
        "input_schema": _closed("image", "width", image={"type": "string", "format": "hub-artifact"}, width=_pixels()),
        "bindings": [
            {"from": "/image", "to": "/1/inputs/image", "expect_class": "LoadImage", "transform": "upload"},
            {"from": "/width", "to": "/2/inputs/width", "expect_class": "ImageScale"},
        ],
        "forced": [{"to": "/3/inputs/filename_prefix", "value": PREFIX}],
        "outputs": [{"name": "image", "node": "3", "mime": ["image/png"]}],
    },
}
PAINT: dict[str, Any] = {
    "graph": {
        "1": _node("CheckpointLoaderSimple", ckpt_name="tiny.safetensors"),
        "2": _node("CLIPTextEncode", "words", text="a boat", clip=["1", 1]),
        "3": _node("CLIPTextEncode", "not these", text="", clip=["1", 1]),
        "4": _node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "5": _node(
            "KSampler",
            "sampler",
            model=["1", 0],
            positive=["2", 0],
            negative=["3", 0],
            latent_image=["4", 0],
            seed=1,
            steps=4,
            cfg=7.0,
            sampler_name="euler",
            scheduler="normal",
            denoise=1.0,
        ),
        "6": _node("VAEDecode", samples=["5", 0], vae=["1", 2]),
        "7": _node("SaveImage", images=["6", 0], filename_prefix="hub/painted"),
    },
    "sidecar": {
        "tool": "paint",
        "description": "Paint what the words say.",
        "input_schema": _closed("words", words={"type": "string", "maxLength": 500}, seed=_pixels(2**53 - 1)),
        "bindings": [{"from": "/words", "to": "/2/inputs/text", "expect_class": "CLIPTextEncode"}],
        "seeds": [{"from": "/seed", "to": "/5/inputs/seed", "expect_class": "KSampler"}],
        "forced": [{"to": "/7/inputs/filename_prefix", "value": PREFIX}],
        "outputs": [{"name": "image", "node": "7", "mime": ["image/png"]}],
    },
}
NOTE: dict[str, Any] = {
    "graph": {
        "1": _node("EmptyImage", width=8, height=8, batch_size=1, color=0),
        "2": _node("PreviewAny", source="nothing"),
        "3": _node("SaveImage", images=["1", 0], filename_prefix="hub/note"),
    },
    "sidecar": {
        "tool": "note",
        "description": "Leave a text.",
        "input_schema": _closed("text", text={"type": "string"}),
        "bindings": [{"from": "/text", "to": "/2/inputs/source", "expect_class": "PreviewAny"}],
        "forced": [{"to": "/3/inputs/filename_prefix", "value": PREFIX}],
        "outputs": [{"name": "words", "node": "2", "key": "text", "type": "text", "max_bytes": 1_000}],
    },
}
ALL = (BLUR, SCALE, PAINT, NOTE)


def changed(template: dict[str, Any], graph: dict[str, Any] | None = None, **sidecar: Any) -> dict[str, Any]:
    """A copy with other nodes and other words in its sidecar."""
    made = copy.deepcopy(template)
    made["graph"] |= graph or {}
    made["sidecar"] |= sidecar
    return made


def write(folder: Path, *templates: dict[str, Any]) -> Path:
    """The folder, with these (all when none is named) in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for template in templates or ALL:
        name = template["sidecar"]["tool"]
        (folder / f"{name}.graph.json").write_text(json.dumps(template["graph"]))
        words = {**template["sidecar"], "workflow": {"file": f"{name}.graph.json"}}
        (folder / f"{name}.json").write_text(json.dumps(words))
    return folder
