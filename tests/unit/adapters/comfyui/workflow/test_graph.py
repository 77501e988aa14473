"""Graphs: what a server would answer with a bare 500, or take and break on, is refused with advice."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import fixtures
from tests.unit.adapters.comfyui.template_files import GRAPH, SIDECAR, graph
from tests.unit.adapters.comfyui.workflow.test_node_classes import INFO
from toolhub_service.adapters.comfyui.workflow.bind_arguments import bind_graph, required_uploads
from toolhub_service.adapters.comfyui.workflow.building import build
from toolhub_service.adapters.comfyui.workflow.draft_sidecar import draft_of
from toolhub_service.adapters.comfyui.workflow.graph import NODES_MAX, graph_problems, links_of, literals_of
from toolhub_service.adapters.comfyui.workflow.node_classes import problems_with
from toolhub_service.adapters.comfyui.workflow.template import Template, TemplateInvalid, read_sidecar
from toolhub_service.schema.canonical_json import digest


def node(class_type: str = "EmptyImage", /, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def test_a_sound_graph_has_no_problem() -> None:
    assert graph_problems(GRAPH) == ()


@pytest.mark.parametrize("name", ["empty_save", "exec_error_oom", "load_scale_save", "long_blur"])
def test_exported_graphs_are_sound(name: str) -> None:
    assert graph_problems(fixtures.load_json("comfyui", "workflows", f"{name}.json")) == ()


def test_the_digest_of_a_graph_is_the_one_that_was_recorded() -> None:
    empty_save = fixtures.load_json("comfyui", "workflows", "empty_save.json")
    assert digest(empty_save).startswith("cad50aca")
    assert digest(empty_save).endswith("8311")


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({"nodes": [], "links": []}, "Workflow → Export (API)"),
        ({"last_node_id": 3, "nodes": [{"id": 1}], "links": [[1, 2]]}, "which a server does not run"),
        ({"prompt": GRAPH, "client_id": "x"}, "keep only the value of `prompt`"),
        ([], "not a JSON object"),
        ({}, "has no nodes"),
        ({str(at): node() for at in range(NODES_MAX + 1)}, "the limit is 2,000"),
        ({"1": []}, "node 1: it has no `class_type`"),
        ({"1": {"class_type": 3, "inputs": {}}}, "node 1: it has no `class_type`"),
        ({"1": {"class_type": "A"}}, "node 1 (A): it has no `inputs`"),
        ({"__proto__": node()}, "an id has"),
        ({"..": node()}, "an id has"),
        ({"1/2": node()}, "an id has"),
        ({"1": node("Empty\u202eImage")}, "invisible characters"),
        ({"1": {"class_type": "A", "inputs": {"wid\u200bth": 1}}}, "invisible characters"),
        ({"1": node(constructor=1)}, "means something else"),
        ({"1": node(image=["2", 0])}, "linked to node '2', which does not exist"),
        ({"1": node(image=["1"])}, "a list must be a link"),
        ({"1": node(image=["1", -1])}, "a list must be a link"),
        ({"1": node(image=[1, 0])}, "a list must be a link"),
        ({"1": node(image=["1", True])}, "a list must be a link"),
        ({"1": node(image=["2", 0]), "2": node(image=["1", 0]), "3": node()}, "nodes 1, 2: they depend on each other"),
        ({"1": node(image=["1", 0])}, "nodes 1: they depend"),
        ({"1": node(api_key="sk-live-1")}, "/1/inputs/api_key: it looks like a secret"),
    ],
)
def test_an_unsound_graph_is_refused_with_advice(broken: Any, expected: str) -> None:
    assert expected in " ".join(graph_problems(broken))


def test_a_literal_secret_is_never_quoted() -> None:
    assert "sk-live-1" not in " ".join(graph_problems({"1": node(api_key="sk-live-1")}))


def test_an_empty_secret_and_a_count_of_tokens_are_none() -> None:
    assert graph_problems({"1": node(api_key="", max_tokens=5)}) == ()


def test_nodes_of_subgraphs_may_be_linked() -> None:
    assert graph_problems({"57:8": node(), "9": node(image=["57:8", 0])}) == ()


def test_at_most_twenty_problems_are_reported() -> None:
    assert len(graph_problems({str(at): {"class_type": "A"} for at in range(100)})) == 20


def test_a_long_chain_of_nodes_is_no_circle() -> None:
    chain = {"0": node()} | {str(at): node(image=[str(at - 1), 0]) for at in range(1, NODES_MAX)}
    assert graph_problems(chain) == ()


def test_links_and_literals_of_a_node_are_distinguished() -> None:
    scale = graph()["2"]
    assert list(links_of(scale)) == [("image", "1", 0)]
    assert dict(literals_of(scale)).keys() == {"upscale_method", "width", "height", "crop"}


SCALARS = st.none() | st.booleans() | st.integers(-3, 9) | st.floats(-9, 9) | st.sampled_from(["", "2", "image", "/a"])
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner), max_leaves=5
)
STEPS = st.lists(st.integers(0, 30), min_size=1, max_size=6)
ARGS: dict[str, Any] = {"image": "art_1", "width": 3, "method": "area"}


def changed(document: Any, steps: list[int], value: Any) -> Any:
    """A copy with the part that the steps lead to replaced."""
    whole = copy.deepcopy(document)
    at = whole
    for step in steps:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        key = keys[step % len(keys)]
        if step == steps[-1] or not isinstance(at[key], dict | list) or not at[key]:
            at[key] = value
            break
        at = at[key]
    return whole


def read(words: Any, nodes: Any) -> Template | None:
    try:
        return build(read_sidecar(words), words, nodes, "a.json")
    except TemplateInvalid as invalid:
        problems = invalid.problems
    assert problems
    assert all(problem.strip() for problem in problems)
    return None


@given(steps=STEPS, value=ANYTHING)
@settings(max_examples=100, deadline=None)
def test_a_sidecar_is_read_or_refused_with_a_reason(steps: list[int], value: Any) -> None:
    template = read(changed(SIDECAR, steps, value), GRAPH)
    if template is not None:
        problems_with(template, INFO)
        if {binding.source for binding in template.bindings} <= {"/image", "/width", "/height", "/method"}:
            uploads = {upload.artifact_id: "x.png" for upload in required_uploads(template, ARGS)}
            graph = bind_graph(
                template, ARGS, uploads=uploads, seeds=lambda: 1, names={"tenant": "t", "job_id": "j"}
            ).graph
            assert [list(links_of(node)) for node in graph.values()] == [
                list(links_of(node)) for node in GRAPH.values()
            ]


@given(steps=STEPS, value=ANYTHING)
@settings(max_examples=100, deadline=None)
def test_a_graph_is_read_or_refused_with_a_reason(steps: list[int], value: Any) -> None:
    nodes = changed(GRAPH, steps, value)
    template = read(SIDECAR, nodes)
    if template is not None:
        problems_with(template, INFO)
    if not graph_problems(nodes):
        skeleton = draft_of(nodes, "draw", "g.json", INFO)
        assert not skeleton["outputs"] or read(skeleton, nodes) is not None


@given(steps=STEPS, value=ANYTHING)
@settings(max_examples=100, deadline=None)
def test_any_description_of_nodes_by_a_server_is_tolerated(steps: list[int], value: Any) -> None:
    template = read(SIDECAR, GRAPH)
    assert template is not None
    node_classes = changed(INFO, steps, value)
    assert all(isinstance(problem, str) for problem in problems_with(template, node_classes))
    skeleton = draft_of(GRAPH, "draw", "g.json", node_classes)
    assert not skeleton["outputs"] or read(skeleton, GRAPH) is not None
