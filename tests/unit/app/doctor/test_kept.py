"""What the doctor finds in the files that a hub keeps."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.hub import running_hub
from toolhub_service.app.doctor import Finding, State, kept
from toolhub_service.app.doctor.kept import kept_checks
from toolhub_service.settings.loading import load_settings
from toolhub_service.stores.audit.verify_recent import verify_recent


def found(folder: Path) -> dict[str, Finding]:
    settings = load_settings(None, {"TOOLHUB_DATA_DIR": str(folder)})
    return {finding.name: finding for finding in kept_checks(settings)}


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """What a hub leaves that has run."""
    async with running_hub(tmp_path) as running:
        for _ in range(3):
            await running.invoke("core/util.time.now")
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


def test_a_log_of_which_all_was_verified_is_told_apart_from_one_of_which_only_the_end_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "events and every checkpoint verified" in found(folder)["audit log"].text
    monkeypatch.setattr(kept, "verify_recent", partial(verify_recent, limit=1))
    text = found(folder)["audit log"].text
    assert "the newest 1 event and checkpoints verified, the others not: `toolhub audit verify` checks all" in text


@pytest.mark.parametrize("limit", [10_000, 1])
def test_an_event_that_was_changed_is_found_within_what_is_verified(
    folder: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "verify_recent", partial(verify_recent, limit=limit))
    with closing(sqlite3.connect(folder / "audit.db")) as connection:
        connection.execute(
            "UPDATE events SET body = replace(body, 'ok', 'no') WHERE row = (SELECT max(row) FROM events)"
        )
        connection.commit()
    finding = found(folder)["audit log"]
    assert finding.state is State.FAIL
    assert "the tag does not fit the event" in finding.text


async def test_files_of_a_running_hub_are_whole_too(tmp_path: Path) -> None:
    async with running_hub(tmp_path):
        assert {finding.state for finding in found(tmp_path / "hub").values()} == {State.OK}
