"""Reading text from a stream of bytes: some lines of it, cut at a size, with the digest and line count of the whole."""

from __future__ import annotations

import codecs
import hashlib
import threading

from toolhub_service.tools.source_file import SourceFile
from toolhub_service.tools.text_encoding import undecodable

_HEAD_LINES = 20
_HEAD_CHARS = 64 * 1024


class LineReading:
    """Lines `start_line` to `end_line` (from 1, inclusive; None: to the end), at most `max_bytes` of UTF-8."""

    def __init__(self, codec: str, *, start_line: int, end_line: int | None, max_bytes: int) -> None:
        self.truncated = False
        self.head_sha256 = ""
        """Of the first 20 lines as UTF-8, 64 Ki characters at most."""
        self._codec = codec
        self._decoder = codecs.getincrementaldecoder(codec)("strict")
        self._start_line = start_line
        self._end_line = end_line
        self._room_bytes = max_bytes
        self._line = 1
        self._open_line = False
        self._kept: list[str] = []
        self._sha256 = hashlib.sha256()

    @property
    def text(self) -> str:
        return "".join(self._kept)

    @property
    def sha256(self) -> str:
        """Of all bytes read."""
        return self._sha256.hexdigest()

    @property
    def total_lines(self) -> int:
        """Line feeds, and one more for a last line without."""
        return self._line - 1 + self._open_line

    def take(self, file: SourceFile, stop: threading.Event | None = None) -> None:
        """Read the whole file. Raises ToolFailure INVALID_INPUT when it is not text in the encoding."""
        before_bytes = 0
        for data in file.chunks(stop):
            self._sha256.update(data)
            self._decode(data, before_bytes, file.path)
            before_bytes += len(data)
        self._decode(b"", before_bytes, file.path, final=True)

    def _decode(self, data: bytes, before_bytes: int, path: str, *, final: bool = False) -> None:
        waiting_bytes = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(data, final)
        except UnicodeDecodeError as error:
            raise undecodable(path, self._codec, before_bytes - waiting_bytes + error.start) from error
        if not self.head_sha256:
            head = text[: _after_newlines(text, _HEAD_LINES)][:_HEAD_CHARS]
            self.head_sha256 = hashlib.sha256(head.encode()).hexdigest()
        if text:
            self._select(text)

    def _select(self, text: str) -> None:
        first_line = self._line
        self._line += text.count("\n")
        self._open_line = not text.endswith("\n")
        if self._line < self._start_line or (self._end_line is not None and first_line > self._end_line):
            return
        begin = _after_newlines(text, self._start_line - first_line)
        end = len(text)
        if self._end_line is not None and self._line > self._end_line:
            end = _after_newlines(text, self._end_line - first_line + 1)
        self._keep(text[begin:end])

    def _keep(self, text: str) -> None:
        if self.truncated:
            return
        raw = text.encode()
        if len(raw) > self._room_bytes:
            self.truncated = True
            text = raw[: self._room_bytes].decode("utf-8", "ignore")
        self._room_bytes -= min(len(raw), self._room_bytes)
        self._kept.append(text)


def _after_newlines(text: str, count: int) -> int:
    """Index behind the count-th line feed; the length when there are fewer, 0 for none."""
    at = 0
    for _ in range(count):
        at = text.find("\n", at) + 1
        if at == 0:
            return len(text)
    return at
