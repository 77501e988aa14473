"""The TCP ports on which a process listens (Linux)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_LISTEN = "0A"


def listening_ports(pid: int) -> list[int]:
    """Sorted."""
    sockets = _sockets(pid)
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and f"socket:[{fields[9]}]" in sockets:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(found)


def _sockets(pid: int) -> set[str]:
    found = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it may be closed meanwhile
            found.add(str(file.readlink()))
    return found
