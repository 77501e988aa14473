"""The events of a stream, joined from their lines (WHATWG HTML §9.2.6)."""

from __future__ import annotations

from collections.abc import Iterator

_MESSAGE = b"message"


class EventReader:
    """Reads one stream, whose pieces may end anywhere. Ids and times to reconnect are not read."""

    def __init__(self) -> None:
        self._rest = b""
        """A line whose end is still to come."""
        self._type = b""
        self._data: list[bytes] = []

    def messages(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of each event of type `message` that ends in this piece; none that is empty."""
        lines = (self._rest + piece).splitlines(keepends=True)
        # After CR the rest of the line's end may follow.
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        for line in lines:
            if data := self._message_at(line.rstrip(b"\r\n")):
                yield data

    def last_messages(self) -> Iterator[bytes]:
        """Yield what the end of the stream completes."""
        if self._rest.endswith(b"\r"):
            yield from self.messages(b"\n")

    def _message_at(self, line: bytes) -> bytes:
        """Return the data of the event that the line ends, if it ends one."""
        if line:
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._data.append(value)
            elif name == b"event":
                self._type = value
            return b""
        kind, data = self._type or _MESSAGE, self._data
        self._type, self._data = b"", []
        return b"\n".join(data) if kind == _MESSAGE else b""
