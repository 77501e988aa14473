"""Templates from files: their content, what is refused, and that each refusal states place, problem and remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import fixtures
from tests.unit.adapters.comfyui.template_files import (
    GRAPH,
    SIDECAR,
    graph,
    made,
    problems,
    property_of,
    sidecar,
    write,
)
from tests.unit.adapters.comfyui.workflow.test_node_classes import INFO
from toolhub_service.adapters.comfyui.workflow.building import result_schema
from toolhub_service.adapters.comfyui.workflow.draft_sidecar import PREFIX, draft_of
from toolhub_service.adapters.comfyui.workflow.loading import load_template, load_templates
from toolhub_service.adapters.comfyui.workflow.node_classes import problems_with
from toolhub_service.adapters.comfyui.workflow.template import OutputType, Template, TemplateInvalid, Transform
from toolhub_service.schema.canonical_json import digest
from toolhub_service.schema.compiled import compile_schema

BIND = SIDECAR["bindings"]


def bindings(at: int, **changes: Any) -> list[Any]:
    return [{**binding, **changes} if index == at else binding for index, binding in enumerate(BIND)]


def test_a_template_is_what_sidecar_and_graph_say(tmp_path: Path) -> None:
    template = made(tmp_path)
    assert (template.name, template.version) == ("scale_image", "1.2.0")
    assert template.bindings[0].transform is Transform.UPLOAD
    assert template.bindings[1].target.pointer == "/2/inputs/width"
    assert template.node_classes == {"LoadImage", "ImageScale", "SaveImage", "Noise"}
    assert template.limits.max_runtime_s == 300
    assert template.outputs[0].type is OutputType.OUTPUT
    assert template.class_of("2") == "ImageScale"
    assert template.warnings == ()


def test_the_example_of_the_recordings_is_read(tmp_path: Path) -> None:
    words = fixtures.load_json("comfyui", "templates", "scale_image.json")
    nodes = fixtures.load_json("comfyui", "workflows", "load_scale_save.json")
    words["workflow"] = {"file": "scale.graph.json", "sha256": digest(nodes)}
    template = load_template(write(tmp_path, words, nodes))
    assert template.workflow_sha256 == digest(nodes)
    assert template.warnings == ()


def test_yaml_and_json_print_the_same(tmp_path: Path) -> None:
    as_json = load_template(write(tmp_path))
    path = tmp_path / "other.yaml"
    path.write_text(yaml.safe_dump(SIDECAR))
    assert load_template(path).sha256 == as_json.sha256


def test_the_digest_changes_with_graph_and_sidecar_but_not_with_the_order_of_keys(tmp_path: Path) -> None:
    first = made(tmp_path)
    turned = {key: GRAPH[key] for key in reversed(GRAPH)}
    assert made(tmp_path, turned).sha256 == first.sha256
    assert made(tmp_path, graph(n5={"class_type": "Noise", "inputs": {}})).sha256 != first.sha256
    assert made(tmp_path, description="Another.").sha256 != first.sha256


def test_the_schema_of_results_is_made_from_the_outputs(tmp_path: Path) -> None:
    outputs = [*SIDECAR["outputs"], {"name": "words", "node": "4", "key": "text", "type": "text"}]
    template = made(tmp_path, outputs=outputs)
    assert template.output_schema == result_schema(template.outputs)
    file: dict[str, Any] = {
        "artifact": "art_1",
        "media_type": "image/png",
        "bytes": 3,
        "sha256": "0",
        "filename": "a.png",
    }
    schema = compile_schema(template.output_schema)
    assert schema.is_valid({"image": [file], "words": ["said"]})
    assert not schema.is_valid({"image": [], "words": ["said"]})
    assert not schema.is_valid({"image": [file]})


def test_a_given_schema_of_results_is_kept(tmp_path: Path) -> None:
    assert made(tmp_path, output_schema={"type": "object"}).output_schema == {"type": "object"}


def test_classes_of_the_graph_are_allowed_by_default(tmp_path: Path) -> None:
    template = made(tmp_path, limits=None)
    assert template.limits.node_class_allowlist == template.node_classes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bindngs": []}, "unknown key `bindngs`; did you mean `bindings`?"),
        (
            {"outputs": [{"name": "a", "node": "3", "mimes": []}]},
            "outputs[0]: unknown key `mimes`; did you mean `mime`",
        ),
        ({"description": None}, "description"),
        ({"outputs": []}, "outputs"),
        ({"tool": "../x"}, "tool"),
        ({"tool": "sca\u200ble"}, "tool"),
        ({"tool": "Images/x"}, "tool"),
        ({"version": "one"}, "version"),
        ({"workflow": {"file": "none.json"}}, "workflow.file"),
        ({"workflow": {"file": "scale.graph.json", "sha256": "<digest>"}}, f"the one of this graph is {digest(GRAPH)}"),
        ({"workflow": {"file": "scale.graph.json", "sha256": "0" * 64}}, f"then set {digest(GRAPH)}"),
        ({"input_schema": {"type": "object", "properties": {}}}, "additionalProperties"),
        ({"input_schema": {"type": "array"}}, '"type": "object"'),
        ({"input_schema": {"type": "object", "properties": 3}}, "input_schema: it cannot be used"),
        ({"input_schema": property_of("extra", type="string")}, "argument /extra has no binding"),
        ({"input_schema": property_of("api_key", type="string")}, "argument /api_key: it looks like a secret"),
        ({"input_schema": property_of("__proto__", type="string")}, "means something else to programs"),
        ({"input_schema": property_of("wi\u200bdth", type="string")}, "invisible characters"),
        (
            {"input_schema": property_of("height", type="integer", default="tall")},
            "/height: its default does not",
        ),
        ({"unused": ["/none"]}, "unused: input_schema declares no argument /none"),
        ({"unused": ["/width"]}, "/width is bound, so it is used"),
        ({"output_schema": {"type": 3}}, "output_schema: it cannot be used"),
        ({"limits": {"node_class_allowlist": ["LoadImage"]}}, "the graph has ImageScale, Noise, SaveImage"),
        ({"outputs": [{"name": "a", "node": "9"}]}, "outputs[0]: there is no node 9"),
        (
            {"outputs": [{"name": "a", "node": "3", "expect_class": "PreviewImage"}]},
            "is of class SaveImage, not Preview",
        ),
        ({"outputs": SIDECAR["outputs"] * 2}, "two outputs are named `image`"),
        (
            {"outputs": [{"name": "a", "node": "3", "min_items": 9, "max_items": 2}]},
            "min_items is greater than max_items",
        ),
        ({"forced": [{"to": "/3/inputs/filename_prefix", "value": "a/../../b"}]}, "no `..`"),
        ({"forced": [{"to": "/3/inputs/filename_prefix", "value": "/tmp/b"}]}, "no `/` first"),
        (
            {"forced": [{"to": "/2/inputs/width", "value": 3}]},
            "bindings[1]: /2/inputs/width is already set by forced[0]",
        ),
        ({"forced": [{"to": "/2/inputs/width", "value": [3]}]}, "forced[0].value"),
    ],
)
def test_a_contradictory_template_is_refused(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert expected in " ".join(problems(tmp_path, **changes))


@pytest.mark.parametrize(
    ("at", "changes", "expected"),
    [
        (1, {"to": "/9/inputs/width"}, "bindings[1]: there is no node 9: the graph was exported again"),
        (1, {"to": "/9/inputs/width"}, "ImageScale is now 2"),
        (1, {"to": "/3/inputs/width"}, "node 3 is of class SaveImage, not ImageScale"),
        (1, {"to": "/2/inputs/widht"}, "did you mean `width`?"),
        (1, {"to": "/2/inputs/image"}, "is a link from node 1"),
        (1, {"to": "/2/inputs/image/0"}, "is not an input: write"),
        (1, {"to": "/2/class_type"}, "is not an input: write"),
        (1, {"to": "/2/inputs/~2"}, "bindings"),
        (1, {"from": "/wide"}, "input_schema declares no argument /wide"),
        (1, {"from": "/width/deeper"}, "input_schema declares no argument /width/deeper"),
        (1, {"transform": "upload"}, "require each other: set both or neither"),
        (0, {"transform": ""}, "require each other: set both or neither"),
        (1, {"transform": "downcase"}, "transform"),
        (1, {"expect_class": ""}, "expect_class"),
        (2, {"to": "/2/inputs/width"}, "is already set by bindings[1]"),
        (3, {"to": "/3/inputs/filename_prefix", "expect_class": "SaveImage"}, "names files"),
    ],
)
def test_a_binding_that_leads_elsewhere_is_refused(at: int, changes: Any, expected: str, tmp_path: Path) -> None:
    forced: list[Any] = []
    assert expected in " ".join(problems(tmp_path, bindings=bindings(at, **changes), forced=forced))


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"type": "array"},
        {"type": ["string", "object"]},
        {"enum": ["a", ["1", 0]]},
        {"anyOf": [{"type": "string"}, {}]},
    ],
)
def test_an_argument_that_could_be_a_link_is_not_bound(words: Any, tmp_path: Path) -> None:
    problems_found = problems(tmp_path, input_schema=property_of("method", **words))
    assert "which ComfyUI takes for a link" in " ".join(problems_found)


@pytest.mark.parametrize(
    "words",
    [{"type": "string"}, {"const": "area"}, {"anyOf": [{"type": "string"}, {"type": "null"}]}, {"$ref": "#/$defs/m"}],
)
def test_an_argument_that_is_a_literal_is_bound(words: Any, tmp_path: Path) -> None:
    schema = {**property_of("method", **words), "$defs": {"m": {"type": "string"}}}
    assert made(tmp_path, input_schema=schema).bindings[3].source == "/method"


def test_a_name_of_the_callers_choice_opens_no_file(tmp_path: Path) -> None:
    problems_found = problems(
        tmp_path, input_schema=property_of("image", type="string"), bindings=bindings(0, transform="")
    )
    assert "opens anybody's" in " ".join(problems_found)
    listed = property_of("image", enum=["a.png"])
    assert made(tmp_path, input_schema=listed, bindings=bindings(0, transform="")).name == "scale_image"


def test_arguments_inside_arguments_are_bound_one_by_one(tmp_path: Path) -> None:
    size = {"type": "object", "properties": {"w": {"type": "integer"}, "h": {"type": "integer"}}}
    schema = property_of("width", **size)
    two_bindings = bindings(1, **{"from": "/width/w"})
    assert "argument /width/h has no binding" in " ".join(
        problems(tmp_path, input_schema=schema, bindings=two_bindings)
    )
    assert (
        made(tmp_path, input_schema=schema, bindings=two_bindings, unused=["/width/h"]).bindings[1].source == "/width/w"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"type": "string"}, "a seed is an integer"),
        ({"type": "integer", "default": 3}, "no seed is ever generated"),
    ],
)
def test_a_seed_is_a_number_that_may_be_left_out(words: Any, expected: str, tmp_path: Path) -> None:
    assert expected in " ".join(problems(tmp_path, input_schema=property_of("seed", **words)))


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    problems_found = problems(tmp_path, bindings=bindings(1, to="/9/inputs/width"), seeds=[], unused=["/none"])
    assert len(problems_found) == 3


@pytest.mark.parametrize(
    "forced", [[], [{"to": "/3/inputs/filename_prefix", "value": "toolhub/{tenant}/out"}]], ids=["none", "no job"]
)
def test_file_names_that_do_not_change_with_the_job_are_warned_of(forced: Any, tmp_path: Path) -> None:
    (warning,) = made(tmp_path, forced=forced).warnings
    assert "answers with old files" in warning
    assert "force /3/inputs/filename_prefix to `toolhub/{tenant}/{job_id}/out`" in warning


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tool: a\ntool: b\n", "`tool` appears twice (line 2"),
        ("a: &x [1]\nb: *x\n", "aliases are not supported"),
        ("when: 2020-01-01\n", "put it in quotes"),
        ("1: a\n", "a key must be text"),
        ("a: [\n", "it is not YAML"),
        ("- a\n", "the sidecar must be an object"),
        ("", "the sidecar must be an object"),
        ("sources: {}\n", "toolhub workflows check --sources FILE"),
        ("a: " + "[" * 4000 + "]" * 4000, "nested too deeply"),
        ("a: " + "[" * 70 + "]" * 70, "levels"),
    ],
)
def test_yaml_is_read_strictly(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(TemplateInvalid) as refused:
        load_template(path)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b'{"a": 1, "a": 2}', "twice"), (b"\xff", "UTF-8"), (b"{", "ends too early"), (b"[" * 5_000_000, "bytes")],
)
def test_json_is_read_strictly(data: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(TemplateInvalid) as refused:
        load_template(path)
    assert expected in str(refused.value)


def test_a_graph_in_the_place_of_its_sidecar_is_answered_with_the_command_that_writes_one(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps(GRAPH))
    with pytest.raises(TemplateInvalid, match=r"toolhub workflows init g\.json"):
        load_template(path)


def test_a_workflow_as_the_editor_saves_it_is_refused_with_advice(tmp_path: Path) -> None:
    assert "Export (API)" in " ".join(problems(tmp_path, {"nodes": [], "links": []}))


def test_a_folder_gives_its_sidecars_and_what_is_wrong_with_the_others(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "broken.yaml").write_text("tool: x\n")
    (tmp_path / "editor.json").write_text('{"nodes": [], "links": []}')
    (tmp_path / "twin.json").write_text(json.dumps(sidecar(tool="Scale-Image")))
    (tmp_path / ".hidden.json").write_text("{")
    (tmp_path / "notes.txt").write_text("x")
    found, problems = load_templates([str(tmp_path)])
    assert [template.name for template in found] == ["scale_image"]
    assert [Path(problem.partition(":")[0]).name for problem in problems] == ["broken.yaml", "twin.json"]
    assert "reads like `scale_image`" in problems[1]


def test_a_file_that_is_named_and_found_counts_once_and_a_missing_one_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path)
    found, problems = load_templates([str(path), str(tmp_path), str(tmp_path / "none.yaml")])
    assert len(found) == 1
    assert problems == [f"{tmp_path / 'none.yaml'}: the file does not exist"]


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
    assert template.warnings == ("description: it is missing; models choose tools by it",)


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


def test_nodes_with_one_title_are_distinguished_by_their_ids(tmp_path: Path) -> None:
    blur = {"class_type": "ImageBlur", "inputs": {"sigma": 3.0}, "_meta": {"title": "blur"}}
    template = read(tmp_path, {"1": blur, "2": blur, "3": DRAWING["9"] | {"inputs": {"filename_prefix": "x"}}})
    assert {binding.source for binding in template.bindings} == {"/blur_sigma_1", "/blur_sigma_2"}
