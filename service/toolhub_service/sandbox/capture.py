"""The recorded part of a program's output: its beginning, its length and its hash."""

from __future__ import annotations

import hashlib


class Capture:
    """The record of one stream: its first bytes, its length and its hash."""

    def __init__(self, keep_bytes: int) -> None:
        self.kept = bytearray()
        self.total_bytes = 0
        self._keep_bytes = keep_bytes
        self._reported_bytes = 0
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Return the hex digest of all bytes, kept or not."""
        return self._hash.hexdigest()

    def feed(self, data: bytes) -> bytes:
        """Take a piece; return the lines that it completed among the kept bytes."""
        self.total_bytes += len(data)
        self._hash.update(data)
        piece = data[: self._keep_bytes - len(self.kept)]
        self.kept += piece
        end = len(self.kept) - len(piece) + piece.rfind(b"\n") + 1
        return self._lines_to(end) if b"\n" in piece else b""

    def rest(self) -> bytes:
        """Return the unfinished last line."""
        return self._lines_to(len(self.kept))

    def text(self, max_chars: int) -> tuple[str, bool]:
        """Return at most `max_chars` characters and whether something is missing."""
        text = self.kept.decode("utf-8", "replace")
        return text[:max_chars], len(text) > max_chars or self.total_bytes > len(self.kept)

    def _lines_to(self, end: int) -> bytes:
        lines = bytes(self.kept[self._reported_bytes : end])
        self._reported_bytes = max(self._reported_bytes, end)
        return lines
