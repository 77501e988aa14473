"""Upload and download of large values, which calls name by reference; broken transfers resume.

artifact = await hub.put_artifact(Path("report.csv"))
await hub.invoke("core/fs.writeText", {"path": "report.csv", "text": {"$artifact": artifact.artifact_id}})
data = await hub.get_artifact(artifact.artifact_id)
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from toolhub.v1 import artifact_pb2, artifact_service_pb2
from toolhub_client.channel import pause_after
from toolhub_client.failures import hub_error

if TYPE_CHECKING:  # asyncio stubs exist as types only
    from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceAsyncStub

Artifact = artifact_pb2.Artifact
CHUNK_BYTES = 256 * 1024
ACCEPTED = "toolhub-accepted"
"""In the metadata of a hub that takes the header."""
ACCEPTED_WITHIN_S = 5.0


class DigestMismatch(Exception):
    """The bytes do not match the artifact's digest: discard them."""


async def put(
    stub: ArtifactServiceAsyncStub,
    content: bytes | Path | AsyncIterable[bytes],
    *,
    name: str,
    media_type: str,
    task_id: str,
    attempts: int,
) -> Artifact:
    """Store bytes, a file or a stream of chunks. Raises AioRpcError, OSError, whatever the stream raises.

    Size and digest of bytes are declared, so that the hub keeps them as they are or not at all; of a file its size is.
    Both resume where a connection broke, until `attempts` in a row brought nothing; a stream cannot. What a
    stream brought is compared afterwards; when it is far beyond the hub's cap grpc.aio may say INTERNAL only.
    """
    header = artifact_service_pb2.ArtifactHeader(name=name, media_type=media_type, task_id=task_id)
    if isinstance(content, Path):
        header.name = name or content.name
        header.size_bytes = (await asyncio.to_thread(content.stat)).st_size
    elif isinstance(content, bytes):
        header.size_bytes, header.sha256 = len(content), hashlib.sha256(content).hexdigest()
    if header.size_bytes:
        header.upload_id = secrets.token_urlsafe(24)
    sent = _Sent()
    artifact = await _sent_whole(stub, content, header, sent, attempts)
    if artifact.sha256 != sent.sha256.hexdigest():
        raise DigestMismatch(f"the hub has kept something else than was sent as {artifact.artifact_id}")
    return artifact


class _Sent:
    """What was sent, each byte once."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()
        self._size_bytes = 0

    def add(self, at_bytes: int, chunk: bytes) -> None:
        new = chunk[max(0, self._size_bytes - at_bytes) :]
        self.sha256.update(new)
        self._size_bytes += len(new)


async def _sent_whole(
    stub: ArtifactServiceAsyncStub,
    content: bytes | Path | AsyncIterable[bytes],
    header: artifact_service_pb2.ArtifactHeader,
    sent: _Sent,
    attempts: int,
) -> Artifact:
    """One stream after another, each from where the hub says that the one before broke."""
    failed, broken = 0, None
    while True:
        before_bytes = header.offset_bytes
        try:
            if broken is not None:
                found = await _held(stub, header.upload_id)
                if found is None and broken.code() is grpc.StatusCode.INTERNAL:
                    raise broken
                if found is not None and found.HasField("artifact"):
                    return found.artifact
                header.offset_bytes = found.received_bytes if found is not None else 0
            return await _send(stub, content, header, sent)
        except grpc.aio.AioRpcError as error:
            failed = 1 if header.offset_bytes > before_bytes else failed + 1
            # INTERNAL, too, for grpc.aio says it to whom a stream is ended while it sends, whatever the reason; where
            # it was a refusal nothing is held.
            may_go_on = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL) and error is not broken
            if not may_go_on or not header.upload_id or failed > attempts:
                raise
            broken = error
            await asyncio.sleep(pause_after(failed, hub_error(error)))


async def _held(stub: ArtifactServiceAsyncStub, upload_id: str) -> artifact_service_pb2.GetUploadResponse | None:
    """What the hub has of an upload; None where it has nothing, as another hub."""
    try:
        return await stub.GetUpload(artifact_service_pb2.GetUploadRequest(upload_id=upload_id))
    except grpc.aio.AioRpcError as error:
        if error.code() not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED):
            raise
        return None


async def _send(
    stub: ArtifactServiceAsyncStub,
    content: bytes | Path | AsyncIterable[bytes],
    header: artifact_service_pb2.ArtifactHeader,
    sent: _Sent,
) -> Artifact:
    call = stub.WriteArtifact()
    at_bytes = header.offset_bytes
    try:
        await call.write(artifact_service_pb2.WriteArtifactRequest(header=header))
        await _accepted(call)
        async with aclosing(_chunks(content, at_bytes)) as chunks:
            async for chunk in chunks:
                if call.done():
                    break  # refused: awaiting the call tells why
                sent.add(at_bytes, chunk)
                at_bytes += len(chunk)
                await call.write(artifact_service_pb2.WriteArtifactRequest(chunk=chunk))
        if not call.done():
            await call.done_writing()
        artifact: Artifact = (await call).artifact
        return artifact
    finally:
        call.cancel()  # does nothing when it is over; else only what is held for another attempt is kept


async def _accepted(call: grpc.aio.StreamUnaryCall[Any, Any]) -> None:
    """Wait until the hub has accepted the header, or has refused it and the call is over.

    A call that is refused while it sends is reported as INTERNAL by grpc.aio, whatever the reason.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(ACCEPTED_WITHIN_S):
            if ACCEPTED not in dict(await call.initial_metadata()):
                await call.code()


async def read(stub: ArtifactServiceAsyncStub, artifact_id: str, *, attempts: int) -> AsyncGenerator[bytes, None]:
    """The artifact's bytes; the digest is compared before the last chunk is given.

    Raises DigestMismatch; AioRpcError or ConnectionError once `attempts` in a row brought nothing.
    """
    request = artifact_service_pb2.GetArtifactRequest(artifact_id=artifact_id)
    artifact = (await stub.GetArtifact(request)).artifact
    sha256, held = hashlib.sha256(), b""
    async with aclosing(_resumed(stub, artifact, attempts)) as chunks:
        async for chunk in chunks:
            sha256.update(chunk)
            if held:
                yield held
            held = chunk
    if sha256.hexdigest() != artifact.sha256:
        raise DigestMismatch(f"what came as artifact {artifact_id} does not match its sha256")
    if held:
        yield held


async def _resumed(stub: ArtifactServiceAsyncStub, artifact: Artifact, attempts: int) -> AsyncGenerator[bytes, None]:
    """Chunk after chunk, each stream from where the one before broke."""
    have_bytes, failed = 0, 0
    while have_bytes < artifact.size_bytes:
        before_bytes = have_bytes
        broken: Exception = ConnectionError(f"the hub ends artifact {artifact.artifact_id} before its end")
        asked = artifact_service_pb2.ReadArtifactRequest(artifact_id=artifact.artifact_id, offset_bytes=have_bytes)
        call = stub.ReadArtifact(asked)
        try:
            async for response in call:
                have_bytes += len(response.chunk)
                if response.chunk:  # the first message is the artifact itself
                    yield response.chunk
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            broken = hub_error(error)
        finally:
            call.cancel()
        failed = 0 if have_bytes > before_bytes else failed + 1
        if failed >= attempts:
            raise broken
        if failed:
            await asyncio.sleep(pause_after(failed, broken))


async def _chunks(content: bytes | Path | AsyncIterable[bytes], start_bytes: int) -> AsyncGenerator[bytes, None]:
    if isinstance(content, bytes):
        for start in range(start_bytes, len(content), CHUNK_BYTES):
            yield content[start : start + CHUNK_BYTES]
    elif isinstance(content, Path):
        with await asyncio.to_thread(content.open, "rb") as file:
            file.seek(start_bytes)
            while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield data
    else:
        async for chunk in content:
            for start in range(0, len(chunk), CHUNK_BYTES):
                yield chunk[start : start + CHUNK_BYTES]
