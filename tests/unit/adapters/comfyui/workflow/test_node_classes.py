"""Templates before a server's /object_info, as two versions were recorded, and before invented ones."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures
from tests.unit.adapters.comfyui.template_files import GRAPH, SIDECAR, graph, made, property_of
from toolhub_service.adapters.comfyui.workflow.node_classes import problems_with

VERSIONS = ("v0.3.64", "v0.33.0")
INFO: dict[str, Any] = {
    "LoadImage": {
        "input": {"required": {"image": [["a.png"], {"image_upload": True}]}},
        "output": ["IMAGE", "MASK"],
        "output_node": False,
    },
    "ImageScale": {
        "input": {
            "required": {
                "image": ["IMAGE"],
                "upscale_method": [["nearest-exact", "bilinear", "area", "bicubic"]],
                "width": ["INT", {"min": 0, "max": 16384}],
                "height": ["INT", {"min": 0, "max": 16384}],
                "crop": ["COMBO", {"options": ["disabled", "center"]}],
            }
        },
        "output": ["IMAGE"],
        "output_node": False,
    },
    "SaveImage": {
        "input": {"required": {"images": ["IMAGE"], "filename_prefix": ["STRING", {}]}},
        "output": [],
        "output_node": True,
    },
    "Noise": {
        "input": {
            "required": {"image": ["IMAGE"], "seed": ["INT", {"min": 0, "max": 2**64 - 1}], "text": ["STRING", {}]},
            "optional": {"strength": ["FLOAT", {"min": 0.0, "max": 1.0}]},
        },
        "output": ["IMAGE"],
        "output_node": False,
    },
}


def info(node_class: str, name: str, terms: Any) -> dict[str, Any]:
    """The same server, with one input described otherwise; None takes it out."""
    changed = copy.deepcopy(INFO)
    inputs = changed[node_class]["input"]["required"]
    inputs.pop(name, None)
    if terms is not None:
        inputs[name] = terms
    return changed


def recorded(version: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for event in fixtures.load_json("comfyui", "transcripts", version, "c00_introspection.json")["events"]:
        if event["path"].startswith("/object_info/"):
            found |= event["response"]
    return found


def problem_text(folder: Path, knows: dict[str, Any] | None = None, nodes: Any = None, **changes: Any) -> str:
    return "\n".join(problems_with(made(folder, nodes, **changes), INFO if knows is None else knows))


def test_a_template_within_what_the_server_takes_has_no_problem(tmp_path: Path) -> None:
    assert problem_text(tmp_path) == ""


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorded_example_fits_the_recorded_server(version: str, tmp_path: Path) -> None:
    words = fixtures.load_json("comfyui", "templates", "scale_image.json")
    words["workflow"] = {"file": "scale.graph.json"}
    nodes = fixtures.load_json("comfyui", "workflows", "load_scale_save.json")
    assert problem_text(tmp_path, recorded(version), nodes, **words) == ""
    words["input_schema"]["properties"]["width"]["maximum"] = 16385
    words["input_schema"]["properties"]["method"]["enum"].append("cubic")
    wider = problem_text(tmp_path, recorded(version), nodes, **words)
    assert "say `maximum: 16384` or less" in wider
    assert "the server has no 'cubic'" in wider


def test_a_class_that_the_server_lacks_is_the_only_problem_reported(tmp_path: Path) -> None:
    knows = {name: described for name, described in INFO.items() if name != "Noise"}
    assert problem_text(tmp_path, knows) == "the server has no class Noise: install its custom node, or remove it"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"type": "integer"}, "say `minimum: 0`"),
        ({"type": "integer", "minimum": 0}, "say `maximum: 16384` or less"),
        ({"type": "integer", "minimum": -1, "maximum": 5}, "say `minimum: 0`"),
        ({"type": "number", "minimum": 0, "maximum": 5}, "say `type: integer`"),
        ({"type": "string"}, "say `type: integer`"),
        ({"enum": [1, 20000]}, "takes at most 16384"),
        ({"enum": [1, "2"]}, "'2' is not of a type that the node accepts: INT"),
        ({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 2}, {"type": "integer", "minimum": 1}]}, "16384"),
    ],
)
def test_an_argument_that_allows_more_than_the_node_is_reported(words: Any, expected: str, tmp_path: Path) -> None:
    found = problem_text(tmp_path, input_schema=property_of("width", **words))
    assert found.startswith("argument /width allows more than /2/inputs/width: ")
    assert expected in found


@pytest.mark.parametrize(
    "words",
    [
        {"type": "integer", "minimum": 0, "maximum": 16384},
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 5},
        {"enum": [1, 2]},
        {"const": 5},
        {"anyOf": [{"const": 1}, {"type": "integer", "minimum": 4, "maximum": 5}]},
        {"type": ["integer", "null"], "minimum": 4, "maximum": 5},
    ],
)
def test_an_argument_that_allows_less_than_the_node_is_no_problem(words: Any, tmp_path: Path) -> None:
    assert problem_text(tmp_path, input_schema=property_of("width", **words)) == ""


@pytest.mark.parametrize("form", [[["area", "bilinear"]], ["COMBO", {"options": ["area", "bilinear"]}]])
def test_choices_are_read_in_the_old_form_and_the_new(form: Any, tmp_path: Path) -> None:
    knows = info("ImageScale", "upscale_method", form)
    assert "the server has no 'nearest-exact': it has area, bilinear" in problem_text(tmp_path, knows)
    assert problem_text(tmp_path, knows, input_schema=property_of("method", enum=["area"])) == ""
    assert "list them with `enum`" in problem_text(tmp_path, knows, input_schema=property_of("method", type="string"))


@pytest.mark.parametrize(
    "form", [["COMBO", {"remote": {}}], ["COMBO", {"options": ["x"], "multiselect": True}], ["ODD"], []]
)
def test_inputs_that_a_server_describes_incompletely_are_tolerated(form: Any, tmp_path: Path) -> None:
    assert problem_text(tmp_path, info("ImageScale", "upscale_method", form)) == ""


@pytest.mark.parametrize(
    ("knows", "expected"),
    [
        (info("ImageScale", "width", None), "ImageScale has no input `width` on the server"),
        (info("ImageScale", "width", ["IMAGE"]), "takes IMAGE by a link; no argument can be put there"),
        (info("ImageScale", "extra", ["INT", {}]), "node 2 (ImageScale) lacks the input `extra`"),
        (info("Noise", "seed", ["INT", {"min": 0, "max": 2**32 - 1}]), "say `maximum: 4294967295`"),
        (info("LoadImage", "image", ["INT", {}]), "takes INT, not the name of an upload"),
        (info("ImageScale", "upscale_method", [[], {"image_upload": True}]), ""),
        (info("Noise", "text", [["x"], {}]), "/4/inputs/text: the server has no 'a {red|blue} car': it has x"),
        (info("Noise", "text", ["IMAGE"]), "/4/inputs/text: the node takes IMAGE by a link, and a literal stands"),
        ({**INFO, "LoadImage": {**INFO["LoadImage"], "output": []}}, "node 1 has 0 outputs, and this takes number 1"),
        ({**INFO, "SaveImage": {**INFO["SaveImage"], "output_node": False}}, "node 3 (SaveImage) is no output node"),
    ],
)
def test_arguments_that_the_server_takes_otherwise_are_reported(knows: Any, expected: str, tmp_path: Path) -> None:
    found = problem_text(tmp_path, knows)
    assert expected in found
    assert bool(found) == bool(expected)


def test_a_file_name_of_a_server_input_is_not_the_callers_to_choose(tmp_path: Path) -> None:
    knows = info("Noise", "text", [["x"], {"video_upload": True}])
    to_text = {"from": "/method", "to": "/4/inputs/text", "expect_class": "Noise"}
    changes: dict[str, Any] = {"bindings": [*SIDECAR["bindings"][:3], to_text]}
    assert "opens anybody's" in problem_text(
        tmp_path, knows, input_schema=property_of("method", type="string"), **changes
    )


def test_a_literal_that_every_call_replaces_is_not_checked(tmp_path: Path) -> None:
    assert (
        problem_text(tmp_path, None, graph(n2={**GRAPH["2"], "inputs": {**GRAPH["2"]["inputs"], "width": 99999}})) == ""
    )
    assert "/2/inputs/crop" in problem_text(
        tmp_path, None, graph(n2={**GRAPH["2"], "inputs": {**GRAPH["2"]["inputs"], "crop": "diagonal"}})
    )


def test_inputs_that_a_node_grows_by_itself_pass(tmp_path: Path) -> None:
    grown = {"class_type": "Noise", "inputs": {"image": ["1", 0], "seed": 7, "text": "", "strength.a": 3}}
    assert problem_text(tmp_path, None, graph(n4=grown)) == ""


def test_at_most_twenty_problems_are_reported(tmp_path: Path) -> None:
    lacking = {f"n{at}": {"class_type": "Noise", "inputs": {"seed": 1}} for at in range(10, 60)}
    assert len(problems_with(made(tmp_path, graph(**lacking)), INFO)) == 20
