"""One download: goes on by offset where it broke, is checked by digest, and is written whole or not at all.

Into a hidden file beside the final name, which carries the content's digest: given again after a failure, the command
goes on with what is there. Waits between attempts grow with full jitter.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

import click
import grpc

from toolhub.v1 import artifact_pb2, progress_pb2
from toolhub.v1 import artifact_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.cli.connection import Connection, HubRefused, status_of
from toolhub_service.cli.progress_bar import ProgressBar

_ATTEMPTS = 8
"""In a row without a byte."""
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 3.0
_BROKEN = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
    }
)
"""How a connection that breaks under a stream is told."""
_READ_BYTES = 1024 * 1024
_PART = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def download_to_stdout(connection: Connection, artifact: artifact_pb2.Artifact) -> None:
    """Raises click's exceptions and RpcError. What turns out wrong in the end has been written by then."""
    _Download(connection, artifact, sys.stdout.buffer, is_file=False).run()
    sys.stdout.buffer.flush()


def download_to_file(
    connection: Connection, artifact: artifact_pb2.Artifact, file: Path, *, force: bool = False
) -> None:
    """Raises click's exceptions and RpcError."""
    try:
        if not force and os.path.lexists(file):
            raise _stands(file)
        part = file.with_name(f".{file.name}.{_hex(artifact.sha256)[:16]}.part")
        with os.fdopen(os.open(part, _PART, 0o666), "r+b") as target:
            _lock(target, file)
            try:
                _Download(connection, artifact, target).run()
            except BaseException:
                if not target.tell():
                    part.unlink()  # nothing to go on with
                raise
            target.flush()
            os.fsync(target.fileno())
            _name(part, file, force=force)
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error


def _hex(sha256: str) -> str:
    """The hub's word becomes a part of a file's name."""
    if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        raise click.ClickException("the hub answered with what is no sha256")
    return sha256


def _stands(file: Path) -> click.ClickException:
    return HubRefused(f"{file} exists already; replace it with --force, or name another file with -o")


def _lock(target: BinaryIO, file: Path) -> None:
    try:
        fcntl.flock(target.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as held:
        raise click.ClickException(f"another download of {file} is running") from held


def _name(part: Path, file: Path, *, force: bool) -> None:
    """Without --force nobody's file is replaced, not even one that came a moment ago."""
    if force:
        part.replace(file)
        return
    try:
        os.link(part, file)
    except FileExistsError:
        raise _stands(file) from None
    except OSError:  # a file system without hard links
        if os.path.lexists(file):
            raise _stands(file) from None
        part.rename(file)
        return
    part.unlink()


class _Download:
    """Into a target that may hold a beginning already."""

    def __init__(
        self, connection: Connection, artifact: artifact_pb2.Artifact, target: BinaryIO, *, is_file: bool = True
    ) -> None:
        self._connection = connection
        self._stub: Any = ArtifactServiceStub(connection.channel)
        self._artifact = artifact
        self._target = target
        self._is_file = is_file
        self._sha256 = hashlib.sha256()
        self._have_bytes = 0
        self._shows = sys.stderr.isatty()

    def run(self) -> None:
        """Leaves an empty file where what came is not what was announced."""
        if self._is_file:
            self._take_over()
        with ProgressBar(self._artifact.name or self._artifact.artifact_id) as bar:
            failed = 0
            while self._have_bytes < self._artifact.size_bytes:
                before_bytes = self._have_bytes
                broken = self._attempt(bar)
                failed = 0 if self._have_bytes > before_bytes else failed + 1
                if broken is not None and (failed >= _ATTEMPTS or not self._have_bytes):
                    raise broken
                if failed >= _ATTEMPTS:
                    raise click.ClickException("the hub ends the artifact before its end; its bytes are damaged there")
                if failed:
                    longest_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0**failed)
                    time.sleep(random.uniform(0, longest_s))  # noqa: S311 - jitter, not a secret
        if self._sha256.hexdigest() != self._artifact.sha256:
            self._forget()
            raise click.ClickException("what came does not match the artifact's sha256; it must not be used")

    def _take_over(self) -> None:
        while data := self._target.read(_READ_BYTES):
            self._sha256.update(data)
            self._have_bytes += len(data)
        if self._have_bytes > self._artifact.size_bytes:
            self._forget()
            self._sha256, self._have_bytes = hashlib.sha256(), 0

    def _forget(self) -> None:
        if self._is_file:
            self._target.seek(0)
            self._target.truncate()

    def _attempt(self, bar: ProgressBar) -> grpc.RpcError | None:
        """Read on from what is there; the error of a connection that broke. Raises RpcError when the hub refused."""
        request = pb.ReadArtifactRequest(artifact_id=self._artifact.artifact_id, offset_bytes=self._have_bytes)
        call = self._stub.ReadArtifact(request, timeout=self._connection.timeout_s, metadata=self._connection.metadata)
        try:
            for response in call:
                if response.WhichOneof("part") == "chunk":
                    self._take(response.chunk, bar)
        except grpc.RpcError as error:
            code, _, _ = status_of(error)
            is_stalled = code is grpc.StatusCode.DEADLINE_EXCEEDED and self._have_bytes == request.offset_bytes
            if code not in _BROKEN or is_stalled:
                raise
            return error
        return None

    def _take(self, data: bytes, bar: ProgressBar) -> None:
        self._target.write(data)
        self._sha256.update(data)
        self._have_bytes += len(data)
        if self._shows:
            total = self._artifact.size_bytes
            bar.show(progress_pb2.Progress(step=self._have_bytes, total=total, unit="bytes"))
