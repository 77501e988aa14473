"""Binding: declared places only, links and nodes as exported, forced values last, seeds drawn and recorded."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.adapters.comfyui.template_files import GRAPH, SIDECAR, graph, made, property_of
from toolhub_service.adapters.comfyui.workflow.bind_arguments import BoundGraph, Upload, bind_graph, required_uploads
from toolhub_service.adapters.comfyui.workflow.graph import graph_problems, links_of
from toolhub_service.adapters.comfyui.workflow.template import Template
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.schema.canonical_json import digest
from toolhub_service.schema.compiled import compile_schema

NAMES = {"tenant": "t1", "job_id": "job_1"}
SCALARS = st.one_of(
    st.integers(), st.text(max_size=20), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)
)
WRITTEN = {"/1/inputs/image", "/2/inputs/width", "/2/inputs/height", "/2/inputs/upscale_method"} | {
    "/3/inputs/filename_prefix",
    "/4/inputs/seed",
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return made(tmp_path_factory.mktemp("template"))


def sent(template: Template, args: dict[str, Any], seed: int = 41, **names: str) -> BoundGraph:
    return bind_graph(
        template, args, uploads={"art_1": "toolhub/t1/ab.png"}, seeds=lambda: seed, names={**NAMES, **names}
    )


def literals(nodes: Any) -> dict[str, Any]:
    return {
        f"/{node}/inputs/{name}": value
        for node, body in nodes.items()
        for name, value in body["inputs"].items()
        if not isinstance(value, list)
    }


def test_arguments_uploads_seeds_and_forced_values_stand_where_they_were_declared(template: Template) -> None:
    made = sent(template, {"image": "art_1", "width": 3, "height": 4, "method": "area"})
    literal = literals(made.graph)
    assert literal["/1/inputs/image"] == "toolhub/t1/ab.png"
    assert (literal["/2/inputs/width"], literal["/2/inputs/height"], literal["/2/inputs/upscale_method"]) == (
        3,
        4,
        "area",
    )
    assert literal["/3/inputs/filename_prefix"] == "toolhub/t1/job_1/out"
    assert literal["/4/inputs/seed"] == 41
    assert made.seeds == {"/4/inputs/seed": 41}
    assert made.prefixes == {"/3/inputs/filename_prefix": "toolhub/t1/job_1/out"}
    assert made.sha256 == digest(made.graph)


def test_omitted_or_null_arguments_stay_as_exported(template: Template) -> None:
    made = sent(template, {"image": "art_1", "width": 3, "method": None})
    assert literals(made.graph)["/2/inputs/upscale_method"] == "bilinear"
    assert literals(made.graph)["/2/inputs/height"] == 96


def test_a_seed_that_is_given_is_used_and_recorded(template: Template) -> None:
    assert sent(template, {"image": "art_1", "width": 3, "seed": 5}).seeds == {"/4/inputs/seed": 5}


def test_seeds_of_one_argument_share_what_is_drawn_and_others_do_not(tmp_path: Path) -> None:
    noise = {"class_type": "Noise", "inputs": {"seed": 0, "noise_seed": 0}}
    seeds = [
        {"to": "/4/inputs/seed", "expect_class": "Noise", "from": "/seed"},
        {"to": "/5/inputs/seed", "expect_class": "Noise", "from": "/seed"},
        {"to": "/5/inputs/noise_seed", "expect_class": "Noise", "maximum": 9},
    ]
    several = made(tmp_path, graph(n5=noise), seeds=seeds)
    drawn = iter([100, 207])
    args: dict[str, Any] = {"image": "art_1", "width": 3}
    result = bind_graph(several, args, uploads={"art_1": "x"}, seeds=lambda: next(drawn), names=NAMES)
    assert result.seeds == {"/4/inputs/seed": 100, "/5/inputs/seed": 100, "/5/inputs/noise_seed": 7}


def test_each_artifact_is_uploaded_once(template: Template) -> None:
    assert required_uploads(template, {"image": "art_1", "width": 1}) == (Upload("/image", "art_1"),)
    assert required_uploads(template, {"width": 1}) == ()


def test_one_artifact_of_two_arguments_is_uploaded_once(tmp_path: Path) -> None:
    schema = property_of("mask", type="string", format="hub-artifact")
    mask = {"class_type": "LoadImageMask", "inputs": {"image": "m.png", "channel": "red"}}
    to_mask = {"from": "/mask", "to": "/5/inputs/image", "expect_class": "LoadImageMask", "transform": "upload"}
    two = made(tmp_path, graph(n5=mask), input_schema=schema, bindings=[*SIDECAR["bindings"], to_mask], limits=None)
    assert len(required_uploads(two, {"image": "art_1", "mask": "art_1"})) == 1
    assert len(required_uploads(two, {"image": "art_1", "mask": "art_2"})) == 2


def test_any_value_is_bound_as_text_by_the_transform_json(tmp_path: Path) -> None:
    to_text = {"from": "/method", "to": "/4/inputs/text", "expect_class": "Noise", "transform": "json"}
    schema = property_of("method", type="array")
    as_text = made(tmp_path, input_schema=schema, bindings=[*SIDECAR["bindings"][:3], to_text])
    made_graph = sent(as_text, {"image": "art_1", "width": 3, "method": ["1", 0]}).graph
    assert literals(made_graph)["/4/inputs/text"] == '["1",0]'


@pytest.mark.parametrize("value", [["1", 0], {"__value__": ["1", 0]}])
def test_a_link_in_disguise_is_refused_even_if_the_schema_let_it_pass(value: Any, template: Template) -> None:
    with pytest.raises(ToolFailure) as refused:
        sent(template, {"image": "art_1", "width": value})
    assert refused.value.error.kind is ErrorKind.INVALID_INPUT
    assert refused.value.error.message == "/width must be text, a number or a boolean."


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a b", "x" * 200])
def test_a_value_in_a_placeholder_cannot_redirect_its_binding(name: str, template: Template) -> None:
    with pytest.raises(ValueError, match="part of a file path"):
        sent(template, {"image": "art_1", "width": 1}, tenant=name)


def test_braces_of_a_forced_text_that_name_nothing_stay(tmp_path: Path) -> None:
    forced = [{"to": "/4/inputs/text", "value": "a {red|blue} {tenant} car"}]
    made_graph = sent(made(tmp_path, forced=forced), {"image": "art_1", "width": 1}).graph
    assert literals(made_graph)["/4/inputs/text"] == "a {red|blue} t1 car"


@pytest.mark.promise("comfyui.only-declared-places")
@given(width=SCALARS, method=SCALARS, seed=st.none() | st.integers(0, 2**53 - 1), drawn=st.integers(0, 2**53 - 1))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_binding_touches_nothing_but_declared_places(
    template: Template, width: Any, method: Any, seed: int | None, drawn: int
) -> None:
    args = {"image": "art_1", "width": width, "method": method, "seed": seed, "tenant": "x", "class_type": "y"}
    made_graph = sent(template, args, drawn).graph
    assert graph_problems(made_graph) == ()
    assert made_graph.keys() == GRAPH.keys()
    for node, body in GRAPH.items():
        after: Any = made_graph[node]
        assert after["class_type"] == body["class_type"]
        assert after["inputs"].keys() == body["inputs"].keys()
        assert list(links_of(after)) == list(links_of(body))
    untouched = {at: value for at, value in literals(made_graph).items() if at not in WRITTEN}
    assert untouched == {at: value for at, value in literals(GRAPH).items() if at not in WRITTEN}
    assert literals(made_graph)["/3/inputs/filename_prefix"] == "toolhub/t1/job_1/out"


@given(order=st.permutations(["image", "width", "height", "method"]))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_digest_does_not_depend_on_the_order_of_arguments(template: Template, order: list[str]) -> None:
    args: dict[str, Any] = {"image": "art_1", "width": 3, "height": 4, "method": "area"}
    assert sent(template, {name: args[name] for name in order}).sha256 == sent(template, args).sha256


def test_the_template_is_left_as_it_was(template: Template) -> None:
    before = copy.deepcopy(dict(template.graph))
    sent(template, {"image": "art_1", "width": 3})
    assert template.graph == before


def test_every_argument_that_the_schema_lets_pass_can_be_bound(template: Template) -> None:
    args: dict[str, Any] = {"image": "art_1", "width": 4096, "height": 1, "method": "area", "seed": 2**53 - 1}
    assert compile_schema(template.input_schema).is_valid(args)
    assert sent(template, args).seeds == {"/4/inputs/seed": 2**53 - 1}
