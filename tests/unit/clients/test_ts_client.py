"""The TypeScript client: its own tests, most against a whole hub, and the package as another program gets it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.hub import running_hub
from tests.missing import give_up, need_program
from tests.rpc.artifact_server import artifact_server
from tests.unit.clients.test_go_client import BREAKS_AFTER, POLICY, encrypted_hub

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "clients/ts"
MODULES = ROOT / ".ci/toolchain/node_modules"
TSC = MODULES / "typescript/bin/tsc"
NEEDED = ("@bufbuild/protobuf", "@connectrpc/connect", "@connectrpc/connect-node", "@types/node", "undici-types")
PROGRAM = """
import { connect, Reason } from "@tool-hub/client";
import { ToolKind } from "@tool-hub/client/v1/tool";

const hub = connect("hub.example.com");
console.log(hub.address, Reason.DRAINING, ToolKind[ToolKind.MCP]);
"""
CONFIG = '{"compilerOptions": {"module": "NodeNext", "target": "ES2022", "strict": true, "skipLibCheck": true}}'

need_program("node")
if not TSC.exists():
    give_up("the TypeScript compiler is not here: make setup")
pytestmark = pytest.mark.timeout(360)


def run(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def built(folder: Path) -> Path:
    """The folder that has the compiled client in it, as `npm run build` makes it."""
    compiled = run("node", TSC, "--project", CLIENT, "--noEmit", "false", "--outDir", folder / "dist", cwd=ROOT)
    assert compiled.returncode == 0, compiled.stdout
    (folder / "node_modules").symlink_to(MODULES)
    (folder / "dist/package.json").write_text('{"type": "module"}')
    return folder


@pytest.mark.promise("clients.languages")
async def test_typescript_tests_pass_against_a_hub(tmp_path: Path) -> None:
    folder = await asyncio.to_thread(built, tmp_path)
    tests = sorted((folder / "dist/clients/ts/test").glob("*.test.js"))
    async with (
        running_hub(tmp_path, policy=POLICY) as running,
        artifact_server(tmp_path / "blobs") as artifacts,
        encrypted_hub(tmp_path / "tls") as encrypted,
    ):
        artifacts.breaking.after = 2 * list(BREAKS_AFTER)
        hubs = {"TOOLHUB_LIVE": running.address, "TOOLHUB_BREAKING": artifacts.address, **encrypted}
        tested = await asyncio.to_thread(run, "node", "--test", *tests, cwd=folder, **hubs)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert artifacts.breaking.after == [], "every upload that was to break has gone on"
    counts = dict(re.findall(r"^\S+ (pass|skipped) (\d+)$", tested.stdout, re.MULTILINE))
    assert counts["skipped"] == "0"
    assert int(counts["pass"]) > 10


@pytest.mark.skipif(os.environ.get("TEST_ACCEPTANCE") != "clients", reason="slow: make acceptance-clients")
@pytest.mark.promise("clients.packages")
def test_program_elsewhere_compiles_and_runs_with_the_package(tmp_path: Path) -> None:
    source, program = tmp_path / "source", tmp_path / "program"
    source.mkdir()
    built(source)
    for name in ("package.json", "README.md"):
        shutil.copy(CLIENT / name, source)
    packed = run("npm", "pack", "--ignore-scripts", "--offline", "--pack-destination", tmp_path, cwd=source)
    assert packed.returncode == 0, packed.stderr
    archive = tmp_path / packed.stdout.split()[-1]
    with tarfile.open(archive) as package:
        assert not [name for name in package.getnames() if "/test/" in name or "/examples/" in name]
    program.mkdir()
    (program / "package.json").write_text('{"type": "module"}')
    # What it needs comes from archives too, for npm is to ask no registry.
    needed = [run("npm", "pack", "--offline", "--ignore-scripts", MODULES / name, cwd=tmp_path) for name in NEEDED]
    archives = [archive, *(tmp_path / each.stdout.split()[-1] for each in needed)]
    installed = run("npm", "install", "--offline", "--ignore-scripts", "--no-audit", *archives, cwd=program)
    assert installed.returncode == 0, installed.stderr
    (program / "tsconfig.json").write_text(CONFIG)
    (program / "main.ts").write_text(PROGRAM)
    compiled = run("node", TSC, "--project", program, cwd=program)
    assert compiled.returncode == 0, compiled.stdout
    ran = run("node", "main.js", cwd=program)
    assert ran.stdout == "http://hub.example.com:50051 DRAINING MCP\n", ran.stderr
