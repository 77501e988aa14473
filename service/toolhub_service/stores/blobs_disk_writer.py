"""One blob on its way to the disk: chunks are gathered to 1 MiB, hashed and written in a thread."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Protocol

from toolhub_service.stores.blobs_refusals import telling
from toolhub_service.tools.off_loop import heed, off_loop

_GATHERED_BYTES = 1024 * 1024
"""So that a thread is asked once a megabyte, and a small blob costs one hop in all."""


class Folder(Protocol):
    """What a writer needs of the store; called in a thread."""

    def create(self) -> tuple[int, str]: ...

    def publish(self, descriptor: int, temporary: str, sha256: str, stop: threading.Event) -> None: ...

    def discard(self, temporary: str) -> None: ...


class DiskWriter:
    """`domain.artifact_ports.BlobWriter`."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._descriptor = -1
        self._temporary = ""
        self._sha256 = hashlib.sha256()
        self._size_bytes = 0
        self._held: list[bytes] = []
        self._held_bytes = 0

    async def write(self, chunk: bytes) -> None:
        """Raises ToolFailure IO_ERROR."""
        self._held.append(chunk)
        self._held_bytes += len(chunk)
        if self._held_bytes >= _GATHERED_BYTES:
            await off_loop(self._flush)

    async def finish(self) -> tuple[str, int]:
        await off_loop(self._publish)
        return self._sha256.hexdigest(), self._size_bytes

    async def abort(self) -> None:
        self._held.clear()
        if self._descriptor >= 0:
            await off_loop(lambda _: self._drop())

    def _publish(self, stop: threading.Event) -> None:
        self._flush(stop)
        with telling():
            self._folder.publish(self._descriptor, self._temporary, self._sha256.hexdigest(), stop)
            self._temporary = ""
            self._drop()

    def _flush(self, stop: threading.Event) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        with telling():
            if self._descriptor < 0:
                self._descriptor, self._temporary = self._folder.create()
            for chunk in held:
                heed(stop)
                self._sha256.update(chunk)
                self._size_bytes += len(chunk)
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]

    def _drop(self) -> None:
        """Release the descriptor, and remove what was not published."""
        try:
            if self._temporary:
                with telling():
                    self._folder.discard(self._temporary)
                self._temporary = ""
        finally:
            os.close(self._descriptor)
            self._descriptor = -1
