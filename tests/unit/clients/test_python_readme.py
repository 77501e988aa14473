"""Every Python snippet of the client's page runs against a hub: under the names that the page has introduced before."""

from __future__ import annotations

import ast
import asyncio
import re
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.hub import OPEN_POLICY, RunningHub, running_hub
from toolhub.v1.job_state_pb2 import JobState
from toolhub_client import connect, connect_sync
from toolhub_client.context import CallOptions
from toolhub_service.domain.tool import Annotations
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

README = Path(__file__).parents[3] / "clients" / "python" / "README.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Frames(Tool["Frames.In", "Frames.Out"]):
    """The page's example of long work."""

    name = "render/frames"
    description = "Render frames."
    annotations = Annotations(read_only=True)

    class In(ToolInput, frozen=True):
        pass

    class Out(ToolOutput, frozen=True):
        frames: int

    async def run(self, args: In, context: ToolContext) -> Out:
        return self.Out(frames=24)


class Completions:
    """Answers like OpenAI's client: with one call of a tool that it was given."""

    async def create(self, *, model: Any, messages: Any, tools: list[dict[str, Any]]) -> Any:
        name = "core__fs_listDir"
        assert name in [each["function"]["name"] for each in tools]
        call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": '{"path": "."}'}}
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(tool_calls=[call]))])


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path, policy=OPEN_POLICY, tools=[Frames()]) as running:
        yield running


def statements_of(snippet: str, address: str) -> str:
    """The snippet for a hub on this machine."""
    return snippet.replace("https://hub.example.com", address).replace(', api_key="thk_…"', "")


async def run(snippet: str, names: dict[str, Any]) -> None:
    """Execute it as the body of an async function, which keeps its names for the next one."""
    body = textwrap.indent(snippet, "    ")
    # A snippet with a whole program starts a loop of its own.
    if "asyncio.run(" in snippet or "connect_sync(" in snippet:
        await asyncio.to_thread(exec, snippet, names)
        return
    assigned = sorted(_assigned(ast.parse(f"async def snippet():\n{body}")))
    keeps = "".join(f"    names[{name!r}] = {name}\n" for name in assigned)
    exec(f"async def snippet(names):\n{body}\n{keeps}", names)
    await names["snippet"](names)


def _assigned(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for each in targets:
                yield from (name.id for name in ast.walk(each) if isinstance(name, ast.Name))


def names_for(hub: Any) -> dict[str, Any]:
    """What a reader has at hand when a snippet begins."""
    openai = SimpleNamespace(chat=SimpleNamespace(completions=Completions()))
    hashing = ("core/util.hash.sha256Text", {"text": ""})
    return {
        "asyncio": asyncio,
        "connect": connect,
        "connect_sync": connect_sync,
        "hub": hub,
        "openai": openai,
        "messages": [],
        "create_agent": lambda model, tools: tools,
        "model": None,
        "calls": [hashing, hashing],
        "args": {},
        "JobState": JobState,
        "Path": Path,
    }


@pytest.mark.promise("clients.readme-runs")
@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: text.split("\n", 1)[0][:40])
async def test_snippet_runs_against_a_hub(
    hub: RunningHub, snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scan.tiff").write_bytes(b"pixels")
    async with connect(hub.address) as client:
        written = await client.invoke("core/fs.writeText", {"path": "a.txt", "text": "x"}, purpose="a test")
        written.unwrap()
        await run(statements_of(snippet, hub.address), names_for(client))


def test_page_names_the_options_that_it_uses() -> None:
    used = set(re.findall(r"\b(purpose|plan_digest|args_form|idempotency_key)=", "".join(SNIPPETS)))
    assert used <= set(CallOptions.__annotations__)
