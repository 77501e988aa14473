"""Templates as the tools of a source: read anew, held to every server, each where it can run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.fakes import comfyui_templates
from tests.fakes.comfyui import FakeComfy
from tests.fakes.comfyui_templates import BLUR, SCALE, changed
from tests.unit.adapters.comfyui.comfy_harness import comfy_harness, failure_of
from toolhub_service.adapters.comfyui.client import backend_at
from toolhub_service.adapters.definitions import Overrides
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.sections.source_config import ToolTerms


def offers(comfy: FakeComfy) -> int:
    return len(comfy.submitted)


async def test_a_template_is_a_tool_that_runs_as_a_job_and_is_never_pinned(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path, templates=(BLUR, SCALE), timeout_s=99.0) as harness:
        blur, scale = harness.definitions["blur"], harness.definitions["scale"]
        assert blur.spec.name == "studio/blur"
        assert blur.is_operators
        assert blur.spec.cost.is_async
        assert harness.adapter.resumes(blur.spec)
        assert blur.spec.capabilities == {"comfyui:studio"}
        assert {blur.spec.limits.job_timeout_s, scale.spec.limits.job_timeout_s} == {99.0}
        assert not blur.spec.annotations.read_only
        assert blur.spec.annotations.supports_progress


async def test_a_changed_file_is_a_changed_tool(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path) as harness:
        before = harness.definitions["blur"].spec
        nodes = {"2": {**BLUR["graph"]["2"], "inputs": {**BLUR["graph"]["2"]["inputs"], "blur_radius": 9}}}
        comfyui_templates.write(tmp_path / "templates", changed(BLUR, nodes))
        after = (await harness.read())["blur"].spec
        assert before.digest != after.digest
        await harness.run("blur")
        assert harness.comfy.submitted[0].graph["2"]["inputs"]["blur_radius"] == 9


async def test_a_wrong_sidecar_is_reported_and_affects_no_other(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path) as harness:
        (tmp_path / "templates" / "broken.json").write_text(json.dumps({"tool": "broken", "workflow": 7}))
        discovery = await harness.source.discover()
        assert {definition.spec.resource_id.partition("@")[0] for definition in discovery.definitions} == {
            "blur",
            "scale",
            "paint",
            "note",
        }
        assert any("broken.json" in problem for problem in discovery.problems)


async def test_a_class_that_no_server_has_takes_its_tools_out_of_use(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path) as harness:
        harness.comfy.remove_class("ImageBlur")
        found = await harness.read()
        assert "ImageBlur" in found["blur"].problem
        assert found["scale"].problem == ""


async def test_a_choice_that_a_server_lost_is_found_before_anybody_calls(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path) as harness:
        harness.comfy.change_input("ImageScale", "upscale_method", [["bilinear"]])
        assert "area" in (await harness.read())["scale"].problem


async def test_a_template_runs_only_where_it_can(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path, "0.33.0", "0.33.0") as harness:
        first, second = harness.servers
        first.remove_class("ImageBlur")
        assert (await harness.read())["blur"].problem == ""
        for number in range(4):
            await harness.run("blur", job_id=f"job-{number}")
        assert (offers(first), offers(second)) == (0, 4)


async def test_a_server_that_is_away_makes_the_source_partial_and_all_away_down(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path, "0.33.0", "0.3.64") as harness:
        first, second = harness.servers
        await first.kill()
        discovery = await harness.source.discover()
        assert len(discovery.definitions) == 4
        assert any("gpu-1" in problem for problem in discovery.problems)
        await second.kill()
        with pytest.raises(ToolFailure) as caught:
            await harness.source.discover()
        assert caught.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
        assert any("gpu-1" in line for line in harness.source.diagnostics())


async def test_the_shorter_queue_is_chosen_and_equals_take_turns(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path, "0.33.0", "0.3.64") as harness:
        first, second = harness.servers
        for server in harness.servers:
            server.hold("ImageBlur")
        running = [harness.begin("blur", job_id="job-0")]
        await second.until_submitted()
        running.append(harness.begin("blur", job_id="job-1"))
        await first.until_submitted()
        running.append(harness.begin("blur", job_id="job-2"))
        await second.until_submitted(2)
        running.append(harness.begin("blur", job_id="job-3"))
        await first.until_submitted(2)
        for server in harness.servers:
            server.release()
        await asyncio.wait_for(asyncio.gather(*running), 60)
        for number in range(4, 8):
            await harness.run("blur", job_id=f"job-{number}")
        assert (offers(first), offers(second)) == (4, 4)


async def test_a_server_that_takes_no_connection_is_passed_over(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path, "0.33.0", "0.33.0") as harness:
        first, second = harness.servers
        await first.kill()
        for number in range(3):
            await harness.run("blur", job_id=f"job-{number}")
        assert (offers(first), offers(second)) == (0, 3)
        await second.kill()
        error = await failure_of(harness.begin("blur", job_id="job-9"))
        assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True)
        assert {*error.details["backends"]} == {"gpu-1", "gpu-2"}  # type: ignore[misc]


async def test_the_operators_annotations_of_a_tool_count(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path) as harness:
        terms = {
            "blur": ToolTerms(idempotent=True, capabilities=("art",), timeout_s=5.0),
            "note": ToolTerms(offered=False),
        }
        harness.source._overrides = Overrides(terms)
        found = await harness.read()
        assert "note" not in found
        spec = found["blur"].spec
        assert (spec.annotations.idempotent, {*spec.capabilities}, spec.limits.timeout_s) == (True, {"art"}, 5.0)


def test_credentials_of_a_url_become_a_header_and_the_operators_own_goes_before() -> None:
    backend = backend_at("gpu", "http://me:p%40ss@gpu-1:8188/comfy/", {"X-Key": "k"})
    assert backend.url == "http://gpu-1:8188/comfy"
    assert backend.headers == {"authorization": "Basic bWU6cEBzcw==", "x-key": "k"}
    own = backend_at("gpu", "http://me:x@gpu-1", {"Authorization": "Bearer t"})
    assert own.headers == {"authorization": "Bearer t"}
    assert backend.rule.ports == {8188}
    with pytest.raises(ValueError, match="gpu"):
        _ = backend_at("gpu", "http://", {}).rule
