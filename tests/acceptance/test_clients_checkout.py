"""The packages of the clients, built from a fresh clone by the ordinary commands. Part of `make acceptance-clients`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.terminal import ROOT

PROGRAM = """package main

import "github.com/tool-hub/tool-hub/clients/go/toolhub"

func main() {
	hub, err := toolhub.Connect("hub.example.com:50051", toolhub.Config{APIKey: "thk_x"})
	println(hub.Address(), err == nil)
}
"""


def run(*words: str, cwd: Path) -> str:
    ran = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    run("git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone"), cwd=tmp_path)
    return tmp_path / "clone"


def test_wheel_of_the_python_client_is_built(clone: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path), "clients/python", cwd=clone)
    assert list(tmp_path.glob("toolhub_client-*.whl"))


def test_package_of_the_typescript_client_is_packed(clone: Path) -> None:
    npm = shutil.which("npm")
    assert npm is not None
    run(npm, "pack", cwd=clone / "clients/ts")
    assert list((clone / "clients/ts").glob("tool-hub-client-*.tgz"))
    assert not run("git", "status", "--short", cwd=clone), "what is built is ignored"


def test_program_in_go_is_checked_with_both_replacements(clone: Path, tmp_path: Path) -> None:
    program = tmp_path / "agent"
    program.mkdir()
    (program / "main.go").write_text(PROGRAM)
    module = "github.com/tool-hub/tool-hub"
    replaced = "".join(f"replace {module}/{part} => {clone / part}\n" for part in ("clients/go", "gen/go"))
    (program / "go.mod").write_text(f"module example.com/agent\n\ngo 1.25.0\n\n{replaced}")
    run("go", "mod", "tidy", cwd=program)
    run("go", "vet", "./...", cwd=program)
