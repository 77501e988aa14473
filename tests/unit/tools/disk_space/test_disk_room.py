"""The free space of a disk: the reserve, the share of one caller, and the file that holds a part of the reserve."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.tools.disk_space.ballast import Ballast
from toolhub_service.tools.disk_space.disk_room import DiskRoom

MIB = 1024 * 1024


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """1,000 MiB, of which `free` are free."""
    state = SimpleNamespace(free=500 * MIB)

    def statvfs(path: object) -> SimpleNamespace:
        return SimpleNamespace(f_frsize=1, f_bsize=1, f_blocks=1_000 * MIB, f_bavail=state.free)

    monkeypatch.setattr(os, "statvfs", statvfs)
    return state


def refusal(room: DiskRoom, size_bytes: int = 0, own_bytes: int | None = None) -> str:
    """The cause; empty: nothing is refused."""
    try:
        room.check(size_bytes, own_bytes)
    except ToolFailure as failure:
        error = failure.error
    else:
        return ""
    assert (error.kind, error.is_retryable) == (ErrorKind.BUDGET_EXCEEDED, False)
    return str(error.details["cause"])


def test_the_reserve_is_kept_from_what_would_be_stored(disk: SimpleNamespace, tmp_path: Path) -> None:
    room = DiskRoom(tmp_path, 50 * MIB)
    assert refusal(room) == ""
    assert refusal(room, 450 * MIB) == ""
    assert refusal(room, 450 * MIB + 1) == "DISK_FULL"
    disk.free = 50 * MIB - 1
    assert refusal(room) == "DISK_FULL"
    assert room.is_short


def test_the_reserve_is_at_most_a_tenth_of_the_disk(disk: SimpleNamespace, tmp_path: Path) -> None:
    assert DiskRoom(tmp_path, 10_000 * MIB).measure() == (500 * MIB, 100 * MIB)


def test_nobody_stores_more_than_is_left_for_the_others(disk: SimpleNamespace, tmp_path: Path) -> None:
    room = DiskRoom(tmp_path, 100 * MIB)
    assert refusal(room, 0, own_bytes=400 * MIB) == ""
    assert refusal(room, 1 * MIB, own_bytes=400 * MIB) == "DISK_SHARE"
    assert refusal(room, 1 * MIB, own_bytes=300 * MIB) == ""


def test_without_a_reserve_callers_may_fill_the_disk(disk: SimpleNamespace, tmp_path: Path) -> None:
    assert refusal(DiskRoom(tmp_path, 0), 500 * MIB) == ""


def test_a_folder_that_does_not_exist_yet_has_the_disk_of_the_one_above(tmp_path: Path) -> None:
    assert DiskRoom(tmp_path / "not" / "there", 0).measure()[0] > 0


def test_a_disk_that_cannot_be_asked_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "statvfs", fail)
    room = DiskRoom(tmp_path, 1)
    assert refusal(room) == ""
    assert not room.is_short


def test_a_part_of_the_reserve_is_held_while_little_is_free_and_given_back_at_the_end(
    disk: SimpleNamespace, tmp_path: Path
) -> None:
    ballast = Ballast(tmp_path, 40 * MIB)
    room = DiskRoom(tmp_path, 40 * MIB, ballast)
    disk.free = 900 * MIB
    room.adjust()
    assert ballast.size_bytes == 0
    disk.free = 600 * MIB
    room.adjust()
    assert ballast.size_bytes == 20 * MIB
    assert room.measure() == (620 * MIB, 40 * MIB)
    disk.free = 11 * MIB
    room.adjust()
    assert ballast.size_bytes == 20 * MIB
    assert refusal(room) == "DISK_FULL"
    disk.free = 9 * MIB
    room.adjust()
    assert ballast.size_bytes == 0
    room.adjust()
    assert ballast.size_bytes == 0
    disk.free = 100 * MIB
    room.adjust()
    assert ballast.size_bytes == 20 * MIB


def test_a_file_system_that_cannot_hold_it_has_none(
    disk: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    ballast = Ballast(tmp_path, 40 * MIB)
    DiskRoom(tmp_path, 40 * MIB, ballast).adjust()
    assert ballast.size_bytes == 0
    assert list(tmp_path.iterdir()) == []
