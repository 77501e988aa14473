"""`make setup` and `make run`: what each installs, what is shown meanwhile, and what is left to the user."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, whose .venv is an empty folder."""
    spec = importlib.util.spec_from_file_location("setup_of_the_project", ROOT / ".ci/setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "STAMPS", tmp_path)
    monkeypatch.setattr(module, "IN_TERMINAL", False)
    return module


def installed(setup: ModuleType, monkeypatch: pytest.MonkeyPatch, profile: str) -> list[str]:
    """The words of every command that the profile runs."""
    ran: list[str] = []
    monkeypatch.setattr(setup, "run", lambda *command, **_: ran.extend(str(word) for word in command))
    monkeypatch.setattr(setup, "link_node", lambda: None)
    for part in setup.parts(profile):
        try:
            part.install()
        except setup.CannotHaveError as why:
            ran.append(f"not had: {why}")
    return ran


@pytest.mark.promise("setup.runtime-only")
def test_running_the_hub_installs_nothing_for_development(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    run = installed(setup, monkeypatch, "run")
    assert [Path(word).name for word in run if word.endswith(".txt")] == ["runtime.txt", "build.txt"]
    assert not {"go", "npm", "apt-get"} & set(run)
    assert {"go", "npm"} <= set(installed(setup, monkeypatch, ""))


def test_every_locked_package_is_installed_by_one_pip_and_pip_itself_first(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists: list[str] = []
    monkeypatch.setattr(
        setup, "pip_install", lambda *arguments, packages: lists.append(Path(arguments[-1]).read_text())
    )
    setup.install_all_packages()
    lock = (ROOT / ".ci/toolchain/dev.txt").read_text()
    locked = [line for line in lock.splitlines() if line and not line.lstrip().startswith("#")]
    assert lists[0].startswith("pip==")
    assert sorted(line for part in lists for line in part.splitlines() if not line.lstrip().startswith("#")) == sorted(
        locked
    )


@pytest.mark.promise("setup.runtime-only")
def test_a_long_step_shows_its_duration_and_last_output(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "TELL_EVERY_S", 0.01)
    original = setup.tell_progress

    def show_late(elapsed_s: float, line: str) -> None:
        original(elapsed_s, line)
        if line:
            (tmp_path / "seen").touch()

    monkeypatch.setattr(setup, "tell_progress", show_late)
    setup.run("/bin/sh", "-c", f"echo Downloading; until [ -e {tmp_path}/seen ]; do sleep 0.01; done")
    assert " s  Downloading\n" in capsys.readouterr().out


def test_a_failing_step_is_reported_with_its_last_output_and_retried(
    setup: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        setup.run("/bin/sh", "-c", "echo no such package; exit 3")

    part = setup.Part("packages", [ROOT / "Makefile"], fails)
    assert not setup.ensure(part, "1/2")
    shown = capsys.readouterr()
    assert shown.out.startswith("setup 1/2: packages\n")
    assert "setup: no packages (sh: no such package)" in shown.err
    assert not setup.stands(part)


def test_a_package_that_needs_a_newer_python_is_reported_with_that_reason(setup: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text(
        '<a href="newer-1.0-py3-none-any.whl" data-requires-python="&gt;=99">newer-1.0-py3-none-any.whl</a>'
    )
    pip = (sys.executable, *setup.PIP, "--no-index", f"--find-links={page}", "--target", tmp_path / "target")
    with pytest.raises(setup.CannotHaveError, match=r": newer 1\.0 Requires-Python >=99; No matching distribution"):
        setup.run(*pip, "newer==1.0")


def test_an_environment_of_another_python_is_made_anew(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert setup.is_made_by_this_python()
    monkeypatch.setattr(setup.sys, "prefix", "/usr")
    assert setup.is_made_by_this_python()
    monkeypatch.setattr(setup.sys, "version", "3.99.0 (main)")
    assert not setup.is_made_by_this_python()


@pytest.mark.parametrize("python", ["", "/nowhere/python3", "old"])
def test_make_refuses_without_a_python_that_is_new_enough(tmp_path: Path, python: str) -> None:
    if python == "old":
        python = str(tmp_path / "python3.9")
        Path(python).write_text("#!/bin/sh\nexit 1\n")
        Path(python).chmod(0o755)
    ended = subprocess.run(["make", "setup", f"PYTHON={python}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "Python >= 3.11 is needed" in ended.stderr
