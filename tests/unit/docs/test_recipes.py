"""The recipes of CONTRIBUTING.md, performed in a copy of the tree: what they tell to touch is enough."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SERVICE = Path("service/toolhub_service")
IMPORTS = """
from __future__ import annotations
from collections.abc import Iterator
from typing import Annotated
from msgspec import Meta
from toolhub_service.adapters.source_config import Source, SourceInvalid, Value, check_web
from toolhub_service.adapters.source_kind import SourceKind
from toolhub_service.domain.tool import ToolKind
"""
ADAPTER = """
from toolhub_service.adapters.source_kind import OpenedSource
from toolhub_service.domain.call import NO_PRECONDITIONS
from toolhub_service.domain.ports import NOTHING_FIXED
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.source import Definition, Discovery, Trust
from toolhub_service.domain.tool import ToolKind, ToolSpec

class AcmeOpener:
    kind = ToolKind.ACME
    trust = Trust.ALWAYS

    def __init__(self, deps): self.adapter = self
    def endpoint(self, name, entry): return entry.url
    def forget(self, name): pass
    def listen(self, changed): pass
    def diagnostics(self): return ()
    async def start(self): pass
    async def close(self): pass
    def effects(self, call): return ()
    async def preconditions(self, planned): return NO_PRECONDITIONS
    def has_side_effects(self, planned): return False
    def upstream(self, planned): return planned.spec.upstream_key
    def resumes(self, spec): return False
    def fixed_terms(self, spec): return NOTHING_FIXED

    def open(self, name, entry):
        self.name = name
        return OpenedSource(self)

    async def discover(self):
        words = {"name": "greet"}
        spec = ToolSpec(f"{self.name}/greet", ToolKind.ACME, "Greet.", {"type": "object"}, {}, source=self.name)
        return Discovery((Definition(spec, words),))

    async def execute(self, call, sink):
        return Outcome(value={"said": "hello"})
"""
HUB = """
import asyncio, json, pathlib, sys
from toolhub.v1 import registry_service_pb2
sys.path.insert(0, {root!r})
from tests.hub import running_hub

async def main():
    home = pathlib.Path({home!r})
    async with running_hub(home, policy={policy!r}) as hub:
        await hub.hub.sourcing.sources.settled(timeout_s=60)
        result = await hub.invoke({tool!r}, json.loads({args!r}))
        print(result.result_json.decode() if result.ok else result.error)

asyncio.run(main())
"""
POLICY = (
    "extends: none\ngrants: [{principals: ['*'], capabilities: ['*']}]\nroles: [{principals: [local], roles: [agent]}]"
)


def snippets(heading: str) -> list[str]:
    """The Python of one recipe."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [textwrap.dedent(code) for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL)]


def places(heading: str) -> list[str]:
    """Files that the numbered steps name first."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d\. `([^`]+)`", section, re.MULTILINE)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Of the server, which programs below import instead of the real one."""
    shutil.copytree(ROOT / SERVICE, tmp_path / "copy/toolhub_service", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "copy"


def put(file: Path, before: str, text: str) -> None:
    """Put text before the first place where another one stands."""
    old = file.read_text()
    assert before in old, f"{file.name} has no {before!r}"
    file.write_text(old.replace(before, text + before, 1))


async def program(copy: Path, *words: str) -> str:
    """What it wrote; it imports the copy."""
    path = os.pathsep.join([str(copy), str(ROOT / "gen/python")])
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return said.decode()


async def called(copy: Path, home: Path, tool: str, args: str) -> str:
    text = HUB.format(root=str(ROOT), home=str(home), policy=POLICY, tool=tool, args=args)
    return (await program(copy, "-c", text)).strip().splitlines()[-1]


async def test_a_core_tool_takes_a_class_and_its_place_in_the_list(copy: Path, tmp_path: Path) -> None:
    (tool,) = snippets("Add a core tool")
    file = copy / "toolhub_service/tools/util_tools.py"
    put(file, "def util_tools(", tool + "\n\n")
    put(file, "TextTruncate(), TimeNow(clock)]", "TextReverse(), ")
    assert await called(copy, tmp_path / "home", "core/util.text.reverse", '{"text": "abc"}') == '{"text":"cba"}'
    assert len(places("Add a core tool")) == 2


async def test_a_source_kind_takes_its_folder_and_a_line_in_the_list(copy: Path, tmp_path: Path) -> None:
    """As SKILL, for which the contract has a value already and nobody an adapter: the copy has no generated code."""
    (kind,) = snippets("Add a source kind")
    folder = copy / "toolhub_service/adapters/acme"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "kind.py").write_text(
        IMPORTS + kind.replace("ToolKind.ACME", "ToolKind.SKILL").replace('"acme"', '"skill"')
    )
    (folder / "adapter.py").write_text(ADAPTER.replace("ToolKind.ACME", "ToolKind.SKILL"))
    kinds = copy / "toolhub_service/app/kinds.py"
    put(kinds, "from toolhub_service.adapters.comfyui", "from toolhub_service.adapters.acme.kind import ACME\n")
    put(kinds, "MCP, LANGCHAIN, N8N, COMFYUI)", "ACME, ")
    home = tmp_path / "home"
    (home / "hub").mkdir(parents=True)
    sources = home / "hub/sources.yaml"
    sources.write_text("sources: {shop: {kind: skill, url: http://acme.example}}")
    sources.chmod(0o600)
    assert await called(copy, home, "shop/greet", "{}") == '{"said":"hello"}'
    checked = await program(copy, "-m", "toolhub_service", "sources", "check", str(sources))
    assert '"sources": ["shop"]' in checked, checked
    sources.write_text("sources: {shop: {kind: skill}}")
    checked = await program(copy, "-m", "toolhub_service", "sources", "check", str(sources))
    assert "sources.shop.url: must not be empty" in checked
    assert len(places("Add a source kind")) == 6
