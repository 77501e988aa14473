"""Download of artifacts: in chunks or to a file, resumed where a connection broke, compared with their digest."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, BinaryIO

import grpc

from toolhub.v1 import artifact_service_pb2
from toolhub_client.artifacts import Artifact, CutShort, DigestMismatch, OnProgress, moving_within
from toolhub_client.channel import pause_after
from toolhub_client.failures import Stalled, hub_error
from toolhub_client.outages import is_transient

if TYPE_CHECKING:  # asyncio stubs exist as types only
    from hashlib import _Hash

    from toolhub.v1.artifact_service_pb2 import ReadArtifactResponse
    from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceAsyncStub

_READ_BYTES = 1024 * 1024


async def find(stub: ArtifactServiceAsyncStub, artifact: str | Artifact) -> Artifact:
    """The artifact of an id. Raises AioRpcError."""
    if isinstance(artifact, Artifact):
        return artifact
    return (await stub.GetArtifact(artifact_service_pb2.GetArtifactRequest(artifact_id=artifact))).artifact


async def read(
    stub: ArtifactServiceAsyncStub,
    artifact: str | Artifact,
    *,
    attempts: int,
    on_progress: OnProgress | None = None,
    stall_s: float | None = None,
) -> AsyncGenerator[bytes, None]:
    """The artifact's bytes; the digest is compared before the last chunk is given.

    Raises DigestMismatch, Stalled; AioRpcError or CutShort once `attempts` in a row brought nothing.
    """
    found = await find(stub, artifact)
    sha256, held = hashlib.sha256(), b""
    chunks = _resumed(stub, found, 0, attempts=attempts, on_progress=on_progress, stall_s=stall_s)
    async with aclosing(chunks):
        async for chunk in chunks:
            sha256.update(chunk)
            if held:
                yield held
            held = chunk
    if sha256.hexdigest() != found.sha256:
        raise DigestMismatch(f"what came as artifact {found.artifact_id} does not match its sha256")
    if held:
        yield held


async def download(
    stub: ArtifactServiceAsyncStub,
    artifact: str | Artifact,
    file: BinaryIO,
    *,
    attempts: int,
    on_progress: OnProgress | None = None,
    stall_s: float | None = None,
) -> Artifact:
    """Write the artifact's bytes to `file` behind those that it holds already, which may be of an earlier download.

    Raises as `read`, and OSError. The file keeps what came, to be resumed, unless its digest is another: then it is
    empty.
    """
    found = await find(stub, artifact)
    sha256, have_bytes = await asyncio.to_thread(_read_held, file, found.size_bytes)
    chunks = _resumed(stub, found, have_bytes, attempts=attempts, on_progress=on_progress, stall_s=stall_s)
    async with aclosing(chunks):
        async for chunk in chunks:
            await asyncio.to_thread(file.write, chunk)
            sha256.update(chunk)
    if sha256.hexdigest() != found.sha256:
        await asyncio.to_thread(_empty, file)
        raise DigestMismatch(f"what came as artifact {found.artifact_id} does not match its sha256")
    await asyncio.to_thread(file.flush)
    return found


def _read_held(file: BinaryIO, size_bytes: int) -> tuple[_Hash, int]:
    """The digest so far and the size of what the file holds; it is emptied when that is more than the artifact."""
    sha256, have_bytes = hashlib.sha256(), 0
    file.seek(0)
    while data := file.read(_READ_BYTES):
        sha256.update(data)
        have_bytes += len(data)
    if have_bytes > size_bytes:
        _empty(file)
        return hashlib.sha256(), 0
    return sha256, have_bytes


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()


async def _resumed(
    stub: ArtifactServiceAsyncStub,
    artifact: Artifact,
    have_bytes: int,
    *,
    attempts: int,
    on_progress: OnProgress | None,
    stall_s: float | None,
) -> AsyncGenerator[bytes, None]:
    """Chunk after chunk, each stream from where the one before broke."""
    failed = 0
    while have_bytes < artifact.size_bytes:
        before_bytes = have_bytes
        broken: Exception = CutShort(f"the hub ends artifact {artifact.artifact_id} before its end")
        asked = artifact_service_pb2.ReadArtifactRequest(artifact_id=artifact.artifact_id, offset_bytes=have_bytes)
        call = stub.ReadArtifact(asked)
        try:
            async for chunk in _chunks(call, stall_s):
                have_bytes += len(chunk)
                if on_progress is not None:
                    on_progress(have_bytes, artifact.size_bytes)
                yield chunk
        except Stalled:
            raise
        except grpc.aio.AioRpcError as error:
            if not is_transient(error):
                raise
            broken = hub_error(error)
        finally:
            call.cancel()
        failed = 0 if have_bytes > before_bytes else failed + 1
        if failed >= attempts:
            raise broken
        if failed:
            await asyncio.sleep(pause_after(failed, broken))


async def _chunks(call: AsyncIterable[ReadArtifactResponse], stall_s: float | None) -> AsyncIterator[bytes]:
    messages = aiter(call)
    while True:
        async with moving_within(stall_s):
            message = await anext(messages, None)
        if message is None:
            return
        if message.chunk:  # the first message is the artifact itself
            yield message.chunk
