"""`toolhub sources list|show|refresh`: the state of sources, for people and for programs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result
from msgspec import structs

from tests.e2e.terminal import BIN, CommandOutput, environment, in_terminal
from tests.fakes.sources import ScriptedSources, a_source
from tests.hub import RunningHub, running_hub
from toolhub_service.cli.root import toolhub
from toolhub_service.domain.source import SourceState, SourceStatus
from toolhub_service.domain.tool import ToolKind

DOWN = a_source("files", state=SourceState.DOWN, reason="exited with 1 \x1b[2J", latency_ms=0)
DOWN = structs.replace(DOWN, refreshed_at_unix_ms=0, next_refresh_at_unix_ms=0)
CORE = SourceStatus("core", ToolKind.CORE, tool_count=25)


@pytest.fixture
async def desk() -> ScriptedSources:
    return ScriptedSources([CORE, a_source(quarantined_count=1), DOWN])


@pytest.fixture
async def sourced(tmp_path: Path, desk: ScriptedSources) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path) as hub:
        hub.hub.server.registry.sources = desk
        yield hub


async def cli(hub: RunningHub, *words: str, code: int = 0) -> Result:
    env = {"TOOLHUB_ADDRESS": hub.address}
    result = await asyncio.to_thread(CliRunner().invoke, toolhub, ["sources", *words], env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


async def typed(hub: RunningHub, tmp_path: Path, *words: str) -> CommandOutput:
    env = environment(tmp_path, TOOLHUB_ADDRESS=hub.address)
    shown = await asyncio.to_thread(in_terminal, [str(BIN / "toolhub"), "sources", *words], env)
    assert "Traceback" not in shown.text
    assert "\x1b[2J" not in shown.text
    return shown


def listed(result: Result) -> list[Any]:
    return list(json.loads(result.stdout)["sources"])


async def test_a_list_shows_the_state_of_each_and_why_one_is_down(sourced: RunningHub, tmp_path: Path) -> None:
    shown = await typed(sourced, tmp_path, "list")
    for words in ("github", "READY", "3 (1 quarantined)", "2026-07-28", "42 ms", "half-open", "DOWN", "never"):
        assert words in shown.text
    assert "files: exited with 1" in shown.text
    names = [status["source"] for status in listed(await cli(sourced, "list", "--json"))]
    assert names == ["core", "github", "files"]


async def test_a_pipe_gets_a_row_for_each_and_the_reasons_on_standard_error(sourced: RunningHub) -> None:
    piped = await cli(sourced, "list")
    assert [row.split()[0] for row in piped.stdout.splitlines()] == ["SOURCE", "core", "github", "files"]
    assert "files: exited with 1" in piped.stderr
    wide = await cli(sourced, "list", "-o", "wide")
    assert wide.stdout.splitlines()[-1].partition("mcp.example.com/mcp  ")[2].startswith("exited with 1")


@pytest.mark.promise("sources.why-down")
async def test_a_list_shows_the_last_output_of_a_source_that_is_down_and_its_next_attempt(
    sourced: RunningHub, desk: ScriptedSources, tmp_path: Path
) -> None:
    diagnosis = ("stderr: resolving", "stderr: npm error ECONNREFUSED", "stage: not connected", "next try: in 3.0 s")
    desk.sources[-1] = structs.replace(DOWN, diagnose=lambda: diagnosis)
    shown = (await typed(sourced, tmp_path, "list")).text
    assert "  stderr: npm error ECONNREFUSED" in shown
    assert "  next connection attempt: in 3.0 s" in shown
    assert "resolving" not in shown


async def test_a_wide_list_shows_the_state_of_each(sourced: RunningHub, tmp_path: Path) -> None:
    shown = await typed(sourced, tmp_path, "list", "--wide")
    assert "approval" in shown.text
    assert "code host 1.2" in shown.text


async def test_one_source_is_shown_with_what_its_process_wrote(sourced: RunningHub, tmp_path: Path) -> None:
    shown = await typed(sourced, tmp_path, "show", "github")
    for words in ("https://mcp.example.com/mcp", "code host 1.2 (as it calls itself)", "careful \\u001b[2J"):
        assert words in shown.text
    own, untrusted = shown.text.partition("connection:")[2].split("(untrusted):")
    assert "connections: 1 in 1 attempts" in own
    assert "stderr: starting" in untrusted
    assert "stderr" not in own
    assert "connections" not in untrusted
    assert json.loads((await cli(sourced, "show", "github")).stdout)["diagnostics"][0] == "stderr: starting"
    assert "3 tools, 1 quarantined; `toolhub tools list --source github` lists them" in shown.text
    assert "`toolhub pins list --source github`" in shown.text
    down = await typed(sourced, tmp_path, "show", "files")
    assert "on `toolhub sources refresh files`" in down.text
    assert "Sources of this hub: core, github, files" in (await cli(sourced, "show", "gitub", code=1)).stderr


async def test_no_list_is_named_that_would_show_nothing_of_a_source_that_waits_whole(
    sourced: RunningHub, desk: ScriptedSources, tmp_path: Path
) -> None:
    desk.sources.append(a_source("fresh", tool_count=1, quarantined_count=1))
    shown = (await typed(sourced, tmp_path, "show", "fresh")).text
    assert "1 tool, 1 quarantined" in shown
    assert "lists them" not in shown
    assert "`toolhub tools list --source fresh --state quarantined`" in shown


async def test_a_refresh_reports_each_source_and_exits_1_when_one_is_down(
    sourced: RunningHub, desk: ScriptedSources, tmp_path: Path
) -> None:
    (github,) = listed(await cli(sourced, "refresh", "github", "--json"))
    assert github["state"] == "SOURCE_STATE_READY"
    everything = listed(await cli(sourced, "refresh", "--json", code=1))
    assert [status["source"] for status in everything] == ["files", "github"], "all that can be read"
    desk.failing = {"github"}
    shown = await typed(sourced, tmp_path, "refresh", "github")
    assert shown.code == 1
    assert "github  DOWN" in shown.text
    assert "does not answer" in shown.text
    assert "3 tools, 1 quarantined" in shown.text
    await cli(sourced, "refresh", "nowhere", code=1)


async def test_a_hub_without_sources_prints_how_to_add_some(hub: RunningHub, tmp_path: Path) -> None:
    assert "toolhub sources add" in (await typed(hub, tmp_path, "list")).text
    assert "No source is configured" in (await typed(hub, tmp_path, "refresh")).text


async def test_shell_completes_names(sourced: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLHUB_ADDRESS", sourced.address)
    completer = BashComplete(toolhub, {}, "toolhub", "X")
    completed = await asyncio.to_thread(completer.get_completions, ["sources", "show"], "g")
    assert [(item.value, item.help) for item in completed] == [("github", "ready")]
    monkeypatch.setenv("TOOLHUB_ADDRESS", "127.0.0.1:1")
    assert await asyncio.to_thread(completer.get_completions, ["sources", "show"], "g") == []
