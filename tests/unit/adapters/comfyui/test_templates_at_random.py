"""Sidecars, graphs and servers' answers with any part replaced by anything: told or read, never anything else."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.adapters.comfyui.template_files import GRAPH, SIDECAR
from tests.unit.adapters.comfyui.test_node_classes import INFO
from toolhub_service.adapters.comfyui.arguments import bound, uploads_of
from toolhub_service.adapters.comfyui.building import build
from toolhub_service.adapters.comfyui.graph import graph_problems, links_of
from toolhub_service.adapters.comfyui.node_classes import problems_with
from toolhub_service.adapters.comfyui.template import Template, TemplateInvalid, read_sidecar
from toolhub_service.adapters.comfyui.workflows import draft_of

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
        told = invalid.problems
    assert told
    assert all(problem.strip() for problem in told)
    return None


@given(steps=STEPS, value=ANYTHING)
@settings(max_examples=100, deadline=None)
def test_a_sidecar_is_read_or_told(steps: list[int], value: Any) -> None:
    template = read(changed(SIDECAR, steps, value), GRAPH)
    if template is not None:
        problems_with(template, INFO)
        if {binding.source for binding in template.bindings} <= {"/image", "/width", "/height", "/method"}:
            uploads = {upload.artifact_id: "x.png" for upload in uploads_of(template, ARGS)}
            graph = bound(template, ARGS, uploads=uploads, seeds=lambda: 1, names={"tenant": "t", "job_id": "j"}).graph
            assert [list(links_of(node)) for node in graph.values()] == [
                list(links_of(node)) for node in GRAPH.values()
            ]


@given(steps=STEPS, value=ANYTHING)
@settings(max_examples=100, deadline=None)
def test_a_graph_is_read_or_told(steps: list[int], value: Any) -> None:
    nodes = changed(GRAPH, steps, value)
    template = read(SIDECAR, nodes)
    if template is not None:
        problems_with(template, INFO)
    if not graph_problems(nodes):
        skeleton = draft_of(nodes, "draw", "g.json", INFO)
        assert not skeleton["outputs"] or read(skeleton, nodes) is not None


@given(steps=STEPS, value=ANYTHING)
@settings(max_examples=100, deadline=None)
def test_whatever_a_server_says_of_its_nodes_is_lived_with(steps: list[int], value: Any) -> None:
    template = read(SIDECAR, GRAPH)
    assert template is not None
    told = changed(INFO, steps, value)
    assert all(isinstance(problem, str) for problem in problems_with(template, told))
    skeleton = draft_of(GRAPH, "draw", "g.json", told)
    assert not skeleton["outputs"] or read(skeleton, GRAPH) is not None
