from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from toolhub_service.app.files import editing as files
from toolhub_service.app.files.editing import RunnerLocks, SecretFileInvalid, read_or_make_key

STARTERS = 16


def test_processes_that_start_together_share_one_key(tmp_path: Path) -> None:
    for attempt in range(20):
        path, together = tmp_path / f"plan{attempt}.key", Barrier(STARTERS)

        def start(path: Path = path, together: Barrier = together) -> bytes:
            together.wait()
            return read_or_make_key(path)

        with ThreadPoolExecutor(STARTERS) as threads:
            keys = {future.result() for future in [threads.submit(start) for _ in range(STARTERS)]}
        assert len(keys) == 1
        assert len(keys.pop()) == 32
        assert path.stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.iterdir())) == 20  # no draft stays


def test_a_file_that_is_no_key_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "plan.key"
    path.write_text("not hex")
    with pytest.raises(SecretFileInvalid, match="holds no key"):
        read_or_make_key(path)
    assert path.read_text() == "not hex"


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
        monkeypatch.setattr(files, "_BOOT_ID", tmp_path / "none")
        locks = RunnerLocks(tmp_path / "runners")
        locks.hold("runner_1")
        assert locks.dead() == []
        assert list(tmp_path.iterdir()) == []
