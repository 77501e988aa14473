"""What the doctor finds in the files that a hub keeps."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.hub import running_hub
from toolhub_service.app.doctor import Finding, State
from toolhub_service.app.doctor.kept import kept_checks
from toolhub_service.settings.loading import load_settings


def found(folder: Path) -> dict[str, Finding]:
    settings = load_settings(None, {"TOOLHUB_DATA_DIR": str(folder)})
    return {finding.name: finding for finding in kept_checks(settings)}


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """What a hub leaves that has run."""
    async with running_hub(tmp_path):
        pass
    return tmp_path / "hub"


def overwritten(path: Path) -> None:
    path.write_bytes(b"this was a database once" * 1_000)


def torn(path: Path) -> None:
    """Whole but for its pages after the first."""
    data = path.read_bytes()
    path.write_bytes(data[:4_096] + b"\xa5" * (len(data) - 4_096))


def test_a_new_folder_has_nothing_to_look_at(tmp_path: Path) -> None:
    assert not found(tmp_path)


def test_files_left_by_a_hub_pass_the_check_and_stay_unchanged(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {name: each.state for name, each in found(folder).items()} == {
        "audit log": State.OK,
        "hub's store": State.OK,
    }
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("harm", [overwritten, torn])
@pytest.mark.parametrize(("name", "file"), [("audit log", "audit.db"), ("hub's store", "hub.db")])
def test_a_damaged_database_is_found(folder: Path, name: str, file: str, harm: Callable[[Path], None]) -> None:
    harm(folder / file)
    finding = found(folder)[name]
    assert finding.state is State.FAIL
    assert str(folder / file) in finding.text
    assert "backup" in finding.advice


def test_a_store_of_a_newer_hub_is_found(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "hub.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.commit()
    finding = found(folder)["hub's store"]
    assert finding.state is State.FAIL
    assert "has version 99" in finding.text


def test_keys_that_are_gone_or_broken_are_found(folder: Path) -> None:
    (folder / "audit.key").unlink()
    (folder / "plan.key").write_text("x")
    findings = found(folder)
    assert "is missing, yet events exist" in findings["audit key"].text
    assert findings["plan key"].state is State.FAIL


async def test_files_of_a_running_hub_are_whole_too(tmp_path: Path) -> None:
    async with running_hub(tmp_path):
        assert {finding.state for finding in found(tmp_path / "hub").values()} == {State.OK}
