"""The doctor's report of a running hub."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.hub import running_hub
from toolhub_service import __version__
from toolhub_service.cli.root import toolhub

SOURCES = "sources: {gone: {command: no-such-program-anywhere}}\n"


def _live(address: str, folder: Path) -> list[dict[str, Any]]:
    words = ["doctor", "--json", "--live", "--address", address, "--data-dir", str(folder)]
    return list(json.loads(CliRunner().invoke(toolhub, words).output)["findings"])


async def test_a_source_that_is_down_is_found_with_its_last_output(tmp_path: Path) -> None:
    file = tmp_path / "sources.yaml"
    file.write_text(SOURCES)
    async with running_hub(tmp_path, settings={"sources": {"file": str(file)}}) as running:
        assert await running.hub.sourcing.sources.wait_until_tried(timeout_s=60)
        found = await asyncio.to_thread(_live, running.address, tmp_path / "hub")
    by_name = {finding["name"]: finding for finding in found}
    assert by_name["source core"]["state"] == "ok"
    assert by_name["source gone"]["state"] == "warn"
    assert by_name["source gone"]["told"].startswith("DOWN: Its program no-such-program-anywhere was not found on")
    assert by_name["source gone"]["advice"] == "`toolhub sources show gone` shows more."


async def test_a_hub_that_answers_is_shown_with_its_version_entrances_and_limits(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as running:
        words = ["doctor", "--json", "--address", running.address, "--data-dir", str(tmp_path / "hub")]
        report = json.loads((await asyncio.to_thread(CliRunner().invoke, toolhub, words)).output)
    (found,) = (finding for finding in report["findings"] if finding["name"] == "running hub")
    assert found["state"] == "ok"
    for part in (
        f"version {__version__} at {running.address}",
        "entrances: grpc (insecure-local or api-key)",
        "limits: requests",
    ):
        assert part in found["told"]
    assert report["server"]["version"] == __version__
    assert "maxRequestBytes" in report["server"]["limits"]


async def test_the_hub_of_a_configuration_is_asked_where_it_listens(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as running:
        config = tmp_path / "toolhub.yaml"
        config.write_text(f"server: {{listen: '{running.address}'}}\ndata_dir: {tmp_path / 'hub'}\n")
        words = ["doctor", "--json", "--config", str(config)]
        report = json.loads((await asyncio.to_thread(CliRunner().invoke, toolhub, words)).output)
    (found,) = (finding for finding in report["findings"] if finding["name"] == "running hub")
    assert f"at {running.address}" in found["told"]


async def test_a_hub_that_does_not_run_is_a_finding(tmp_path: Path) -> None:
    found = await asyncio.to_thread(_live, "127.0.0.1:1", tmp_path / "hub")
    assert found[-1]["name"] == "running hub"
    assert found[-1]["state"] == "fail"


def test_missing_requirements_of_sources_are_found_without_a_hub(tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "sources.yaml").write_text(SOURCES)
    output = CliRunner().invoke(toolhub, ["doctor", "--json", "--data-dir", str(folder)]).output
    findings = [finding for finding in json.loads(output)["findings"] if finding["name"] == "sources"]
    assert [finding["state"] for finding in findings] == ["warn", "ok"]
    assert findings[0]["disables"] == ["gone/*"]
