from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from toolhub_service.stores.audit.sqlite import connect

STARTERS = 8


def test_writers_that_start_together_on_a_new_database_all_open_it(tmp_path: Path) -> None:
    for attempt in range(30):
        path, together = tmp_path / f"audit{attempt}.db", Barrier(STARTERS)

        def start(path: Path = path, together: Barrier = together) -> str:
            together.wait()
            connection = connect(path)
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            connection.close()
            return str(mode)

        with ThreadPoolExecutor(STARTERS) as threads:
            modes = [future.result() for future in [threads.submit(start) for _ in range(STARTERS)]]
        assert modes == ["wal"] * STARTERS
