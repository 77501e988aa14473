"""A first sidecar: it is a valid template as it stands, and guesses nothing that could open or break anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures
from tests.unit.adapters.comfyui.template_files import GRAPH
from tests.unit.adapters.comfyui.test_node_classes import INFO
from toolhub_service.adapters.comfyui.node_classes import problems_with
from toolhub_service.adapters.comfyui.template import OutputType, Template
from toolhub_service.adapters.comfyui.templates import load_template
from toolhub_service.adapters.comfyui.workflows import PREFIX, draft_of

DRAWING: dict[str, Any] = {
    "3": {
        "class_type": "KSampler",
        "inputs": {
            "seed": 7,
            "steps": 20,
            "cfg": 8.0,
            "sampler_name": "euler",
            "model": ["4", 0],
            "positive": ["6", 0],
        },
    },
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd.safetensors"}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["4", 1]}, "_meta": {"title": "Wanted"}},
    "7": {
        "class_type": "CLIPTextEncode",
        "inputs": {"text": "blurry", "clip": ["4", 1]},
        "_meta": {"title": "Not"},
    },
    "9": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "ComfyUI"}},
    "10": {"class_type": "PreviewImage", "inputs": {"images": ["3", 0]}},
}


def read(folder: Path, nodes: Any, object_info: Any = None) -> Template:
    (folder / "g.json").write_text(json.dumps(nodes))
    (folder / "s.json").write_text(json.dumps(draft_of(nodes, "draw", "g.json", object_info)))
    return load_template(folder / "s.json")


def test_texts_numbers_and_seeds_become_arguments_and_models_do_not(tmp_path: Path) -> None:
    template = read(tmp_path, DRAWING)
    properties: Any = template.input_schema["properties"]
    assert properties.keys() == {"steps", "cfg", "wanted_text", "not_text", "seed"}
    assert template.input_schema["required"] == ["wanted_text", "not_text"]
    assert (properties["steps"]["type"], properties["cfg"]["type"]) == ("integer", "number")
    assert (properties["steps"]["default"], properties["steps"]["maximum"]) == (20, 80)
    assert [seed.target.pointer for seed in template.seeds] == ["/3/inputs/seed"]


def test_files_are_named_by_the_hub_and_every_end_of_the_graph_is_an_output(tmp_path: Path) -> None:
    template = read(tmp_path, DRAWING)
    assert [(one.target.pointer, one.value) for one in template.forced] == [("/9/inputs/filename_prefix", PREFIX)]
    assert [(output.name, output.type) for output in template.outputs] == [
        ("images_9", OutputType.OUTPUT),
        ("images_10", OutputType.TEMP),
    ]
    assert template.warnings == ("description: it is still to be written; models choose tools by it",)


def test_with_the_servers_nodes_bounds_and_choices_are_its_own(tmp_path: Path) -> None:
    template = read(tmp_path, GRAPH, INFO)
    properties: Any = template.input_schema["properties"]
    assert properties["width"]["maximum"] == 16384
    assert properties["upscale_method"]["enum"] == ["nearest-exact", "bilinear", "area", "bicubic"]
    assert properties["image"]["format"] == "hub-artifact"
    assert properties["seed"]["maximum"] == 2**53 - 1
    assert problems_with(template, INFO) == ()


def test_a_seed_that_the_node_bounds_is_drawn_within(tmp_path: Path) -> None:
    knows = {**INFO, "Noise": {**INFO["Noise"], "input": {"required": {"seed": ["INT", {"min": 0, "max": 99}]}}}}
    template = read(tmp_path, GRAPH, knows)
    assert template.seeds[0].maximum == 99
    assert problems_with(template, knows) == ()


@pytest.mark.parametrize("name", ["empty_save", "exec_error_oom", "load_scale_save", "long_blur"])
def test_the_skeleton_of_a_recorded_graph_is_a_template(name: str, tmp_path: Path) -> None:
    nodes = fixtures.load_json("comfyui", "workflows", f"{name}.json")
    template = read(tmp_path, nodes)
    assert template.node_classes == {node["class_type"] for node in nodes.values()}
    assert len(set(template.input_schema["required"])) <= len(template.bindings)  # type: ignore[arg-type]  # a list


def test_nodes_that_bear_one_title_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    blur = {"class_type": "ImageBlur", "inputs": {"sigma": 3.0}, "_meta": {"title": "blur"}}
    template = read(tmp_path, {"1": blur, "2": blur, "3": DRAWING["9"] | {"inputs": {"filename_prefix": "x"}}})
    assert {binding.source for binding in template.bindings} == {"/blur_sigma_1", "/blur_sigma_2"}
