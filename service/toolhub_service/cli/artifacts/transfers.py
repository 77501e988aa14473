"""Uploads and downloads of artifacts by the Python client, which resumes and verifies them: files, and what is said.

A download is written to a hidden file beside the final name, which carries the digest: run again after a failure, the
command resumes that file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from io import BufferedReader
from pathlib import Path
from typing import cast

import click
import grpc

from toolhub.v1 import artifact_pb2, progress_pb2
from toolhub.v1 import artifact_service_pb2 as pb
from toolhub_service.cli.connection.client import Connection, HubRefused, HubUnreachable
from toolhub_service.cli.connection.client_hub import open_client
from toolhub_service.cli.terminal.output import BinaryOutput
from toolhub_service.cli.terminal.progress import ProgressBar

_CHUNK_BYTES = 256 * 1024
_PART = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def upload(connection: Connection, file: str, header: pb.ArtifactHeader) -> artifact_pb2.Artifact:
    """Return the artifact made of FILE, or of standard input when it is `-`. Raises click's exceptions and RpcError.

    `header` has its name, media type and task.
    """
    try:
        with nullcontext(cast(BufferedReader, sys.stdin.buffer)) if file == "-" else Path(file).open("rb") as source:
            is_regular = file != "-" and stat.S_ISREG(os.fstat(source.fileno()).st_mode)
            connection.sent.request = header
            try:
                return _send(connection, Path(file) if is_regular else source, header)
            except grpc.RpcError as error:
                from toolhub_client.failures import may_have_arrived

                if is_regular and may_have_arrived(error):  # the digest tells whether it was stored
                    header.sha256 = hashlib.file_digest(source, "sha256").hexdigest()
                raise
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from error


def _send(connection: Connection, source: Path | BufferedReader, header: pb.ArtifactHeader) -> artifact_pb2.Artifact:
    from toolhub_client import DigestMismatch, Stalled

    content = source if isinstance(source, Path) else _pieces(source)
    with (
        ProgressBar(header.name or "standard input") as bar,
        open_client(connection, task_id=header.task_id) as hub,
    ):
        try:
            return hub.put_artifact(
                content,
                name=header.name,
                media_type=header.media_type,
                on_progress=_shown_on(bar),
                stall_s=connection.timeout_s,
            )
        except Stalled as stalled:
            waited_s = f"{connection.timeout_s:g} s"
            raise HubUnreachable(f"The hub took no data for {waited_s}. Allow more with --timeout.") from stalled
        except DigestMismatch as differs:
            raise click.ClickException(
                "The hub stored other bytes than were sent (the SHA-256 differs). Run the command again."
            ) from differs


def _pieces(source: BufferedReader) -> Iterator[bytes]:
    """Yield what is typed or piped as it comes; it may pause for any time."""
    # Past the buffer: a thread that waits in it holds its lock, which Python wants when an interrupted command ends.
    raw = getattr(source, "raw", source)
    while data := raw.read(_CHUNK_BYTES):
        yield data


def _shown_on(bar: ProgressBar) -> Callable[[int, int], None]:
    def show(done_bytes: int, total_bytes: int) -> None:
        bar.show(progress_pb2.Progress(step=done_bytes, total=total_bytes or None, unit="bytes"))

    return show


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
                with _explained(), _bar_of(artifact) as bar, open_client(connection) as hub:
                    hub.download_artifact(artifact, target, on_progress=_shown_on(bar), stall_s=connection.timeout_s)
            except BaseException:
                if not target.tell():
                    part.unlink()  # nothing to resume
                raise
            os.fsync(target.fileno())
            _publish(part, file, force=force)
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error


def download(connection: Connection, artifact: artifact_pb2.Artifact, target: BinaryOutput) -> None:
    """Download to a target that cannot be read again, such as a pipe. Raises as `download_to_file`."""
    with _explained(), _bar_of(artifact) as bar, open_client(connection) as hub:
        for chunk in hub.read_artifact(artifact, on_progress=_shown_on(bar), stall_s=connection.timeout_s):
            target.write(chunk)
    target.flush()


def _bar_of(artifact: artifact_pb2.Artifact) -> ProgressBar:
    return ProgressBar(artifact.name or artifact.artifact_id)


@contextmanager
def _explained() -> Iterator[None]:
    """Raise what the client says of a download's bytes as click's exceptions."""
    from toolhub_client import CutShort, DigestMismatch

    try:
        yield
    except DigestMismatch as differs:
        raise click.ClickException(
            "The downloaded bytes do not match the artifact's SHA-256. Do not use them; run the command again."
        ) from differs
    except CutShort as short:
        raise click.ClickException(
            "The hub sends fewer bytes than the artifact has. Check its artifact store for damage."
        ) from short


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
