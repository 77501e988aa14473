"""Uploads and downloads of artifacts, verified by SHA-256 and resumed after broken connections."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import re
import secrets
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

import click
import grpc

from toolhub.v1 import artifact_pb2, progress_pb2
from toolhub.v1 import artifact_service_pb2 as pb
from toolhub_service.cli.connection.client import Connection, HubRefused, HubUnreachable, status_of
from toolhub_service.cli.connection.lost_answers import is_lost
from toolhub_service.cli.terminal.output import BinaryOutput
from toolhub_service.cli.terminal.progress import ProgressBar

# Both resume by offset after a broken connection, with pauses that grow with full jitter. A download is written to a
# hidden file beside the final name, which carries the digest: run again after a failure, the command resumes that file.

CHUNK_BYTES = 256 * 1024


def upload(connection: Connection, file: str, header: pb.ArtifactHeader) -> artifact_pb2.Artifact:
    """Return the artifact made of FILE, or of standard input when it is `-`. Raises click's exceptions and RpcError."""
    try:
        with nullcontext(cast(BufferedReader, sys.stdin.buffer)) if file == "-" else Path(file).open("rb") as source:
            is_regular = file != "-" and stat.S_ISREG(os.fstat(source.fileno()).st_mode)
            total_bytes = _declare(header, source) if is_regular else 0
            with ProgressBar(header.name or "standard input") as bar:
                return _Upload(connection, source, header, bar, total_bytes).run()
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from error


def _declare(header: pb.ArtifactHeader, source: BufferedReader) -> int:
    """Read the file once to declare its size and SHA-256, so that the hub stores exactly that; return the size."""
    sha256 = hashlib.sha256()
    while data := source.read(CHUNK_BYTES):
        header.size_bytes += len(data)
        sha256.update(data)
    header.sha256 = sha256.hexdigest()
    header.upload_id = secrets.token_urlsafe(24)  # a file that can be read again can be resumed
    source.seek(0)
    return header.size_bytes


class _Upload:
    """Reads chunks in a thread of grpc's, as fast as the hub accepts them."""

    def __init__(
        self,
        connection: Connection,
        source: BufferedReader,
        header: pb.ArtifactHeader,
        bar: ProgressBar,
        total_bytes: int,
    ) -> None:
        self._connection = connection
        self._source = source
        self._header = header
        self._bar = bar
        self._total_bytes = total_bytes
        self._sent_bytes = 0
        self._waits_for_source = False
        self._sha256 = hashlib.sha256()
        self._call: Any = None
        self._begun = threading.Event()
        self._unreadable: OSError | None = None

    def run(self) -> artifact_pb2.Artifact:
        failed = 0
        lost: grpc.RpcError | None = None  # the last attempt that the hub may have got whole
        while True:
            before_bytes = self._header.offset_bytes
            try:
                artifact = self._attempt()
                break
            except grpc.RpcError as broken:
                code, _, _ = status_of(broken)
                lost = broken if is_lost(*status_of(broken)) else lost
                if self._unreadable is not None:
                    raise self._unreadable from None
                if not self._header.upload_id or code is not grpc.StatusCode.UNAVAILABLE or failed + 1 >= _ATTEMPTS:
                    raise lost or broken from None
            pause(failed + 1)
            if (whole := self._look_up()) is not None:
                artifact = whole
                break
            # Only attempts without progress count: on a slow line an upload may break a hundred times and still
            # succeed.
            failed = 0 if self._header.offset_bytes > before_bytes else failed + 1
        if artifact.sha256 != (self._header.sha256 or self._sha256.hexdigest()):
            raise click.ClickException(
                "The hub stored other bytes than were sent (the SHA-256 differs). Run the command again."
            )
        return artifact

    def _attempt(self) -> artifact_pb2.Artifact:
        stub: Any = self._connection.artifacts
        self._begun.clear()
        self._connection.sent.request = self._header
        self._call = stub.WriteArtifact.future(self._messages(), metadata=self._connection.metadata)
        self._begun.set()
        return self._wait_for_answer().artifact

    def _look_up(self) -> artifact_pb2.Artifact | None:
        """Resume after what the hub holds, which may be nothing or everything."""
        try:
            request = pb.GetUploadRequest(upload_id=self._header.upload_id)
            found = self._connection.call(self._connection.artifacts.GetUpload, request)
        except grpc.RpcError as error:
            code, _, _ = status_of(error)
            if code not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE):
                raise
            found = pb.GetUploadResponse()
        self._header.offset_bytes = self._sent_bytes = found.received_bytes
        # The hub's count is used, not ours: what was sent may not have arrived.
        self._source.seek(found.received_bytes)
        return found.artifact if found.HasField("artifact") else None

    def _wait_for_answer(self) -> pb.WriteArtifactResponse:
        """Wait for the answer as long as data is being sent."""
        while True:
            sent_bytes = self._sent_bytes
            try:
                answer: pb.WriteArtifactResponse = self._call.result(timeout=self._connection.timeout_s)
                return answer
            except grpc.FutureTimeoutError:
                # A typed or piped source may pause for any time.
                if self._sent_bytes == sent_bytes and not self._waits_for_source:
                    self._call.cancel()
                    waited_s = f"{self._connection.timeout_s:g} s"
                    raise HubUnreachable(f"The hub took no data for {waited_s}. Allow more with --timeout.") from None

    def _messages(self) -> Iterator[pb.WriteArtifactRequest]:
        yield pb.WriteArtifactRequest(header=self._header)
        while data := self._next():
            self._sha256.update(data)
            yield pb.WriteArtifactRequest(chunk=data)
            self._sent_bytes += len(data)
            self._bar.show(_progress(self._sent_bytes, self._total_bytes or None))

    def _next(self) -> bytes:
        """Return the next chunk. A read error cancels the upload: ending the stream would store a part of the file."""
        try:
            self._waits_for_source = True
            return self._source.read1(CHUNK_BYTES)
        except OSError as error:
            self._unreadable = error
            # gRPC requests messages from its own thread, perhaps before the call has been assigned.
            self._begun.wait()
            self._call.cancel()
            return b""
        finally:
            self._waits_for_source = False


def _progress(done_bytes: int, total_bytes: int | None) -> progress_pb2.Progress:
    return progress_pb2.Progress(step=done_bytes, total=total_bytes, unit="bytes")


# Consecutive attempts without a new byte.
_ATTEMPTS = 8
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 3.0
# Status codes of a connection that breaks under a stream.
_BROKEN = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
    }
)
_READ_BYTES = 1024 * 1024


def pause(failed: int) -> None:
    longest_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0**failed)
    time.sleep(random.uniform(0, longest_s))  # noqa: S311 - jitter, not a secret


_PART = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def download_to_file(
    connection: Connection, artifact: artifact_pb2.Artifact, file: Path, *, force: bool = False
) -> None:
    """Download to a file. Raises click's exceptions and RpcError."""
    try:
        if not force and os.path.lexists(file):
            raise _exists(file)
        digest = artifact.sha256
        if re.fullmatch("[0-9a-f]{64}", digest) is None:  # it becomes part of a file name
            raise click.ClickException("The hub answered with an invalid SHA-256.")
        part = file.with_name(f".{file.name}.{digest[:16]}.part")
        with os.fdopen(os.open(part, _PART, 0o666), "r+b") as target:
            try:
                fcntl.flock(target.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as held:
                raise click.ClickException(f"Another download of {file} is running.") from held
            try:
                _Download(connection, artifact, target, file=target).run()
            except BaseException:
                if not target.tell():
                    part.unlink()  # nothing to resume
                raise
            target.flush()
            os.fsync(target.fileno())
            _publish(part, file, force=force)
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error


def download(connection: Connection, artifact: artifact_pb2.Artifact, target: BinaryOutput) -> None:
    """Download to a target that cannot be read again, such as a pipe. Raises as `download_to_file`."""
    _Download(connection, artifact, target).run()
    target.flush()


def _exists(file: Path) -> click.ClickException:
    return HubRefused(f"{file} exists already. Replace it with --force, or write another file with -o.")


def _publish(part: Path, file: Path, *, force: bool) -> None:
    """Give the file its name. Without --force no file is replaced, not even one created a moment ago."""
    if force:
        part.replace(file)
        return
    try:
        # link(2) and not a rename: a file that appeared meanwhile is not replaced.
        os.link(part, file)
    except FileExistsError:
        raise _exists(file) from None
    except OSError:  # a file system without hard links
        if os.path.lexists(file):
            raise _exists(file) from None
        part.rename(file)
        return
    part.unlink()


class _Download:
    """Downloads into a target that may hold the first bytes already."""

    def __init__(
        self,
        connection: Connection,
        artifact: artifact_pb2.Artifact,
        target: BinaryOutput,
        *,
        file: BinaryIO | None = None,
    ) -> None:
        """`file`: the target, if it can be read again."""
        self._connection = connection
        self._stub: Any = connection.artifacts
        self._artifact = artifact
        self._target = target
        self._file = file
        self._sha256 = hashlib.sha256()
        self._have_bytes = 0

    def run(self) -> None:
        """Download and verify. The target is left empty when the SHA-256 does not match."""
        if self._file is not None:
            self._resume(self._file)
        with ProgressBar(self._artifact.name or self._artifact.artifact_id) as bar:
            failed = 0
            while self._have_bytes < self._artifact.size_bytes:
                before_bytes = self._have_bytes
                broken = self._attempt(bar)
                failed = 0 if self._have_bytes > before_bytes else failed + 1
                # Nothing was ever received: most likely a refusal, which a retry would not change.
                if broken is not None and (failed >= _ATTEMPTS or not self._have_bytes):
                    raise broken
                if failed >= _ATTEMPTS:
                    raise click.ClickException(
                        "The hub sends fewer bytes than the artifact has. Check its artifact store for damage."
                    )
                if failed:
                    pause(failed)
        if self._sha256.hexdigest() != self._artifact.sha256:
            self._discard()
            raise click.ClickException(
                "The downloaded bytes do not match the artifact's SHA-256. Do not use them; run the command again."
            )

    def _resume(self, file: BinaryIO) -> None:
        while data := file.read(_READ_BYTES):
            self._sha256.update(data)
            self._have_bytes += len(data)
        if self._have_bytes > self._artifact.size_bytes:
            self._discard()
            self._sha256, self._have_bytes = hashlib.sha256(), 0

    def _discard(self) -> None:
        if self._file is not None:
            self._file.seek(0)
            # Bytes that do not match the digest cannot be resumed.
            self._file.truncate()

    def _attempt(self, bar: ProgressBar) -> grpc.RpcError | None:
        """Read from the current offset; return the error of a broken connection. Raises RpcError on a refusal."""
        request = pb.ReadArtifactRequest(artifact_id=self._artifact.artifact_id, offset_bytes=self._have_bytes)
        call = self._stub.ReadArtifact(request, timeout=self._connection.timeout_s, metadata=self._connection.metadata)
        try:
            for response in call:
                if response.WhichOneof("part") == "chunk":
                    self._target.write(response.chunk)
                    self._sha256.update(response.chunk)
                    self._have_bytes += len(response.chunk)
                    bar.show(_progress(self._have_bytes, self._artifact.size_bytes))
        except grpc.RpcError as error:
            code, _, _ = status_of(error)
            # A deadline with progress only ends one attempt; without progress, the hub does not answer.
            is_stalled = code is grpc.StatusCode.DEADLINE_EXCEEDED and self._have_bytes == request.offset_bytes
            if code not in _BROKEN or is_stalled:
                raise
            return error
        return None
