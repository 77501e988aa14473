"""`make setup` and `make run`: what each installs, what is shown meanwhile, and what is left to the user."""

from __future__ import annotations

import importlib.util
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
    monkeypatch.setattr(setup, "pip_install", lambda *arguments: lists.append(Path(arguments[-1]).read_text()))
    setup.install_all_packages()
    lock = (ROOT / ".ci/toolchain/dev.txt").read_text()
    locked = [line for line in lock.splitlines() if line and not line.lstrip().startswith("#")]
    assert lists[0].startswith("pip==")
    assert sorted(line for part in lists for line in part.splitlines() if not line.lstrip().startswith("#")) == sorted(
        locked
    )


@pytest.mark.promise("setup.runtime-only")
def test_system_packages_are_named_and_not_installed_unasked(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.shutil, "which", lambda program, **_: None if program == "bwrap" else f"/bin/{program}")
    monkeypatch.setattr(setup, "version_of", lambda *_: (99,))
    monkeypatch.delenv("APT_INSTALL", raising=False)
    ran = installed(setup, monkeypatch, "")
    assert "apt-get" not in ran
    assert "`apt-get install bubblewrap` as root, or `make setup APT_INSTALL=1`" in ran[-1]
    monkeypatch.setenv("APT_INSTALL", "1")
    assert "apt-get" in installed(setup, monkeypatch, "")


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
