"""`make gen` with plugins that die: the tree stays as it was, and the message says what failed and what to do."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.missing import give_up

ROOT = Path(__file__).parents[3]
GO_PLUGIN = "protoc-gen-go"
CONFIGURATION = """
version: v2
inputs: [{directory: proto, paths: [proto/toolhub]}]
plugins:
  - {protoc_builtin: python, protoc_path: [python, -m, grpc_tools.protoc], out: python, include_imports: true}
  - {protoc_builtin: pyi, protoc_path: [python, -m, grpc_tools.protoc], out: ts}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the script reads, with a gen/ that holds one file a part."""
    if not shutil.which("buf", path=_path(tmp_path)):
        give_up("buf is not installed: run `make setup`")
    tree = tmp_path / "checkout"
    shutil.copytree(ROOT / "proto", tree / "proto")
    shutil.copy2(ROOT / "buf.yaml", tree)
    (tree / "buf.gen.yaml").write_text(CONFIGURATION)
    (tree / ".ci").mkdir()
    shutil.copy2(ROOT / ".ci/generate", tree / ".ci/generate")
    for file in ("python/former.py", "ts/former.ts", "go/toolhub/former.go", "go/go.mod", "toolhub.binpb"):
        (tree / "gen" / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / "gen" / file).write_text(f"what {file} held")
    return tree


def _path(folder: Path) -> str:
    return os.pathsep.join([str(folder / "plugins"), str(Path(sys.executable).parent), os.environ["PATH"]])


def contents(folder: Path) -> dict[str, bytes]:
    """Of files; a folder has none."""
    return {str(each.relative_to(folder)): each.read_bytes() if each.is_file() else b"" for each in folder.rglob("*")}


async def generate(tree: Path) -> tuple[int | None, str]:
    """How `.ci/generate gen` ends, and what it prints."""
    process = await asyncio.create_subprocess_exec(
        tree / ".ci/generate",
        str(tree / "gen"),
        env={**os.environ, "PATH": _path(tree.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    return process.returncode, printed.decode()


async def test_a_killed_plugin_leaves_the_tree_as_it_was(checkout: Path) -> None:
    plugin = checkout.parent / "plugins" / GO_PLUGIN
    plugin.parent.mkdir()
    plugin.write_text("#!/bin/sh\nkill -9 $$\n")
    plugin.chmod(0o755)
    (checkout / "buf.gen.yaml").write_text(CONFIGURATION + f"  - {{local: {GO_PLUGIN}, out: go}}\n")
    before = contents(checkout)
    status, printed = await generate(checkout)
    assert status != 0
    assert f"plugin {GO_PLUGIN}: signal: killed" in printed
    assert "Nothing was generated: `buf generate` with the plugins of buf.gen.yaml ended with status" in printed
    assert "gen is as it was" in printed
    assert "then repeat" in printed
    assert contents(checkout) == before


async def test_a_failed_swap_puts_back_the_parts_that_were_swapped_before(checkout: Path) -> None:
    """No plugin writes Go here; Python and TypeScript are swapped when this is noticed."""
    before = contents(checkout)
    status, printed = await generate(checkout)
    assert status != 0
    assert "Nothing was generated: moving what was generated to" in printed
    assert contents(checkout) == before
