"""How long the folder of a request stays, and which names and line ends its files have."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.hub import OPEN_POLICY, RunningHub, running_hub
from tests.unit.adapters.mcp.links import until
from toolhub.v1 import error_pb2
from toolhub_service.app.wiring.tools import make_workspaces

DAY_S = 86_400


async def written(hub: RunningHub, request_id: str, *, days_ago: float) -> Path:
    """The folder of a request that has written one file, which was last changed so long ago."""
    assert (await hub.invoke("core/fs.writeText", {"path": "a/b.txt", "text": "hi"}, request_id=request_id)).ok
    folder, at_s = hub.workspace(request_id), time.time() - days_ago * DAY_S
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (at_s, at_s))
    return folder


async def swept(hub: RunningHub) -> int:
    return await make_workspaces(hub.hub.settings).sweep(hub.hub.clock.unix_ms())


@pytest.mark.promise("workspace.swept")
async def test_workspaces_that_nobody_has_changed_for_so_long_are_removed(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        old = await written(hub, "r-old", days_ago=3)
        fresh = await written(hub, "r-fresh", days_ago=1)
        used = await written(hub, "r-used", days_ago=3)
        (used / "a" / "new.txt").write_text("changed since")
    # A hub removes what is old soon after its start, so what is written beside it may be gone before it is looked at.
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings={"workspace": {"keep_days": 2}}) as hub:
        await until(lambda: not old.exists())
        await swept(hub)
        assert [path.exists() for path in (old, fresh, used)] == [False, True, True]
        gone = await hub.invoke("core/fs.readText", {"path": "a/b.txt"}, request_id="r-old")
        assert gone.error.kind == error_pb2.ERROR_KIND_NOT_FOUND


@pytest.mark.parametrize("settings", [{}, {"keep_days": 2, "per": "principal"}])
async def test_no_workspace_is_removed_unless_it_is_wanted_and_is_a_requests(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings={"workspace": settings}) as hub:
        await hub.invoke("core/fs.writeText", {"path": "a.txt", "text": "hi"}, request_id="r-1")
        root = make_workspaces(hub.hub.settings).root
        for folder, _, files in os.walk(root):
            for name in (".", *files):
                os.utime(f"{folder}/{name}", (0, 0))
        assert await swept(hub) == 0
        assert (await hub.value("core/fs.readText", {"path": "a.txt"}, request_id="r-1"))["text"] == "hi"


async def test_a_time_shorter_than_a_job_may_take_is_a_day(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings={"workspace": {"keep_days": 0.01}}) as hub:
        folder = await written(hub, "r-1", days_ago=0.5)
        assert await swept(hub) == 0
        assert folder.exists()


async def test_odd_names_are_refused_and_an_edit_keeps_the_line_ends_of_the_file(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        for path in ("file:///tmp/x", "a\u200bb.txt", "a\u202eb.txt"):
            refused = await hub.invoke("core/fs.writeText", {"path": path, "text": "x"}, request_id="r")
            assert refused.error.kind == error_pb2.ERROR_KIND_INVALID_INPUT, path
        await hub.value("core/fs.writeText", {"path": "crlf.txt", "text": "a\r\nb\r\n"}, request_id="r")
        edit = {"path": "crlf.txt", "oldText": "a\nb", "newText": "a\nc\nb"}
        await hub.value("core/fs.editText", edit, request_id="r")
        assert (hub.workspace("r") / "crlf.txt").read_bytes() == b"a\r\nc\r\nb\r\n"
