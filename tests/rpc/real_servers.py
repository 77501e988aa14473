"""Sources over real programs: the reference servers of MCP and LangChain's file tools, behind one hub."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.free_port import free_port
from tests.hub import RunningHub, running_hub
from tests.servers import node_program
from tests.servers import program as installed_program

WITHIN_S: Final = 60.0
"""Longer than any server takes to start on a busy machine."""

POLICY: Final = """
extends: none
grants:
  - principals: ["*"]
    capabilities: ["mcp:*", "langchain:*"]
roles:
  - {principals: [local], roles: [agent, operator, approver, auditor]}
"""


def program(*words: str, **more: Any) -> dict[str, Any]:
    """A source on stdio."""
    return {"command": words[0], "args": list(words[1:]), **more}


def everything(**more: Any) -> dict[str, Any]:
    return program(*node_program("mcp-server-everything"), **more)


def files(folder: Path, **more: Any) -> dict[str, Any]:
    return program(*node_program("mcp-server-filesystem"), str(folder), **more)


def memory(file: Path, **more: Any) -> dict[str, Any]:
    return program(*node_program("mcp-server-memory"), env={"MEMORY_FILE_PATH": str(file)}, **more)


def python_server(name: str, *words: str, **more: Any) -> dict[str, Any]:
    """One of PyPI: `time`, `git`, `fetch`."""
    return program(installed_program(f"mcp-server-{name}"), *words, **more)


def fetch(*words: str) -> dict[str, Any]:
    """Without a Node in its reach: with one, it runs `npm install` in its first call."""
    return python_server("fetch", *words, env={"PATH": ""})


def papers(folder: Path, **more: Any) -> dict[str, Any]:
    load = ["langchain_community.agent_toolkits:FileManagementToolkit"]
    return {"kind": "langchain", "load": load, "args": {"root_dir": str(folder)}, **more}


TRUSTED: Final[Mapping[str, Any]] = {"tools": {"trusted_namespaces": ["langchain_community"]}}


def repository(folder: Path) -> Path:
    """A git repository with one commit on `main`."""
    folder.mkdir()
    (folder / "a.txt").write_text("first\n")
    for words in (
        ("init", "-q", "-b", "main"),
        ("config", "user.email", "ann@example.com"),
        ("config", "user.name", "Ann"),
        ("add", "a.txt"),
        ("commit", "-q", "-m", "Begin"),
    ):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    return folder


def write_sources(home: Path, sources: Mapping[str, Mapping[str, Any]]) -> Path:
    """The hub's sources.yaml, written whole at once."""
    file = home / "hub" / "sources.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    fresh.write_text(yaml.safe_dump({"sources": dict(sources)}))
    fresh.replace(file)
    return file


@asynccontextmanager
async def sourced_hub(
    home: Path,
    sources: Mapping[str, Mapping[str, Any]],
    *,
    policy: str = POLICY,
    settings: Mapping[str, Any] | None = None,
) -> AsyncIterator[RunningHub]:
    """A hub over these sources, each of which has been read."""
    write_sources(home, sources)
    async with running_hub(home, policy=policy, settings=settings) as hub:
        desk = hub.hub.sourcing.sources
        assert await desk.wait_until_tried(timeout_s=WITHIN_S)
        reasons = [(status.name, status.reason) for status in desk.statuses() if status.reason]
        assert not reasons, reasons
        yield hub


class EverythingOverHttp:
    """`mcp-server-everything streamableHttp`, which can be killed and started again on the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *node_program("mcp-server-everything"),
            "streamableHttp",
            env={**os.environ, "PORT": str(self.port)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stderr is not None
        async with asyncio.timeout(WITHIN_S):
            while b"listening" not in (line := await self._process.stderr.readline()):
                assert line, "it ended before it listened"

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()


@asynccontextmanager
async def everything_over_http() -> AsyncIterator[EverythingOverHttp]:
    server = EverythingOverHttp()
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


def shown(value: Any) -> str:
    """A result's value, for looking into."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
