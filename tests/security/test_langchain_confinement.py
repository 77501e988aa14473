"""LangChain's file tools without bounds see the machine, as configured, but nothing of the data folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fakes.commands import confinement_of
from tests.fakes.langchain_source import OpenedSource, opened
from tests.rpc.real_servers import sourced_hub
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.sandbox import hidden
from toolhub_service.sandbox.hidden import HiddenPaths

PEEKS = "tests.fakes.langchain_tools:peeks"
GRANTED = "grants: [{principals: [local], capabilities: ['langchain:*']}]"
FILES = "langchain_community.agent_toolkits:FileManagementToolkit"

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the package says that it is not developed any more
    pytest.mark.slow,
]


async def output_of(desk: OpenedSource, tool: str, **args: str) -> str:
    return str((await desk(tool, **args))["text"])


@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
async def test_workers_see_no_file_of_the_data_folder_and_write_none(tmp_path: Path, level: str) -> None:
    """Fails at befa727: the key is read, the policy written."""
    bubblewrap = confinement_of(level).bubblewrap
    data = tmp_path / "data"
    data.mkdir()
    (data / "audit.key").write_text("c4nary")
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "a.txt").write_text("paper")
    (tmp_path / "papers" / "link").symlink_to("../data/audit.key")
    hides = HiddenPaths([str(data)], bubblewrap)
    async with opened(FILES, trusted=("langchain_community",), processes=1, hides=hides) as desk:
        for path in (data / "audit.key", tmp_path / "papers" / "link", Path(f"/proc/self/root{data}/audit.key")):
            assert "c4nary" not in await output_of(desk, "read_file", file_path=str(path))
        await output_of(desk, "write_file", file_path=str(data / "policy.yaml"), text="grants: []")
        await output_of(
            desk, "copy_file", source_path=str(data / "audit.key"), destination_path=str(tmp_path / "papers" / "k")
        )
        await output_of(desk, "move_file", source_path=str(data), destination_path=str(tmp_path / "papers" / "moved"))
        await output_of(desk, "file_delete", file_path=str(data / "audit.key"))
        assert await output_of(desk, "read_file", file_path=str(tmp_path / "papers" / "a.txt")) == "paper"
        await output_of(desk, "write_file", file_path=str(tmp_path / "papers" / "b.txt"), text="B")
    assert [path.name for path in data.iterdir()] == ["audit.key"]
    assert (tmp_path / "papers" / "b.txt").read_text() == "B"
    brought_out = [path for path in (tmp_path / "papers").rglob("*") if path.is_file() and not path.is_symlink()]
    assert sorted(path.name for path in brought_out) == ["a.txt", "b.txt"]


async def test_a_worker_does_not_start_where_nothing_can_hide_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden, "landlock_abi", lambda: 0)
    hides = HiddenPaths([str(tmp_path)], "")
    async with opened(FILES, trusted=("langchain_community",), processes=1, hides=hides) as desk:
        error = await desk.refused("read_file", file_path=str(tmp_path / "any"))
    assert error.kind is ErrorKind.TOOL_UNAVAILABLE


@pytest.mark.promise("sandbox.hub-out-of-reach")
@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
async def test_a_hub_keeps_its_files_from_sync_and_async_tools_in_any_layout(tmp_path: Path, level: str) -> None:
    """At befa727 an answer was the key of the audit log, and at 7aafec6 still that of an async tool."""
    bubblewrap = confinement_of(level).bubblewrap
    for name in ("elsewhere", "conf", "papers"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "hub").symlink_to("elsewhere")  # the data folder
    (tmp_path / "papers" / "a.txt").write_text("paper")
    (tmp_path / "papers" / "link").symlink_to("../hub/audit.key")
    settings = {
        "tools": {"trusted_namespaces": ["langchain_community", "tests.fakes"], "bubblewrap": bubblewrap or "off"},
        "policy": {"file": str(tmp_path / "conf" / "policy.yaml")},
    }
    sources = {"files": {"kind": "langchain", "load": [FILES]}, "async": {"kind": "langchain", "load": [PEEKS]}}
    async with sourced_hub(tmp_path, sources, policy=GRANTED, settings=settings) as hub:
        paths = Paths(hub.hub.settings)
        key, kept = paths.audit_key, paths.audit_key.read_text().strip()
        places = [key, key.resolve(), paths.policy, paths.sources, tmp_path / "papers" / "link", paths.plan_key]
        places += [tmp_path / "papers" / ".." / "hub" / "audit.key", Path(f"/proc/{os.getpid()}/root{key.resolve()}")]
        for place in places:
            for tool in ("files/read_file", "async/peeks"):
                seen = str(await hub.invoke(tool, {"file_path": str(place)}))
                assert not any(word in seen for word in (kept, "grants", "langchain_community")), (tool, place)
        for tool in ("files/read_file", "async/peeks"):
            assert "paper" in str(await hub.invoke(tool, {"file_path": str(tmp_path / "papers" / "a.txt")}))


async def test_policy_can_demand_more_of_workers_than_this_machine_has(tmp_path: Path) -> None:
    confinement_of("landlock")
    sources = {"files": {"kind": "langchain", "load": [FILES]}}
    policy = GRANTED + "\nsandbox: {minimum_for: {'files/read_*': bubblewrap}}"
    settings = {"tools": {"trusted_namespaces": ["langchain_community"], "bubblewrap": "off"}}
    async with sourced_hub(tmp_path, sources, policy=policy, settings=settings) as hub:
        refused = await hub.invoke("files/read_file", {"file_path": str(tmp_path / "a")})
        assert "only what bubblewrap holds" in refused.error.message
        listed = await hub.invoke("files/list_directory", {"dir_path": str(tmp_path)})
        assert (listed.ok, listed.evidence[0].attributes["confinement"]) == (True, "landlock")
