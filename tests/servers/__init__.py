"""Real MCP servers for tests: the reference servers of npm and PyPI, and the protocol's conformance suite.

`python -m tests.servers` installs those of npm beside this file; those of PyPI come with the project's own packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
NODE_MIN: Final = 22
"""The conformance suite crashes on an older Node."""


class Unavailable(Exception):
    """What is needed is not there; the message says why."""


def install() -> str:
    """Where the npm packages stand; installs them when their lock file is newer. Raises Unavailable."""
    node(), program("npm")
    modules, lock = HERE / "node_modules", HERE / "package-lock.json"
    done = modules / ".installed"
    if done.exists() and done.read_bytes() == lock.read_bytes():
        return str(modules)
    ran = subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--silent"], cwd=HERE, capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        said = (ran.stderr + ran.stdout).strip().splitlines()
        raise Unavailable(f"npm: {said[-1] if said else f'exit {ran.returncode}'}")
    done.write_bytes(lock.read_bytes())
    return str(modules)


def node() -> str:
    """The path of a Node that is new enough. Raises Unavailable."""
    path = program("node")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    if int(said.removeprefix("v").partition(".")[0]) < NODE_MIN:
        raise Unavailable(f"node is {said.strip()}, and {NODE_MIN} or later is needed: `make setup` brings one")
    return path


def program(name: str) -> str:
    """The path of a program, those beside this Python first. Raises Unavailable."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        raise Unavailable(f"{name} is not on the path")
    return found


def node_program(name: str) -> list[str]:
    """The words that start a program of the npm packages, such as `mcp-server-everything`.

    Without it the test is skipped, or fails where nothing may be missing.
    """
    try:
        return [node(), str(_installed(name))]
    except Unavailable as missing:
        if os.environ.get("TOOLHUB_REQUIRE_SERVICES") == "1":
            raise
        pytest.skip(str(missing))


def _installed(name: str) -> Path:
    found = HERE / "node_modules" / ".bin" / name
    if not found.exists():
        raise Unavailable(f"{name} is not installed: run `python -m tests.servers`")
    return found.resolve()
