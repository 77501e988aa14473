"""Large values by reference: kept, opened, read, uploaded, swept. Implements `ArtifactDesk`.

Bytes first, then the record: what is recorded can be read. A keep that fails or is cancelled leaves no record; bytes
that it had stored already are left to the sweeper under a record that has expired. The sweeper works in the other
order, and a while (`linger_s`) after the expiry: record, then bytes when no other record has their digest. A keep of
the same content between these two is safe, for a store of bytes removes nothing that was stored a moment ago.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any, cast

from toolhub_service.domain.artifact import OCTETS, Artifact, ArtifactRef
from toolhub_service.domain.artifact_ports import ArtifactRecords, Blobs, BlobWriter
from toolhub_service.domain.call import Call
from toolhub_service.domain.errors import ErrorKind, HubFailure, HubStatus, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.runtime.artifact_arguments import ResolvedArguments, resolve_arguments
from toolhub_service.runtime.artifact_header import (
    ArtifactHeader,
    judge_header,
    judge_whole,
    plain_media_type,
    plain_name,
)
from toolhub_service.runtime.artifact_room import Claim, Room
from toolhub_service.runtime.to_its_end import to_its_end

_ID_BYTES = 16
_SWEPT_AT_ONCE = 100
_AS_STATUS = {ErrorKind.FILE_TOO_LARGE: "ARTIFACT_TOO_LARGE", ErrorKind.BUDGET_EXCEEDED: "QUOTA_EXCEEDED"}
"""What an upload is refused with as RESOURCE_EXHAUSTED."""


class Artifacts:
    """One a hub. `argument_max_bytes` bounds what all references in one call's arguments bring in."""

    def __init__(
        self,
        records: ArtifactRecords,
        blobs: Blobs,
        clock: Clock,
        randomness: Randomness,
        *,
        ttl_s: float,
        max_bytes: int,
        quota_bytes: int,
        argument_max_bytes: int,
        linger_s: float = 600.0,
    ) -> None:
        self._records = records
        self._blobs = blobs
        self._clock = clock
        self._randomness = randomness
        self._ttl_ms = int(ttl_s * 1_000)
        self._max_bytes = max_bytes
        self._argument_max_bytes = argument_max_bytes
        self._linger_ms = int(linger_s * 1_000)
        self._room = Room(records, quota_bytes)

    async def keep(
        self, chunks: AsyncIterator[bytes], *, call: Call, media_type: str = OCTETS, name: str = ""
    ) -> Artifact:
        """Store a call's output. Raises ToolFailure FILE_TOO_LARGE beyond the cap, BUDGET_EXCEEDED beyond the quota."""
        planned = self._planned(call.principal.id)._replace(
            media_type=plain_media_type(media_type),
            name=plain_name(name),
            task_id=call.context.task_id,
            call_id=call.call_id,
        )
        return await self._store(planned, chunks, ArtifactHeader())

    async def keep_whole(self, call: Call, value_json: bytes) -> ArtifactRef:
        """The whole of a result that is cut to its inline limit. Raises as `keep`."""
        artifact = await self.keep(_once(value_json), call=call, media_type="application/json", name="result.json")
        return artifact.ref

    async def write(self, principal_id: str, header: ArtifactHeader, chunks: AsyncIterator[bytes]) -> Artifact:
        """Store an upload; nothing is kept when `chunks` raises.

        Raises HubFailure INVALID_ARGUMENT when header, size or digest are wrong, RESOURCE_EXHAUSTED beyond cap or
        quota; ToolFailure when the stores fail.
        """
        judge_header(header)
        planned = self._planned(principal_id)._replace(
            media_type=header.media_type or OCTETS, name=header.name, task_id=header.task_id
        )
        try:
            return await self._store(planned, chunks, header)
        except ToolFailure as failure:
            reason = _AS_STATUS.get(failure.error.kind)
            if reason is None:
                raise
            raise HubFailure(HubStatus.RESOURCE_EXHAUSTED, reason, failure.error.message) from failure

    async def open(self, principal_id: str, artifact_id: str, *, may_read_all: bool = False) -> Artifact:
        """Raises ToolFailure NOT_FOUND when unknown, expired or somebody else's; auditors may read all."""
        artifact = await self._records.get(artifact_id)
        if (
            artifact is None
            or artifact.expires_at_unix_ms <= self._clock.unix_ms()
            or not (may_read_all or artifact.principal == principal_id)
        ):
            message = "There is no such artifact of yours: it never was, or has expired. Make or upload it again."
            raise refuse(ErrorKind.NOT_FOUND, message)
        return artifact

    async def read(self, artifact: Artifact, offset_bytes: int = 0, limit_bytes: int = 0) -> AsyncIterator[bytes]:
        """Its bytes; a limit of 0 means to the end. Raises ToolFailure NOT_FOUND, IO_ERROR when some are missing."""
        end = artifact.size_bytes if not limit_bytes else min(artifact.size_bytes, offset_bytes + limit_bytes)
        at = offset_bytes
        if at >= end:
            return
        async with aclosing(cast(Any, self._blobs.read(artifact.sha256, at, end - at))) as chunks:
            async for chunk in chunks:
                at += len(chunk)
                yield chunk
        if at != end:
            message = "The artifact's bytes are damaged: some are missing. Make or upload it again."
            raise refuse(ErrorKind.IO_ERROR, message)

    async def resolve(self, args: JsonObject, principal_id: str) -> ResolvedArguments:
        """Put artifacts in the place of their references. Raises ToolFailure NOT_FOUND, INVALID_INPUT."""
        return await resolve_arguments(args, principal_id, self, self._argument_max_bytes)

    async def sweep(self, now_unix_ms: int) -> int:
        """Forget what expired `linger_s` ago or earlier; how many. Raises ToolFailure when a store fails."""
        swept = 0
        while True:
            expired = await self._records.expired(now_unix_ms - self._linger_ms, _SWEPT_AT_ONCE)
            for artifact in expired:
                await self._forget(artifact)
                swept += 1
            if len(expired) < _SWEPT_AT_ONCE:
                return swept

    # Beneath

    def _planned(self, principal_id: str) -> Artifact:
        now_unix_ms = self._clock.unix_ms()
        return Artifact(
            artifact_id=f"art_{self._randomness.token_hex(_ID_BYTES)}",
            sha256="",
            size_bytes=0,
            principal=principal_id,
            created_at_unix_ms=now_unix_ms,
            expires_at_unix_ms=now_unix_ms + self._ttl_ms,
        )

    async def _store(self, planned: Artifact, chunks: AsyncIterator[bytes], header: ArtifactHeader) -> Artifact:
        if header.size_bytes > self._max_bytes:
            raise self._too_large()
        async with self._room.claim(planned.principal) as claim:
            writer = await self._blobs.writer()
            try:
                await self._pour(chunks, header, claim, writer)
                await self._room.check(planned.principal, claim)
                return await self._record(planned, writer)
            except BaseException:
                with suppress(ToolFailure):  # why it failed is told, not that its traces could not be wiped
                    await to_its_end(writer.abort())
                raise

    async def _pour(
        self, chunks: AsyncIterator[bytes], header: ArtifactHeader, claim: Claim, writer: BlobWriter
    ) -> None:
        """What was declared is judged before anything is stored; hashing costs only those who declare a digest."""
        size_bytes, sha256 = 0, hashlib.sha256() if header.sha256 else None
        async for chunk in chunks:
            size_bytes += len(chunk)
            if size_bytes > self._max_bytes:
                raise self._too_large()
            if size_bytes > header.size_bytes > 0:
                break
            claim.grow(len(chunk))
            if sha256 is not None:
                sha256.update(chunk)
            await writer.write(chunk)
        judge_whole(header, size_bytes, sha256.hexdigest() if sha256 else "")

    async def _record(self, planned: Artifact, writer: BlobWriter) -> Artifact:
        """From here on it is all or nothing: who is cancelled meanwhile waits and has it undone."""
        completing = asyncio.ensure_future(self._complete(planned, writer))
        try:
            return await asyncio.shield(completing)
        except asyncio.CancelledError:
            await to_its_end(self._withdraw(completing))
            raise

    async def _complete(self, planned: Artifact, writer: BlobWriter) -> Artifact:
        sha256, size_bytes = await writer.finish()
        now_unix_ms = self._clock.unix_ms()
        artifact = planned._replace(
            sha256=sha256,
            size_bytes=size_bytes,
            created_at_unix_ms=now_unix_ms,
            expires_at_unix_ms=now_unix_ms + self._ttl_ms,
        )
        await self._records.add(artifact)
        return artifact

    async def _withdraw(self, completing: asyncio.Future[Artifact]) -> None:
        try:
            artifact = await completing
        except ToolFailure:
            return  # it told nobody of an artifact, and nobody waits for the reason
        if await self._records.remove(artifact.artifact_id):
            await self._leave_to_the_sweeper(artifact)

    async def _forget(self, artifact: Artifact) -> None:
        if await self._records.remove(artifact.artifact_id):
            try:
                await self._blobs.remove(artifact.sha256)
            except ToolFailure:
                await self._leave_to_the_sweeper(artifact)
                raise

    async def _leave_to_the_sweeper(self, artifact: Artifact) -> None:
        """Bytes without a record would never be found again."""
        left = self._planned(artifact.principal)
        await self._records.add(
            left._replace(
                sha256=artifact.sha256, size_bytes=artifact.size_bytes, expires_at_unix_ms=left.created_at_unix_ms
            )
        )

    def _too_large(self) -> ToolFailure:
        message = f"The artifact is larger than {self._max_bytes} bytes, the most that is kept. Keep less or split it."
        return refuse(ErrorKind.FILE_TOO_LARGE, message, max_bytes=self._max_bytes)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
