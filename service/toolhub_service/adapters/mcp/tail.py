"""The last lines that a program wrote to standard error, within bounds whatever it writes."""

from __future__ import annotations

from collections import deque

LINES_MAX = 200
BYTES_MAX = 32 * 1024
"""To look through so much for secrets takes 5 ms."""
LINE_MAX_BYTES = 2_000


class Tail:
    """At most 200 lines and 32 KiB, long lines cut."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._unfinished = b""

    def feed(self, data: bytes) -> None:
        *whole, rest = data[-2 * BYTES_MAX :].split(b"\n")
        if whole:
            whole[0] = self._unfinished + whole[0]
            for line in whole[-LINES_MAX:]:
                self._keep(line[:LINE_MAX_BYTES])
            self._unfinished = b""
        self._unfinished = (self._unfinished + rest)[:LINE_MAX_BYTES]

    def lines(self) -> list[str]:
        """Oldest first, the unfinished one last."""
        last = [self._unfinished] if self._unfinished else []
        return [line.decode("utf-8", "replace") for line in (*self._lines, *last)]

    def _keep(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        while len(self._lines) > LINES_MAX or self._bytes > BYTES_MAX:
            self._bytes -= len(self._lines.popleft())
