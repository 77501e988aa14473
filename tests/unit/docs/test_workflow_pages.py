"""docs/comfyui.md and docs/n8n.md: their steps are taken as they stand, before servers that do as the real ones do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import code_facts
import httpx
import pytest
import yaml
from click.testing import CliRunner, Result

from tests import fixtures
from tests.fakes.comfyui import fake_comfyui
from tests.fakes.comfyui.png import Picture, encoded
from tests.fakes.n8n import fake_n8n
from tests.hub import RunningHub, running_hub
from tests.unit.docs.pages_of_docs import DOCS, fences
from toolhub_service.app.config_files.sources_file import parse_sources
from toolhub_service.cli.root import toolhub
from toolhub_service.policy.decide import PolicySnapshot

COMFYUI, N8N = DOCS / "comfyui.md", DOCS / "n8n.md"
SERVER = "http://gpu-1:8188"


def steps(page: Path) -> str:
    """What is done in five minutes."""
    return page.read_text("utf-8").partition("## In five minutes")[2].partition("\n## ")[0]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", steps(page), re.DOTALL)


def commands(page: Path) -> list[str]:
    return [line for block in blocks(page, "sh") for line in block.splitlines()]


async def run(line: str, **env: str) -> Result:
    words = shlex.split(line)
    result = await asyncio.to_thread(CliRunner().invoke, toolhub, words[1:], env=env)
    assert result.exit_code == 0, f"{line}: {result.output}"
    return result


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """The reader's folder."""
    with contextlib.chdir(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("page", [COMFYUI, N8N], ids=lambda page: page.name)
def test_every_example_is_one_that_the_hub_reads(page: Path) -> None:
    for example in fences(page, "yaml"):
        data = yaml.safe_load(example)
        if "sources" in data:
            assert parse_sources(example, page.name).sources
        elif "grants" in data:
            assert PolicySnapshot.load(example).revision
        else:
            assert data["tool"]


@pytest.mark.parametrize("page", [COMFYUI, N8N], ids=lambda page: page.name)
def test_every_message_is_one_that_the_check_says(page: Path) -> None:
    table = page.read_text("utf-8").partition("| message of the check |")[2].partition("\n\n")[0]
    documented = re.findall(r"^\| `([^|]+)` \|", table, re.MULTILINE)
    assert documented
    known = code_facts.words()
    assert [part for part in documented if not any(part in text for text in known)] == []


async def test_a_graph_is_a_governed_tool_after_the_steps_of_the_guide(here: Path) -> None:
    async with fake_comfyui("0.33.0") as comfy:
        await _write_comfyui_files(here, comfy.url)
        sidecar, sources, policy = blocks(COMFYUI, "yaml")
        _, init, check, check_all, *_ = commands(COMFYUI)
        first = await run(init)
        assert "Wrote scale_image.yaml" in first.output
        one = f"toolhub workflows check scale_image.yaml {_last_option(check)}"
        assert json.loads((await run(f"{one} --json")).stdout)["ok"]
        (here / "scale_image.yaml").write_text(sidecar)
        (tool,) = json.loads((await run(f"{check} --json")).stdout)["tools"]
        assert (tool["problems"], tool["warnings"]) == ([], [])
        (here / "sources.yaml").write_text(sources.replace(SERVER, comfy.url))
        (named,) = json.loads((await run(f"{check_all} --sources sources.yaml --json")).stdout)["tools"]
        assert (named["name"], named["capabilities"]) == ("images/scale_image", ["comfyui:images"])
        where = {"sources": {"file": str(here / "sources.yaml")}}
        async with running_hub(here, policy=policy, settings=where) as hub:
            await _scaled(hub, here)
        assert len(comfy.submitted) == 1


async def _write_comfyui_files(here: Path, url: str) -> None:
    (here / "scale.json").write_text(*blocks(COMFYUI, "json"))
    (here / "photo.png").write_bytes(encoded(Picture(8, 6, 0x123456)))
    async with httpx.AsyncClient(trust_env=False) as client:  # the guide's curl
        (here / "nodes.info").write_bytes((await client.get(f"{url}/object_info")).content)


def _last_option(line: str) -> str:
    return " ".join(shlex.split(line)[-2:])


async def _scaled(hub: RunningHub, here: Path) -> None:
    """The commands of the last step, with the ids that the hub gives."""
    *_, put, submit, get = commands(COMFYUI)
    at = {"TOOLHUB_ADDRESS": hub.address}
    await run("toolhub sources refresh images", **at)
    uploaded = json.loads((await run(f"{put} --json", **at)).stdout)
    done = await run(f"{submit} --json".replace("art_0f3c", uploaded["artifactId"]), **at)
    last = json.loads(done.stdout.splitlines()[-1])
    made: Any = _find(last, "image")
    await run(get.replace("art_91be", made[0]["artifact"]), **at)
    assert (here / "small.png").read_bytes().startswith(b"\x89PNG")
    assert made[0]["media_type"] == "image/png"


def _find(value: Any, name: str) -> Any:
    """The first member of this name, however deep."""
    if isinstance(value, dict):
        if name in value:
            return value[name]
        return next(filter(None, (_find(part, name) for part in value.values())), None)
    return next(filter(None, (_find(part, name) for part in value)), None) if isinstance(value, list) else None


async def test_a_workflow_is_a_governed_tool_after_the_steps_of_the_guide(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = fixtures.load_json("n8n", "workflows", "hubLastNode00001.json")
    sources, policy = blocks(N8N, "yaml")
    add, check, call = commands(N8N)
    async with fake_n8n(workflows=[workflow]) as n8n:
        monkeypatch.setenv("N8N_API_KEY", n8n.api_key)
        monkeypatch.setenv("N8N_HOOK_TOKEN", "hook-token-1")
        await run(f"{add} --file first.yaml")
        (first,) = json.loads((await run(f"{check} --sources first.yaml --json")).stdout)["tools"]
        (here / "sources.yaml").write_text(sources.replace("https://n8n.example.com", n8n.url))
        (tool,) = json.loads((await run(f"{check} --sources sources.yaml --json")).stdout)["tools"]
        assert (tool["name"], tool["problems"], tool["warnings"]) == ("crm/send_message", [], [])
        assert (first["name"], first["facts"]) == (tool["name"], tool["facts"])
        where = {"sources": {"file": str(here / "sources.yaml")}}
        async with running_hub(here, policy=policy, settings=where) as hub:
            at = {"TOOLHUB_ADDRESS": hub.address}
            await run("toolhub sources refresh crm", **at)
            called = await run(f"{call} --json", **at)
        assert _find(json.loads(called.stdout), "text") == "Your parcel is here."
        assert n8n.starts(workflow["id"]) == 1
