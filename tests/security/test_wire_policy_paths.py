"""A folder that the policy closes, attacked by every built-in tool that takes a path, whatever its argument's name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.keyed_hub import kind
from tests.hub import RunningHub, running_hub

POLICY = """
grants: [{principals: [local], capabilities: ["*", "danger:destructive"]}]
commands: [{preset: safe}]
rules:
  - {id: deletes, effect: ALLOW, principals: [local], tools: [core/fs.deletePath, core/exec.run, core/media.send]}
  - {id: no-secrets, effect: DENY, when: '(call.reads + call.writes).exists(path, path.overlaps("secrets"))'}
  - {id: no-listing, effect: DENY, when: 'call.commands.exists(line, line.startsWith("wc -l"))'}
"""
REACHING: list[tuple[str, dict[str, Any]]] = [
    ("core/fs.copy", {"source": "secrets/key", "destination": "public/key"}),
    ("core/fs.copy", {"source": "public/a", "destination": "x/../secrets/a"}),
    ("core/fs.move", {"source": "./secrets", "destination": "public/s"}),
    ("core/fs.move", {"source": "public/a", "destination": "secrets//a"}),
    ("core/fs.searchText", {"root": ".", "query": "key"}),
    ("core/fs.findFiles", {"path": "secrets/"}),
    ("core/fs.listDir", {"path": "secrets", "recursive": True}),
    ("core/fs.readText", {"path": "public/../secrets/key"}),
    ("core/fs.editText", {"path": "secrets/key", "oldText": "k", "newText": "K"}),
    ("core/fs.writeText", {"path": "secrets/new", "text": "x"}),
    ("core/fs.sha256", {"path": "secrets/key"}),
    ("core/fs.stat", {"path": "secrets"}),
    ("core/fs.deletePath", {"path": ".", "recursive": True, "confirm": True}),
    ("core/exec.run", {"argv": ["ls", "public"]}),
    ("core/exec.run", {"command": "ls public", "cwd": "public"}),
    ("core/http.downloadFile", {"url": "https://example.com/", "destPath": "secrets/a"}),
]


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path, policy=POLICY) as hub:
        for name in ("secrets/key", "public/a"):
            file = hub.workspace("r") / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("key")
        yield hub


@pytest.mark.parametrize(("tool", "args"), REACHING)
async def test_no_tool_reaches_a_closed_folder_whatever_it_calls_its_path(
    closed: RunningHub, tool: str, args: dict[str, Any]
) -> None:
    """Fails at 513ce725, where a rule could see one name of an argument only."""
    result = await closed.invoke(tool, args, request_id="r")
    assert kind(result) == "POLICY_DENIED"
    assert "no-secrets" in result.error.message
    assert sorted(file.name for file in closed.workspace("r").rglob("*")) == ["a", "key", "public", "secrets"]


async def test_other_folders_stay_open(closed: RunningHub) -> None:
    for tool, args in (
        ("core/fs.copy", {"source": "public/a", "destination": "public/b"}),
        ("core/fs.readText", {"path": "public/b"}),
        ("core/fs.findFiles", {"path": "public"}),
    ):
        assert not (await closed.invoke(tool, args, request_id="r")).error.message


@pytest.mark.parametrize(
    "args",
    [{"argv": ["wc", "-l", "a"]}, {"command": "wc   -l a"}, {"command": "'wc' \"-l\" a"}, {"command": "w'c' -l a"}],
)
async def test_a_rule_about_a_command_holds_for_its_list_and_every_spelling_of_its_line(
    tmp_path: Path, args: dict[str, Any]
) -> None:
    async with running_hub(tmp_path, policy=POLICY.replace("no-secrets, effect: DENY", "opened, effect: ALLOW")) as hub:
        result = await hub.invoke("core/exec.run", args)
        assert kind(result) == "POLICY_DENIED"
        assert "no-listing" in result.error.message
