"""What the doctor looks at on a machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from toolhub_service.app.doctor import State, machine
from toolhub_service.app.doctor.machine import data_dir_checks, file_system_of


def states(folder: Path) -> list[State]:
    return [finding.state for finding in data_dir_checks(folder)]


def test_the_file_system_of_a_folder_is_that_of_its_nearest_mount() -> None:
    assert file_system_of(Path("/proc/self")) == "proc"
    assert file_system_of(Path("/")) not in ("", "proc")


def test_a_folder_that_is_not_made_yet_is_checked_by_the_one_above(tmp_path: Path) -> None:
    (writable, space) = data_dir_checks(tmp_path / "a" / "b")
    assert writable.state is State.OK
    assert "made at the first start" in writable.text
    assert "GiB free" in space.text
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_place_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert states(tmp_path / "data") == [State.FAIL]


def test_a_network_file_system_is_no_place_for_the_audit_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "file_system_of", lambda folder: "nfs4")
    assert states(tmp_path)[0] is State.FAIL


@pytest.mark.parametrize(("free_bytes", "state"), [(1, State.FAIL), (100 * 1024**2, State.WARN), (1 << 40, State.OK)])
def test_a_full_disk_is_reported_before_it_matters(
    free_bytes: int, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free_bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    assert states(tmp_path)[1] is state


def test_a_disk_below_the_reserve_is_reported_with_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mib = 1024**2
    usage = shutil.disk_usage(tmp_path)._replace(total=10_000 * mib, free=200 * mib)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    _, space = data_dir_checks(tmp_path, 256 * mib)
    assert space.state is State.FAIL
    assert "reserve of 256 MiB: callers can store nothing" in space.text
