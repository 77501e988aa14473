"""Signed checkpoints: how many events a writer's chain held, and its last tag, kept apart from the events.

A chain cannot show that its end was cut off; a checkpoint can. Each is one JSON line, sealed with a key of its own and
with the seal of the line before (so that a line in the middle cannot vanish either), appended under a file lock and
fsynced. Every writer's chain starts with an `open` line that is on disk before its first event, so a chain without one
is a forgery, or the file is gone. A copy of each line is kept in the events' database: it shows when the file was cut
or replaced by an older one. A rollback of database and file together to one earlier moment is found only by a line that
was kept elsewhere; `witness` receives each line for that.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import orjson

from toolhub_service.stores.audit.chain import GENESIS
from toolhub_service.stores.audit.events import tampering_error
from toolhub_service.stores.audit.keyring import Keyring, sync_folder

OPEN: Final = "open"
PERIODIC: Final = "periodic"
CLOSE: Final = "close"
ADOPT: Final = "adopt"
"""Written by another process for a chain whose writer was killed: what that process found intact."""
PRUNE: Final = "prune"
"""Events up to `count` were removed on purpose."""


class Checkpoint(msgspec.Struct, frozen=True):
    """One line of the file."""

    number: int
    """From 1, gapless within the file."""
    kind: str
    writer: str
    count: int
    """How many events the chain held: the sequence of the last one."""
    head: str
    """The tag of the last one; 64 zeros when there is none."""
    at_unix_ms: int
    key_id: str
    previous: str
    """The seal of the line before; 64 zeros for the first."""
    mac: str = ""

    def bytes_to_seal(self) -> bytes:
        """Return the bytes that the seal covers."""
        data = msgspec.structs.asdict(self)
        del data["mac"]
        return orjson.dumps(data)

    def line(self) -> str:
        return orjson.dumps(msgspec.structs.asdict(self)).decode()


def parse_line(line: str | bytes, keyring: Keyring) -> Checkpoint | None:
    """Return the checkpoint of a line; None when it is damaged, forged or sealed with an unknown key."""
    try:
        checkpoint = Checkpoint(**orjson.loads(line))
        mac = keyring.checkpoint(checkpoint.key_id)
        genuine = mac is not None and mac.fits(checkpoint.bytes_to_seal(), checkpoint.mac)
    except (ValueError, TypeError, AttributeError):
        return None
    return checkpoint if genuine else None


class CheckpointFile:
    """Appends checkpoints; shared by threads, and through a file lock by processes."""

    def __init__(
        self, path: Path, keyring: Keyring, unix_ms: Callable[[], int], witness: Callable[[str], None] | None = None
    ) -> None:
        self._path = path
        self._keyring = keyring
        self._unix_ms = unix_ms
        self._witness = witness
        self._lock = threading.Lock()
        self._read_bytes = 0
        self._last: tuple[int, str] = (0, GENESIS)
        # Device and inode of the file that this process has written to.
        self._place: tuple[int, int] | None = None

    def append(self, kind: str, writer: str, count: int, head: str) -> Checkpoint:
        """Sign what a chain holds and return when the line is on disk. Raises OSError, and what `check` raises."""
        with self._lock:
            self._check_unchanged()
            with _lock_file(self._path) as descriptor:
                signed = self._append(descriptor, kind, writer, count, head)
        if self._witness is not None:
            self._witness(signed.line())
        return signed

    def check(self) -> None:
        """Raises HubFailure AUDIT_LOG_CHANGED when the file that was written to is gone, replaced or shorter."""
        with self._lock:
            self._check_unchanged()

    def _check_unchanged(self) -> None:
        if self._place is None:
            return
        try:
            found = self._path.stat()
        except FileNotFoundError:
            raise tampering_error(f"The audit log's checkpoint file {self._path} is gone") from None
        if (found.st_dev, found.st_ino) != self._place or found.st_size < self._read_bytes:
            raise tampering_error(f"The audit log's checkpoint file {self._path} was replaced or cut")

    def _append(self, descriptor: int, kind: str, writer: str, count: int, head: str) -> Checkpoint:
        self._catch_up(descriptor)
        number, previous = self._last
        unsigned = Checkpoint(
            number=number + 1,
            kind=kind,
            writer=writer,
            count=count,
            head=head,
            at_unix_ms=self._unix_ms(),
            key_id=self._keyring.active_id,
            previous=previous,
        )
        mac = self._keyring.checkpoint()
        assert mac is not None
        signed = msgspec.structs.replace(unsigned, mac=mac.hex(unsigned.bytes_to_seal()))
        self._write(descriptor, signed)
        opened = os.fstat(descriptor)
        self._place = (opened.st_dev, opened.st_ino)
        return signed

    def _write(self, descriptor: int, checkpoint: Checkpoint) -> None:
        data = checkpoint.line().encode() + b"\n"
        if os.write(descriptor, data) != len(data):
            raise OSError("the checkpoint was written in part only")  # the next `_catch_up` drops the partial line
        os.fsync(descriptor)
        self._read_bytes += len(data)
        self._last = (checkpoint.number, checkpoint.mac)

    def _catch_up(self, descriptor: int) -> None:
        """Read up to the last line, which another process may have written; drop a line that a crash left in half."""
        size = os.fstat(descriptor).st_size
        # The file was cut since it was read: a process that has written to it raises in `_check_unchanged`; any other
        # reads the file again from the start.
        if size < self._read_bytes:
            self._read_bytes, self._last = 0, (0, GENESIS)
        data = os.pread(descriptor, size - self._read_bytes, self._read_bytes)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(descriptor, self._read_bytes + whole)
        for line in data[:whole].splitlines():
            checkpoint = parse_line(line, self._keyring)
            if checkpoint is not None:
                self._last = (checkpoint.number, checkpoint.mac)
        self._read_bytes += whole


@contextmanager
def _lock_file(path: Path) -> Iterator[int]:
    new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if new:
            sync_folder(path.parent)  # otherwise a power cut could lose the name of a file whose lines are on disk
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def frozen_lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of the file while no process can append to it, and so none can attest an event.

    Keep the block short. Yields nothing when there is no file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield b""
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        data = path.read_bytes()
        yield data[: data.rfind(b"\n") + 1]
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[bytes]:
    """Return the complete lines of the file; none when it is missing.

    A last line that a crash left in half does not count.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].splitlines()
