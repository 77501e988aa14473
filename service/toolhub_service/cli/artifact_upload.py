"""One upload from a file or standard input: declared where size and digest are known before, compared where not."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import click
import grpc

from toolhub.v1 import artifact_pb2, progress_pb2
from toolhub.v1 import artifact_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.cli.connection import Connection, HubUnreachable
from toolhub_service.cli.progress_bar import ProgressBar

CHUNK_BYTES = 256 * 1024


def upload(connection: Connection, file: str, header: pb.ArtifactHeader) -> artifact_pb2.Artifact:
    """The artifact made of FILE, or of standard input where it is `-`. Raises click's exceptions and RpcError."""
    try:
        with _opened(file) as source:
            is_regular = file != "-" and stat.S_ISREG(os.fstat(source.fileno()).st_mode)
            total_bytes = _declare(header, source) if is_regular else 0
            with ProgressBar(header.name or "standard input") as bar:
                return _Upload(connection, source, header, bar, total_bytes).run()
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from error


def _opened(file: str) -> AbstractContextManager[BufferedReader]:
    return nullcontext(cast(BufferedReader, sys.stdin.buffer)) if file == "-" else Path(file).open("rb")


def _declare(header: pb.ArtifactHeader, source: BufferedReader) -> int:
    """Read it once before it is sent, so that the hub keeps it as it is or not at all; its size."""
    sha256 = hashlib.sha256()
    while data := source.read(CHUNK_BYTES):
        header.size_bytes += len(data)
        sha256.update(data)
    header.sha256 = sha256.hexdigest()
    source.seek(0)
    return header.size_bytes


class _Upload:
    """Chunks are read in a thread of grpc's, as fast as the hub takes them."""

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
        self._shows = sys.stderr.isatty()
        self._total_bytes = total_bytes
        self._sent_bytes = 0
        self._waits_for_source = False
        self._sha256 = hashlib.sha256()
        self._call: Any = None
        self._begun = threading.Event()
        self._unreadable: OSError | None = None

    def run(self) -> artifact_pb2.Artifact:
        stub: Any = ArtifactServiceStub(self._connection.channel)
        self._call = stub.WriteArtifact.future(self._messages(), metadata=self._connection.metadata)
        self._begun.set()
        try:
            artifact: artifact_pb2.Artifact = self._answer().artifact
        except grpc.RpcError:
            if self._unreadable is not None:
                raise self._unreadable from None
            raise
        if artifact.sha256 != self._sha256.hexdigest():
            raise click.ClickException("the hub has kept something else than was sent; try again")
        return artifact

    def _answer(self) -> pb.WriteArtifactResponse:
        """Waits as long as something moves."""
        while True:
            sent_bytes = self._sent_bytes
            try:
                answer: pb.WriteArtifactResponse = self._call.result(timeout=self._connection.timeout_s)
                return answer
            except grpc.FutureTimeoutError:
                if self._sent_bytes == sent_bytes and not self._waits_for_source:
                    self._call.cancel()
                    told = f"nothing has moved for {self._connection.timeout_s:g} s; allow more with --timeout"
                    raise HubUnreachable(told) from None

    def _messages(self) -> Iterator[pb.WriteArtifactRequest]:
        yield pb.WriteArtifactRequest(header=self._header)
        while data := self._next():
            self._sha256.update(data)
            yield pb.WriteArtifactRequest(chunk=data)
            self._sent_bytes += len(data)
            if self._shows:
                total = self._total_bytes or None
                self._bar.show(progress_pb2.Progress(step=self._sent_bytes, total=total, unit="bytes"))

    def _next(self) -> bytes:
        """What cannot be read must not look like the end: the hub would keep the half."""
        try:
            self._waits_for_source = True
            return self._source.read1(CHUNK_BYTES)
        except OSError as error:
            self._unreadable = error
            self._begun.wait()
            self._call.cancel()
            return b""
        finally:
            self._waits_for_source = False
