"""Places that the log is carried to: a file of JSON lines, an S3-compatible bucket."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from toolhub_service.stores.audit.chain import sync_folder
from toolhub_service.stores.audit.export import Batch
from toolhub_service.stores.audit.retention import drop_half_line

_WRITER, _SEQUENCE, _AT = 1, 2, 3
"""Places in a row of a batch."""


class FileSink:
    """One file, renamed once it is as large as it may be. Opened for each batch: whoever moves it away may."""

    name: Final = "file"

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def send(self, batch: Batch) -> int:
        """Raises OSError."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(self._path, flags, 0o600), "r+b", buffering=0) as file:
            drop_half_line(file.fileno())
            data = memoryview(b"".join(batch.lines))
            while data:
                data = data[file.write(data) or 0 :]
            os.fsync(file.fileno())
            is_full = os.fstat(file.fileno()).st_size >= self._max_bytes
        if is_full:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            name = f"{self._path.stem}-{stamp}-{batch.rows[-1][0]:012d}{self._path.suffix}"
            self._path.rename(self._path.with_name(name))
        sync_folder(self._path.parent)
        return 0

    def close(self) -> None:
        """Nothing is open."""


class BucketSink:
    """An object a batch, named by day and rows, so that a batch that is sent again, and has not grown, is the same."""

    name: Final = "bucket"

    def __init__(self, put: Callable[[str, bytes], object]) -> None:
        """`put`: an object of that name and content is durable when it returns; raises when the bucket is away."""
        self._put = put

    def send(self, batch: Batch) -> int:
        first, last = batch.rows[0], batch.rows[-1]
        day = time.strftime("%Y/%m/%d", time.gmtime(first[_AT] / 1_000))
        # A log that was restored counts its rows anew: the last event says which of both it is.
        self._put(
            f"{day}/{first[0]:012d}-{last[0]:012d}-{last[_WRITER]}-{last[_SEQUENCE]}.jsonl", b"".join(batch.lines)
        )
        return 0

    def close(self) -> None:
        """Connections end with the process."""
