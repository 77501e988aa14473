"""Upload of artifacts: bytes and files, which resume where a connection broke, and streams, which cannot."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from toolhub.v1 import artifact_service_pb2
from toolhub.v1.artifact_service_pb2 import ArtifactHeader
from toolhub_client.artifacts import Artifact, DigestMismatch, OnProgress, moving_within
from toolhub_client.channel import pause_after
from toolhub_client.failures import hub_error, may_have_arrived

if TYPE_CHECKING:  # asyncio stubs exist as types only
    from hashlib import _Hash

    from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceAsyncStub

Content = bytes | Path | AsyncIterable[bytes]
CHUNK_BYTES = 256 * 1024
# A switch to a thread costs more than sending a chunk.
_READ_BYTES = 8 * CHUNK_BYTES
ACCEPTED = "toolhub-accepted"
"""In the metadata of a hub that takes the header."""
ACCEPTED_WITHIN_S = 5.0
# How often a call is asked whether its true status has come, and the seconds between.
_STATUS_ASKED, _STATUS_PAUSE_S = 50, 0.01
_RESUMABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL})


async def declare(content: Content, *, name: str | None, media_type: str, task_id: str) -> ArtifactHeader:
    """The header of an upload. Raises OSError.

    Size and digest of bytes and of files are declared, so that the hub stores exactly those or nothing; a file is read
    once for that.
    """
    header = ArtifactHeader(name=name or "", media_type=media_type, task_id=task_id)
    if isinstance(content, Path):
        header.name = content.name if name is None else name
        if not await asyncio.to_thread(content.is_file):  # a pipe by name can be read once only
            return header
        header.size_bytes, header.sha256 = await asyncio.to_thread(_measure, content)
    elif isinstance(content, bytes):
        header.size_bytes, header.sha256 = len(content), hashlib.sha256(content).hexdigest()
    if header.size_bytes:
        header.upload_id = secrets.token_urlsafe(24)  # what can be read again can be resumed
    return header


def _measure(path: Path) -> tuple[int, str]:
    size_bytes, sha256 = 0, hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            size_bytes += len(data)
            sha256.update(data)
    return size_bytes, sha256.hexdigest()


class Upload:
    """One artifact on its way to the hub; `run` once."""

    def __init__(
        self,
        stub: ArtifactServiceAsyncStub,
        content: Content,
        header: ArtifactHeader,
        *,
        on_progress: OnProgress | None = None,
        stall_s: float | None = None,
    ) -> None:
        """`stall_s`: how long the hub may take nothing; the content may pause for any time."""
        self._stub = stub
        self._content = content
        self._header = header
        self._on_progress = on_progress
        self._stall_s = stall_s
        # Of what was not declared: it is sent once, and compared afterwards.
        self._sent: _Hash | None = None if header.sha256 else hashlib.sha256()

    async def run(self, attempts: int) -> Artifact:
        """Raises AioRpcError after `attempts` in a row that brought nothing: the one whose request the hub may have
        got whole, where there was one. Raises Stalled, DigestMismatch, OSError, whatever the stream raises."""
        failed, broken = 0, None
        lost: grpc.aio.AioRpcError | None = None
        while True:
            before_bytes = self._header.offset_bytes
            try:
                artifact = await self._resume(broken) if broken is not None else await self._send()
                break
            except grpc.aio.AioRpcError as error:
                lost = error if may_have_arrived(error) else lost
                failed = 1 if self._header.offset_bytes > before_bytes else failed + 1
                is_over = error.code() not in _RESUMABLE or error is broken or not self._header.upload_id
                if is_over or failed > attempts:
                    raise lost or error from None
                broken = error
            await asyncio.sleep(pause_after(failed, hub_error(broken)))
        if artifact.sha256 != (self._header.sha256 if self._sent is None else self._sent.hexdigest()):
            raise DigestMismatch(f"the hub has kept something else than was sent as {artifact.artifact_id}")
        return artifact

    async def _resume(self, broken: grpc.aio.AioRpcError) -> Artifact:
        """Send what the hub does not hold, which may be nothing or everything."""
        found = await self._find_held()
        # What was refused is not held; a connection that breaks is said to be INTERNAL, too.
        if found is None and broken.code() is grpc.StatusCode.INTERNAL:
            raise broken
        if found is not None and found.HasField("artifact"):
            return found.artifact
        # The hub's count is used, not ours: what was sent may not have arrived.
        self._header.offset_bytes = found.received_bytes if found is not None else 0
        return await self._send()

    async def _find_held(self) -> artifact_service_pb2.GetUploadResponse | None:
        """What the hub has of the upload; None where it has nothing, as another hub."""
        try:
            return await self._stub.GetUpload(artifact_service_pb2.GetUploadRequest(upload_id=self._header.upload_id))
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED):
                raise
            return None

    async def _send(self) -> Artifact:
        call = self._stub.WriteArtifact()
        writing = _Writing(call, self._stall_s)
        sent_bytes = self._header.offset_bytes
        try:
            await writing.write(artifact_service_pb2.WriteArtifactRequest(header=self._header))
            await _accepted(call)
            async with aclosing(_chunks(self._content, sent_bytes)) as chunks:
                async for chunk in chunks:
                    if call.done():
                        break  # refused: awaiting the call tells why
                    if self._sent is not None:
                        self._sent.update(chunk)
                    await writing.write(artifact_service_pb2.WriteArtifactRequest(chunk=chunk))
                    sent_bytes += len(chunk)
                    if self._on_progress is not None:
                        self._on_progress(sent_bytes, self._header.size_bytes)
            if not call.done():
                await call.done_writing()
            async with moving_within(self._stall_s):
                artifact: Artifact = (await call).artifact
            return artifact
        finally:
            call.cancel()  # does nothing when it is over; else only what is held for another attempt is kept


class _Writing:
    """Writes to a call, and tells how it has ended when it cannot be written to any more.

    grpc.aio reports INTERNAL then, whatever the status is. It mostly has the status of the hub, or of the connection,
    just before, and forgets it, or a moment later.
    """

    def __init__(self, call: grpc.aio.StreamUnaryCall[Any, Any], stall_s: float | None) -> None:
        self._call = call
        self._stall_s = stall_s
        self._first: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._keep_first_status)

    async def write(self, message: artifact_service_pb2.WriteArtifactRequest) -> None:
        """Raises Stalled, and AioRpcError with the status of the call."""
        try:
            async with moving_within(self._stall_s):
                await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise await self._true_end(error) from None

    def _keep_first_status(self, call: Any) -> None:
        # A callback cannot wait, and a task would come too late. A call that is over has its status at hand.
        asking = _status_of(call)
        try:
            asking.send(None)
        except StopIteration as answered:
            self._first = answered.value
        asking.close()

    async def _true_end(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        if error.code() is not grpc.StatusCode.INTERNAL:
            return error
        status = self._first
        for _ in range(_STATUS_ASKED):
            if status is not None and status.code() is not grpc.StatusCode.OK and status.details() != error.details():
                return status
            await asyncio.sleep(_STATUS_PAUSE_S)
            status = await _status_of(self._call)
        return error


async def _status_of(call: grpc.aio.StreamUnaryCall[Any, Any]) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
    )


async def _accepted(call: grpc.aio.StreamUnaryCall[Any, Any]) -> None:
    """Wait until the hub has accepted the header, or has refused it and the call is over: nothing is sent in vain."""
    with suppress(TimeoutError):
        async with asyncio.timeout(ACCEPTED_WITHIN_S):
            if ACCEPTED not in dict(await call.initial_metadata()):
                await call.code()


async def _chunks(content: Content, start_bytes: int) -> AsyncGenerator[bytes, None]:
    if isinstance(content, bytes):
        for start in range(start_bytes, len(content), CHUNK_BYTES):
            yield content[start : start + CHUNK_BYTES]
    elif isinstance(content, Path):
        with await asyncio.to_thread(content.open, "rb") as file:
            if start_bytes:  # a pipe cannot
                file.seek(start_bytes)
            while data := await asyncio.to_thread(file.read, _READ_BYTES):
                for start in range(0, len(data), CHUNK_BYTES):
                    yield data[start : start + CHUNK_BYTES]
    else:
        async for chunk in content:
            for start in range(0, len(chunk), CHUNK_BYTES):
                yield chunk[start : start + CHUNK_BYTES]
