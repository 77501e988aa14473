"""Calling the core/fs.* tools on a folder of the disk, with a real context and a sink that remembers."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.result import Chunk, Progress
from toolhub_service.domain.verdict import Constraints, Sandbox
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.files.tools import fs_tools
from toolhub_service.tools.workspace.opening import Opening, open_beneath, open_by_step
from toolhub_service.tools.workspace.workspace import Workspace

OPENINGS: dict[str, Opening] = {"openat2": open_beneath, "by_step": open_by_step}


class RecordingSink:
    def __init__(self) -> None:
        self.reports: list[Progress] = []

    def progress(self, progress: Progress) -> None:
        self.reports.append(progress)

    def chunk(self, chunk: Chunk) -> None:
        raise AssertionError("file tools stream nothing")


class FileCalls:
    """`await calls("readText", path="a.txt")`: arguments as on the wire, the result as on the wire."""

    def __init__(self, root: Path, opening: Opening, sandbox: Sandbox | None = None) -> None:
        self.root = root
        self.sandbox = sandbox or Sandbox()
        self.left_s = 600.0
        """Time of each call."""
        self.sink = RecordingSink()
        self._opening = opening
        self._tools = {tool.name.removeprefix("core/fs."): tool for tool in fs_tools()}
        self.context = self._new_context()

    def _new_context(self) -> ToolContext:
        return ToolContext(
            call_id="call",
            principal_id="local",
            request_id="request",
            deadline_s=time.monotonic() + self.left_s,
            constraints=Constraints(sandbox=self.sandbox),
            sink=self.sink,
            open_workspace=lambda: Workspace(str(self.root), opening=self._opening),
        )

    async def __call__(self, name: str, /, **args: Any) -> Any:
        """The last call's evidence is in `context`."""
        tool = self._tools[name]
        context = self.context = self._new_context()
        try:
            result = await tool.run(msgspec.convert(args, type=tool.In), context)
        finally:
            context.close()
        assert isinstance(result, tool.Out)
        return msgspec.json.decode(msgspec.json.encode(result))

    def effects(self, name: str, /, **args: Any) -> str:
        """What the plan of the call says: one sentence."""
        tool, context = self._tools[name], self._new_context()
        try:
            (sentence,) = tool.effects(msgspec.convert(args, type=tool.In), context)
        finally:
            context.close()
        return sentence

    async def refused(self, name: str, /, **args: Any) -> ToolFailure:
        """The refusal of a call that must not succeed."""
        with pytest.raises(ToolFailure) as refused:
            await self(name, **args)
        assert refused.value.error.message
        assert str(self.root) not in refused.value.error.message
        return refused.value

    async def kind(self, name: str, /, **args: Any) -> ErrorKind:
        return (await self.refused(name, **args)).error.kind

    def put(self, path: str, content: str | bytes = "") -> Path:
        """A file on the disk, made without the tools."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    async def settled(self) -> None:
        """Reports made on the loop have arrived."""
        await asyncio.sleep(0)


def descriptors() -> int:
    """How many files and folders this process holds open; sockets that earlier tests are still closing do not count."""
    gc.collect()
    return sum(_is_path(link) for link in list(Path("/proc/self/fd").iterdir()))


def _is_path(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith("/")
    except FileNotFoundError:
        return False  # the descriptor by which the list was read


def content_of(folder: Path) -> dict[str, str | bytes | None]:
    """Every path beneath and what stands there: bytes of files, targets of links."""
    found: dict[str, str | bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found
