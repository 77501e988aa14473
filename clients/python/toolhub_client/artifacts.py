"""Large values by reference, up and down; a download that breaks goes on where it was.

artifact = await hub.put_artifact(Path("report.csv"))
await hub.invoke("core/fs.writeText", {"path": "report.csv", "text": {"$artifact": artifact.artifact_id}})
data = await hub.get_artifact(artifact.artifact_id)
"""

from __future__ import annotations

import asyncio
import hashlib
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
    """What came is not what the hub says the artifact is: use none of it."""


async def put(
    stub: ArtifactServiceAsyncStub,
    content: bytes | Path | AsyncIterable[bytes],
    *,
    name: str,
    media_type: str,
    task_id: str,
) -> Artifact:
    """Store bytes, a file or a stream of chunks. Raises AioRpcError, OSError, whatever the stream raises.

    Size and digest of bytes are declared, so that the hub keeps them as they are or not at all; of a file its size is.
    What a stream brought is compared afterwards; when it is far beyond the hub's cap grpc.aio may say INTERNAL only.
    """
    header = artifact_service_pb2.ArtifactHeader(name=name, media_type=media_type, task_id=task_id)
    if isinstance(content, Path):
        header.name = name or content.name
        header.size_bytes = (await asyncio.to_thread(content.stat)).st_size
    elif isinstance(content, bytes):
        header.size_bytes, header.sha256 = len(content), hashlib.sha256(content).hexdigest()
    sha256 = hashlib.sha256()
    call = stub.WriteArtifact()
    try:
        await call.write(artifact_service_pb2.WriteArtifactRequest(header=header))
        await _accepted(call)
        async with aclosing(_chunks(content)) as chunks:
            async for chunk in chunks:
                if call.done():
                    break  # refused: awaiting the call tells why
                sha256.update(chunk)
                await call.write(artifact_service_pb2.WriteArtifactRequest(chunk=chunk))
        if not call.done():
            await call.done_writing()
        artifact: Artifact = (await call).artifact
    finally:
        call.cancel()  # does nothing when it is over; else nothing is kept
    if artifact.sha256 != sha256.hexdigest():
        raise DigestMismatch(f"the hub has kept something else than was sent as {artifact.artifact_id}")
    return artifact


async def _accepted(call: grpc.aio.StreamUnaryCall[Any, Any]) -> None:
    """Wait until the hub has accepted the header, or has refused it and the call is over.

    A call that is refused while it sends is told as INTERNAL by grpc.aio, whatever the reason.
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


async def _chunks(content: bytes | Path | AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    if isinstance(content, bytes):
        for start in range(0, len(content), CHUNK_BYTES):
            yield content[start : start + CHUNK_BYTES]
    elif isinstance(content, Path):
        with await asyncio.to_thread(content.open, "rb") as file:
            while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield data
    else:
        async for chunk in content:
            for start in range(0, len(chunk), CHUNK_BYTES):
                yield chunk[start : start + CHUNK_BYTES]
