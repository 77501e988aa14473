from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from toolhub_service.app.config_files.editing import SecretFileInvalid, read_or_make_key

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
