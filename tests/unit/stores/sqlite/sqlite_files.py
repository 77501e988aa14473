"""Two hubs' files on one path, as two processes have them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from toolhub_service.stores.sqlite.file import SqliteFile


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteFile]:
    file = SqliteFile(tmp_path / "hub.db", poll_s=0.005)
    await file.start()
    yield file
    await file.close()


@pytest.fixture
async def other_file(file: SqliteFile) -> AsyncIterator[SqliteFile]:
    """Another process's: connections, threads and all of its own."""
    other = SqliteFile(file.path, poll_s=0.005)
    await other.start()
    yield other
    await other.close()
