"""Real MCP servers and clients for tests: those of npm and PyPI, and the protocol's conformance suite.

`python -m tests.servers` installs them: those of npm beside this file, and clients in Python that need another SDK than
the project into .venv/clients. Servers of PyPI come with the project's own packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.command_failures import failure_reason
from tests.missing import give_up

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
NODE_MIN: Final = 22
"""The conformance suite crashes on an older Node."""

PACKAGES: Final = ("client-v1", "client-fastmcp")
"""Lists of what stands before the project's packages on the path of a client's program, for it has another SDK."""
_NODE_PROGRAMS: Final = ROOT / "tests" / "mcp_server" / "clients"
"""Programs for Node that import the packages of npm, which it looks for beside them."""


class Unavailable(Exception):
    """What is needed is not there; the message says why."""


def install() -> str:
    """Where the npm packages stand; installs them when their lock file is newer. Raises Unavailable."""
    node(), program("npm")
    modules, lock = HERE / "node_modules", HERE / "package-lock.json"
    link = _NODE_PROGRAMS / "node_modules"
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(modules, link.parent))
    done = modules / ".installed"
    if done.exists() and done.read_bytes() == lock.read_bytes():
        return str(modules)
    _run("npm", "ci", "--ignore-scripts", "--loglevel=error")
    done.write_bytes(lock.read_bytes())
    return str(modules)


def install_python(name: str) -> str:
    """Where the packages of one of PACKAGES stand; installs them when their list is newer. Raises Unavailable."""
    folder, listed = _folder(name), HERE / f"{name}.txt"
    done = folder / ".installed"
    if done.exists() and done.read_bytes() == listed.read_bytes():
        return str(folder)
    shutil.rmtree(folder, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:")
    _run(*pip, "--require-hashes", "--no-deps", "--target", str(folder), "--requirement", str(listed))
    done.write_bytes(listed.read_bytes())
    return str(folder)


def _folder(name: str) -> Path:
    return Path(sys.prefix) / "clients" / name


def _run(*command: str) -> None:
    ran = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise Unavailable(f"{Path(command[0]).name}: {failure_reason(ran.stdout + ran.stderr, ran.returncode)}")


def node() -> str:
    """The path of a Node that is new enough. Raises Unavailable."""
    path = program("node")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < NODE_MIN:
        raise Unavailable(f"node is {version.strip()}, and {NODE_MIN} or later is needed: `make setup` brings one")
    return path


def program(name: str) -> str:
    """The path of a program, those beside this Python first. Raises Unavailable."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        raise Unavailable(f"{name} is not on the path: make setup")
    return found


def node_program(name: str) -> list[str]:
    """The words that start a program of the npm packages, such as `mcp-server-everything`.

    Without it the test is skipped, or fails where nothing may be missing.
    """
    try:
        return [node(), str(_installed(name))]
    except Unavailable as missing:
        give_up(str(missing))


def node_script(script: Path) -> list[str]:
    """The words that start a program of ours that imports the npm packages; otherwise as `node_program`."""
    if not (script.parent / "node_modules").exists():
        give_up(f"{script.name} has no packages: run `python -m tests.servers`")
    try:
        return [node(), str(script)]
    except Unavailable as missing:
        give_up(str(missing))


def python_packages(name: str) -> Path:
    """The folder of one of PACKAGES, for PYTHONPATH; otherwise as `node_program`."""
    folder = _folder(name)
    if not (folder / ".installed").exists():
        give_up(f"{name} is not installed: run `python -m tests.servers`")
    return folder


def _installed(name: str) -> Path:
    found = HERE / "node_modules" / ".bin" / name
    if not found.exists():
        raise Unavailable(f"{name} is not installed: run `python -m tests.servers`")
    return found.resolve()
