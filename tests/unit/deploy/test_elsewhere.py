"""`make test-elsewhere`: what it shows of other machines, and what it says where it cannot."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tests.missing import give_up, need_program

ROOT = Path(__file__).parents[3]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("test_elsewhere_of_ci", ROOT / ".ci/test_elsewhere.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def started(elsewhere: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of the runs, none of which is run."""
    commands: list[list[str]] = []

    def pass_without_a_run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(list(command))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(elsewhere.subprocess, "run", pass_without_a_run)
    return commands


def test_every_file_that_is_run_again_is_there(elsewhere: ModuleType) -> None:
    assert [file for file in elsewhere.FILES if not (ROOT / file).exists()] == []


def test_root_runs_without_bubblewrap_and_as_another_user(
    elsewhere: ModuleType, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere.shutil, "which", lambda program: f"/opt/{program}")
    monkeypatch.setattr(elsewhere.os, "geteuid", lambda: 0)
    monkeypatch.setattr(elsewhere.os, "chown", lambda *_: None)
    monkeypatch.setattr(elsewhere, "_closed_folder", lambda path: None)
    assert elsewhere.main() == 0
    _, hidden, as_user = started
    assert hidden[:9] == [
        "/opt/bwrap",
        "--cap-add",
        "ALL",
        "--dev-bind",
        "/",
        "/",
        "--dev-bind",
        "/dev/null",
        "/opt/bwrap",
    ]
    assert as_user[0] == "setpriv"
    shown = [file for file in elsewhere.FILES if file not in elsewhere.SHOWN_TO_ROOT_ONLY]
    assert (hidden[-len(elsewhere.FILES) :], as_user[-len(shown) :]) == (list(elsewhere.FILES), shown)
    assert not elsewhere.SHOWN_TO_ROOT_ONLY & set(as_user)


def test_what_a_machine_cannot_show_is_said_in_a_line_each(
    elsewhere: ModuleType, started: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(elsewhere.shutil, "which", lambda program: None)
    monkeypatch.setattr(elsewhere.os, "geteuid", lambda: 0)
    monkeypatch.setattr(elsewhere, "_closed_folder", lambda path: Path("/closed"))
    assert elsewhere.main() == 0
    monkeypatch.setattr(elsewhere.os, "geteuid", lambda: 1000)
    assert elsewhere.main() == 0
    assert started == []
    without, closed, again, ordinary = capsys.readouterr().out.splitlines()
    assert without == again
    assert "`make test` did without it" in without
    assert "nobody, who cannot enter /closed: have Python and this tree elsewhere" in closed
    assert "`make test` ran as one that is not root" in ordinary


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user: run the tests as root")
def test_the_way_through_a_closed_folder_is_open_to_the_other_user(
    elsewhere: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bubblewrap = need_program("bwrap", "apt-get install bubblewrap")
    if not elsewhere._succeeds((bubblewrap, *elsewhere.SAME_MACHINE, "true")):
        give_up("bubblewrap makes no namespaces here: run the tests where the container may (CAP_SYS_ADMIN)")
    tree = tmp_path / "closed/within/tree"
    tree.mkdir(parents=True)
    (tree / "file").write_text("read")
    (tmp_path / "closed").chmod(0o700)
    monkeypatch.setattr(elsewhere, "ROOT", tree)
    as_user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", "cat", str(tree / "file"))
    command = (bubblewrap, *elsewhere.SAME_MACHINE, *elsewhere._opened(), "--", *as_user)
    assert not elsewhere._succeeds(as_user)
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("read", "")
