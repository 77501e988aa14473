"""Whether a file is another one than it was, told without reading it."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int, int] | None
"""(inode, modification time, size, mode); None: no such file."""


def stamp_of(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode
