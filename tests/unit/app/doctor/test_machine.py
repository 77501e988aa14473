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
    assert "iB free" in space.text
    assert not (tmp_path / "a").exists()


def test_of_a_file_in_the_place_of_the_folder_nothing_is_measured(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert states(tmp_path / "data") == [], "the hub does not start, and the checks of the start tell"


def test_a_network_file_system_is_no_place_for_the_audit_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "file_system_of", lambda folder: "nfs4")
    assert states(tmp_path)[0] is State.FAIL


@pytest.mark.parametrize(
    ("total_mib", "free_mib", "state", "text"),
    [
        (40, 30, State.OK, "30.0 MiB free"),
        (40, 7, State.WARN, "7.0 MiB free; the reserve begins at 4.0 MiB"),
        (40, 3, State.FAIL, "3.0 MiB free, less than the reserve of 4.0 MiB"),
        (100_000, 400, State.WARN, "400.0 MiB free; the reserve begins at 256.0 MiB"),
        (100_000, 3_000, State.OK, "2.9 GiB free"),
    ],
)
def test_a_disk_is_measured_by_the_reserve_that_the_hub_keeps_of_it(
    total_mib: int, free_mib: int, state: State, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mib = 1024**2
    usage = shutil.disk_usage(tmp_path)._replace(total=total_mib * mib, free=free_mib * mib)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    _, space = data_dir_checks(tmp_path, 256 * mib)
    assert (space.state, space.text.startswith(text)) == (state, True), space.text


def test_a_disk_without_a_reserve_is_full_when_the_audit_log_has_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=4_096)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    assert states(tmp_path)[1] is State.FAIL
