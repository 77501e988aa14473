"""What lets a file through but for parts of it, as it arrives and wherever it is cut: bytes are never gathered.

A file is a row of parts whose lengths are known when they are reached: a step takes one that is wanted whole, and the
data between two steps are passed or dropped as they come.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, Protocol

PARTS_MAX: Final = 65_536
"""Chunks, segments or blocks of one file: an empty one costs few bytes to send, and more to read."""


class Damaged(ValueError):
    """It is no whole file of its kind, or of more parts than a picture has."""


class Sieve(Protocol):
    """Of one file."""

    def passed(self, arrived: bytes) -> bytes:
        """What of it is handed on. Raises Damaged."""
        ...

    def end(self) -> None:
        """Raises Damaged unless the file has ended, too."""
        ...


async def sieved(chunks: AsyncIterator[bytes], sieve: Sieve) -> AsyncGenerator[bytes, None]:
    """Raises Damaged, and what `chunks` raises."""
    async for chunk in chunks:
        passed = sieve.passed(chunk)
        if passed:
            yield passed
    sieve.end()


class StepSieve(ABC):
    """Steps from one part to the next."""

    def __init__(self, wanted: int, step: Callable[[bytes], bytes]) -> None:
        """`step` is called with the first `wanted` bytes, and says what of them is handed on."""
        self._wanted = wanted
        self._step = step
        self._left = 0
        """Bytes of data to come before the next step."""
        self._held = b""
        """Less than is wanted."""
        self._parts = 0

    def passed(self, arrived: bytes) -> bytes:
        data, at, out = self._held + arrived, 0, bytearray()
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                out += self._data(piece)
            elif len(data) - at >= self._wanted:
                piece = data[at : at + self._wanted]
                out += self._step(piece)
            else:
                break
            at += len(piece)
        self._held = data[at:]
        return bytes(out)

    def end(self) -> None:
        if self._step != self._over or self._held or self._left:
            raise Damaged

    def _then(self, wanted: int, step: Callable[[bytes], bytes], *, after: int = 0) -> None:
        """`after` so many bytes of data, this step."""
        self._wanted, self._step, self._left = wanted, step, after

    def _count(self) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise Damaged

    def _over(self, _: bytes) -> bytes:
        """A step that is never to come: the file has ended."""
        raise Damaged

    @abstractmethod
    def _data(self, piece: bytes) -> bytes:
        """What of a piece of data is handed on."""
