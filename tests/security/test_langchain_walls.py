"""LangChain's file tools without bounds see the machine, as their operator said, but nothing of the data folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.commands import confinement_of
from tests.fakes.langchain_source import Opened, opened
from tests.rpc.real_servers import sourced_hub
from toolhub_service.app.paths import Paths
from toolhub_service.domain.errors import ErrorKind
from toolhub_service.sandbox import confinement
from toolhub_service.sandbox.confinement import HiddenFolder

GRANTED = "grants: [{principals: [local], capabilities: ['langchain:files']}]"
FILES = "langchain_community.agent_toolkits:FileManagementToolkit"

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the package says that it is not developed any more
    pytest.mark.slow,
]


async def said(desk: Opened, tool: str, **args: str) -> str:
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
    hides = HiddenFolder(str(data), bubblewrap)
    async with opened(FILES, trusted=("langchain_community",), processes=1, hides=hides) as desk:
        for path in (data / "audit.key", tmp_path / "papers" / "link", Path(f"/proc/self/root{data}/audit.key")):
            assert "c4nary" not in await said(desk, "read_file", file_path=str(path))
        await said(desk, "write_file", file_path=str(data / "policy.yaml"), text="grants: []")
        await said(
            desk, "copy_file", source_path=str(data / "audit.key"), destination_path=str(tmp_path / "papers" / "k")
        )
        await said(desk, "move_file", source_path=str(data), destination_path=str(tmp_path / "papers" / "moved"))
        await said(desk, "file_delete", file_path=str(data / "audit.key"))
        assert await said(desk, "read_file", file_path=str(tmp_path / "papers" / "a.txt")) == "paper"
        await said(desk, "write_file", file_path=str(tmp_path / "papers" / "b.txt"), text="B")
    assert [path.name for path in data.iterdir()] == ["audit.key"]
    assert (tmp_path / "papers" / "b.txt").read_text() == "B"
    brought_out = [path for path in (tmp_path / "papers").rglob("*") if path.is_file() and not path.is_symlink()]
    assert sorted(path.name for path in brought_out) == ["a.txt", "b.txt"]


async def test_a_worker_does_not_start_where_nothing_can_hide_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confinement, "landlock_abi", lambda: 0)
    hides = HiddenFolder(str(tmp_path), "")
    async with opened(FILES, trusted=("langchain_community",), processes=1, hides=hides) as desk:
        error = await desk.refused("read_file", file_path=str(tmp_path / "any"))
    assert error.kind is ErrorKind.TOOL_UNAVAILABLE


async def test_a_hub_keeps_its_own_folder_from_the_workers_of_its_sources(tmp_path: Path) -> None:
    """Fails at befa727: the answer is the key of the audit log."""
    sources = {"files": {"kind": "langchain", "load": [FILES]}}
    settings = {"tools": {"trusted_namespaces": ["langchain_community"]}}
    async with sourced_hub(tmp_path, sources, policy=GRANTED, settings=settings) as hub:
        key = Paths(hub.hub.settings).audit_key
        result = await hub.invoke("files/read_file", {"file_path": str(key)})
        assert "Error: no such file" in str(result)
        assert key.read_text().strip() not in str(result)
