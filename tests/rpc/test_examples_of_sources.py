"""examples/mcp_servers and examples/langchain_files: each works, behind its policy, as its README states."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hub import RunningHub
from tests.rpc import real_servers as real
from tests.servers import node_program
from tests.servers import program as installed_program
from tests.unit.docs.pages_of_docs import ROOT, links
from toolhub.v1 import approval_pb2, error_pb2
from toolhub.v1 import registry_service_pb2 as pb

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
MCP = EXAMPLES / "mcp_servers"
GRANTED = "grants: [{principals: [local], capabilities: ['langchain:papers', 'mcp:*']}]\n"


def sources_of(example: str) -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load((EXAMPLES / example / "sources.yaml").read_text())["sources"])


def installed(command: str, args: list[str]) -> list[str]:
    """What npx and uvx would start."""
    if command == "npx":
        assert args[0] == "-y"
        return [*node_program(args[1].replace("@modelcontextprotocol/", "mcp-")), *args[2:]]
    assert command == "uvx"
    return [installed_program(args[0]), *args[1:]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As the README has it made."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("hello\n")
    subprocess.run(["git", "init", "-q", str(tmp_path / "repo")], check=True)
    return tmp_path


@asynccontextmanager
async def reference_servers(folder: Path) -> AsyncIterator[RunningHub]:
    """A hub over the example, its programs those that are installed, started in the folder."""
    sources = sources_of("mcp_servers")
    for source in sources.values():
        source["command"], *source["args"] = installed(source["command"], source["args"])
        source["cwd"] = str(folder)
    sources["memory"]["env"]["MEMORY_FILE_PATH"] = str(folder / "memory.jsonl")
    async with real.sourced_hub(folder, sources, policy=(MCP / "policy.yaml").read_text()) as hub:
        yield hub


async def kind_of(hub: RunningHub, tool: str, args: dict[str, Any]) -> str:
    result = await hub.invoke(tool, args)
    return error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_") if result.HasField("error") else "OK"


async def test_reference_servers_work_as_their_example_states(folder: Path) -> None:
    async with reference_servers(folder) as hub:
        assert (await hub.value("time/get_current_time", {"timezone": "Asia/Tokyo"}))["timezone"] == "Asia/Tokyo"
        assert (await hub.value("docs/read_text_file", {"path": "a.txt"}))["content"] == "hello\n"
        assert "No commits" in (await hub.value("repo/git_status", {"repo_path": "repo"}))["text"]
        ann = {"name": "Ann", "entityType": "person", "observations": []}
        assert (await hub.value("memory/create_entities", {"entities": [ann]})) == {"entities": [ann]}
        for tool, args, kind in (
            ("docs/write_file", {"path": "b.txt", "content": "new"}, "APPROVAL_REQUIRED"),
            ("repo/git_commit", {"repo_path": "repo", "message": "x"}, "APPROVAL_REQUIRED"),
            ("repo/git_reset", {"repo_path": "repo"}, "TOOL_NOT_FOUND"),
            ("memory/delete_entities", {"entityNames": ["Ann"]}, "POLICY_DENIED"),
            ("web/fetch", {"url": "http://127.0.0.1/"}, "UPSTREAM_ERROR"),
            ("everything/get-env", {}, "TOOL_NOT_FOUND"),
            ("everything/echo", {"message": "hello"}, "TOOL_QUARANTINED"),
        ):
            assert await kind_of(hub, tool, args) == kind, tool
        assert not (folder / "docs" / "b.txt").exists()
        await accept(hub, "everything", "everything/echo")
        assert (await hub.value("everything/echo", {"message": "hello"}))["text"] == "Echo: hello"


async def accept(hub: RunningHub, source: str, tool: str) -> None:
    (pin,) = (await hub.registry.ListPins(pb.ListPinsRequest(source=source, tool=tool))).pins
    approve = approval_pb2.DECISION_APPROVE
    asked = pb.DecidePinRequest(source=source, tool=tool, digest=pin.digest, decision=approve, comment="read")
    await hub.registry.DecidePin(asked)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # LangChain's community package is not developed any more
async def test_langchains_file_tools_work_as_their_example_states(tmp_path: Path) -> None:
    papers = tmp_path / "papers"
    papers.mkdir()
    (papers / "a.txt").write_text("Attention is all you need.\n")
    sources = sources_of("langchain_files")
    assert sources["papers"]["args"] == {"root_dir": "papers"}
    sources["papers"]["args"] = {"root_dir": str(papers)}
    async with real.sourced_hub(tmp_path, sources, policy=GRANTED, settings=real.TRUSTED) as hub:
        assert (await hub.value("papers/read_file", {"file_path": "a.txt"}))["text"].startswith("Attention")
        assert await kind_of(hub, "papers/read_file", {"file_path": "../secret.txt"}) == "EXECUTION_ERROR"


@pytest.mark.parametrize("example", ["mcp_servers", "langchain_files"])
def test_an_example_is_announced_and_explains_itself(example: str) -> None:
    assert example in links(EXAMPLES / "README.md")
    assert (EXAMPLES / example / "sources.yaml").read_text().startswith("# ")
    assert "sources.yaml" in links(EXAMPLES / example / "README.md")
