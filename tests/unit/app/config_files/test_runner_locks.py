from __future__ import annotations

from pathlib import Path

import pytest

from toolhub_service.app.config_files import runner_locks
from toolhub_service.app.config_files.runner_locks import RunnerLocks


class TestRunnerLocks:
    def test_a_runner_with_its_lock_lives_and_one_that_released_it_is_forgotten(self, tmp_path: Path) -> None:
        one, other = RunnerLocks(tmp_path / "runners"), RunnerLocks(tmp_path / "runners")
        one.hold("runner_1")
        assert other.dead() == []
        one.release()
        assert other.dead() == []
        assert list((tmp_path / "runners").iterdir()) == []

    def test_a_dead_runner_is_reported_once_and_never_one_of_another_boot(self, tmp_path: Path) -> None:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        for name in (f"{boot_id}.runner_1", "another-boot.runner_2"):
            (tmp_path / name).touch()
        locks = RunnerLocks(tmp_path)
        locks.hold("runner_3")
        assert locks.dead() == ["runner_1"]
        assert locks.dead() == []
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            ["another-boot.runner_2", f"{boot_id}.runner_3"]
        )
        locks.release()

    def test_a_folder_that_cannot_be_made_reports_no_dead_runner(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        locks = RunnerLocks(tmp_path / "file" / "runners")
        locks.hold("runner_1")
        assert locks.dead() == []
        locks.release()

    def test_system_without_boot_ids_leaves_no_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runner_locks, "_BOOT_ID", tmp_path / "none")
        locks = RunnerLocks(tmp_path / "runners")
        locks.hold("runner_1")
        assert locks.dead() == []
        assert list(tmp_path.iterdir()) == []
