"""Large values by reference: stored, opened, read, uploaded, swept. Implements `ArtifactService`.

The bytes are written first, then the record, so that recorded artifacts can be read. A failed or cancelled write leaves
no record; bytes that it had stored are left to the sweeper under a record that has expired. The sweeper works in the
other order, `linger_s` after the expiry: it deletes the record, then the bytes when no other record has their digest.
Storing the same content between these two is safe, because a store of bytes deletes nothing that was stored a moment
ago.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, cast

from msgspec.structs import replace

from toolhub_service.aio.waits import shield_until_done
from toolhub_service.domain.artifact import (
    OCTETS,
    Artifact,
    ArtifactFilter,
    ArtifactRecords,
    ArtifactRef,
    Blobs,
    BlobWriter,
)
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.domain.storage import Room, StorageDirectory
from toolhub_service.runtime.artifacts.quota import Quota
from toolhub_service.runtime.artifacts.references import ResolvedArguments, resolve_arguments
from toolhub_service.runtime.artifacts.uploads import (
    ArtifactHeader,
    HeldUpload,
    HeldUploads,
    Upload,
    check_header,
    plain_media_type,
    plain_name,
    too_large,
)

_ID_BYTES = 16
_SWEPT_AT_ONCE = 100
# Records read for one page of a list, because the stores cannot filter by task or call.
_LISTED_AT_ONCE = 1_000
_LISTED_MOST = 20_000
# Failures that an upload reports as RESOURCE_EXHAUSTED.
_AS_STATUS = {ErrorKind.FILE_TOO_LARGE: Reason.ARTIFACT_TOO_LARGE, ErrorKind.BUDGET_EXCEEDED: Reason.QUOTA_EXCEEDED}


class DamagedArtifact(ToolFailure):
    """The stored bytes differ from those that were recorded."""

    def __init__(self, artifact: Artifact, what: str) -> None:
        message = f"The artifact's bytes are damaged: {what}. Discard them; create or upload the artifact again."
        super().__init__(refuse(ErrorKind.IO_ERROR, message, artifact_id=artifact.artifact_id).error)


class Artifacts:
    """Artifacts of one hub. `argument_max_bytes` bounds the total size of all references in one call's arguments."""

    def __init__(
        self,
        records: ArtifactRecords,
        blobs: Blobs,
        clock: Clock,
        randomness: Randomness,
        *,
        ttl_s: float,
        max_bytes: int,
        argument_max_bytes: int,
        linger_s: float = 600.0,
        directory: StorageDirectory,
        room: Room | None = None,
    ) -> None:
        """`directory` gives the bounds of principals and tenants. `room`: the disk that the bytes lie on; None: they
        lie elsewhere."""
        self._records = records
        self._blobs = blobs
        self._clock = clock
        self._randomness = randomness
        self._ttl_ms = int(ttl_s * 1_000)
        self._max_bytes = max_bytes
        self._argument_max_bytes = argument_max_bytes
        self._linger_ms = int(linger_s * 1_000)
        self._quota = Quota(records, directory, room)
        self._uploads = HeldUploads(clock, self._begin)

    async def keep(
        self, chunks: AsyncIterator[bytes], *, call: Call, media_type: str = OCTETS, name: str = ""
    ) -> Artifact:
        """Store a call's output. Raises ToolFailure FILE_TOO_LARGE beyond the cap, BUDGET_EXCEEDED beyond the quota."""
        planned = replace(
            self._new_artifact(call.principal.id),
            media_type=plain_media_type(media_type),
            name=plain_name(name),
            task_id=call.context.task_id,
            call_id=call.call_id,
        )
        return await self._store(planned, chunks, ArtifactHeader())

    async def release(self, artifact_ids: Sequence[str]) -> None:
        """As `ArtifactService.release`; completes even when the caller is cancelled."""
        if artifact_ids:
            await shield_until_done(self._release(artifact_ids))

    async def keep_whole(self, call: Call, value_json: bytes) -> ArtifactRef:
        """Store the whole of a result that is cut to its inline limit. Raises as `keep` does."""
        artifact = await self.keep(_once(value_json), call=call, media_type="application/json", name="result.json")
        return artifact.ref

    async def write(self, principal_id: str, header: ArtifactHeader, chunks: AsyncIterator[bytes]) -> Artifact:
        """Store an upload; when `chunks` raises nothing is stored, but an upload with an `upload_id` can be resumed.

        Raises HubFailure INVALID_ARGUMENT when header, size or digest are wrong, RESOURCE_EXHAUSTED beyond cap or
        quota, and as `HeldUploads.opened`; ToolFailure when the stores fail.
        """
        check_header(header)
        planned = replace(
            self._new_artifact(principal_id),
            media_type=header.media_type or OCTETS,
            name=header.name,
            task_id=header.task_id,
        )
        store = self._store_on if header.upload_id else self._store
        try:
            return await store(planned, chunks, header)
        except ToolFailure as failure:
            reason = _AS_STATUS.get(failure.error.kind)
            if reason is None:
                raise
            refused = HubFailure(reason, failure.error.message)
            if reason is Reason.QUOTA_EXCEEDED:
                refused.metadata = {name: str(value) for name, value in failure.error.details.items()}
            raise refused from failure

    async def upload(self, principal_id: str, upload_id: str) -> tuple[int, Artifact | None]:
        """Return how many bytes of an upload have arrived, and its artifact once finished. Raises HubFailure
        NOT_FOUND."""
        upload = self._uploads.find((principal_id, upload_id))
        artifact = await self.open(principal_id, upload.artifact_id) if upload.artifact_id else None
        return upload.received_bytes, artifact

    async def page(
        self, where: ArtifactFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Artifact], tuple[int, str] | None]:
        """Return (artifacts, latest expiry first, and the cursor of the next page); the cursor is None at the end."""
        now_unix_ms, found = self._clock.unix_ms(), list[Artifact]()
        at_once = _LISTED_AT_ONCE if where.task_id or where.call_id else limit + 1
        for _ in range(_LISTED_MOST // _LISTED_AT_ONCE):
            records = await self._records.page(
                where.principal, where.sha256, after=after, limit=at_once, owners=where.owners
            )
            for artifact in records:
                if artifact.expires_at_unix_ms <= now_unix_ms:
                    return found, None
                if where.task_id in ("", artifact.task_id) and where.call_id in ("", artifact.call_id):
                    if len(found) == limit:
                        return found, after
                    found.append(artifact)
                after = artifact.expires_at_unix_ms, artifact.artifact_id
            if not records:
                return found, None
        return found, after

    async def delete(self, artifact: Artifact) -> None:
        """Delete the record of an opened artifact. The sweeper deletes its bytes later, so current readers can
        finish."""
        # The expired record has no owner: the bytes may be too young to delete, and the owner's quota is free at once.
        await self._leave_to_the_sweeper(replace(artifact, principal=""))
        await self._records.remove(artifact.artifact_id)

    async def open(self, principal_id: str, artifact_id: str, *, auditor: Principal | None = None) -> Artifact:
        """Return an artifact. Raises ToolFailure NOT_FOUND when unknown, expired or another principal's; auditors may
        read their tenant's."""
        artifact = await self._records.get(artifact_id)
        if (
            artifact is None
            or artifact.expires_at_unix_ms <= self._clock.unix_ms()
            or not (artifact.principal == principal_id or (auditor and auditor.may_know(artifact.principal)))
        ):
            message = "You have no such artifact: it never existed, or it expired. Create or upload it again."
            raise refuse(ErrorKind.NOT_FOUND, message)
        return artifact

    async def read(self, artifact: Artifact, offset_bytes: int = 0, limit_bytes: int = 0) -> AsyncIterator[bytes]:
        """Yield its bytes; a limit of 0 means to the end. Raises ToolFailure NOT_FOUND; DamagedArtifact when some are
        missing and, before the last chunk, when the whole does not match its digest."""
        end = artifact.size_bytes if not limit_bytes else min(artifact.size_bytes, offset_bytes + limit_bytes)
        at = offset_bytes
        sha256 = hashlib.sha256() if end - at == artifact.size_bytes else None
        if at >= end:
            return
        async with aclosing(cast(Any, self._blobs.read(artifact.sha256, at, end - at))) as chunks:
            async for chunk in chunks:
                at += len(chunk)
                if sha256 is not None:
                    sha256.update(chunk)
                    if at >= end and sha256.hexdigest() != artifact.sha256:
                        raise DamagedArtifact(artifact, "they do not match its sha256")
                yield chunk
        if at != end:
            raise DamagedArtifact(artifact, "some are missing")

    async def resolve(self, args: JsonObject, principal_id: str) -> ResolvedArguments:
        """Replace references by their artifacts' text. Raises ToolFailure NOT_FOUND, INVALID_INPUT."""
        return await resolve_arguments(args, principal_id, self, self._argument_max_bytes)

    async def sweep(self, now_unix_ms: int) -> int:
        """Delete what expired `linger_s` ago or earlier, and return how many. Raises ToolFailure when a store fails."""
        await self._uploads.expire(now_unix_ms)
        swept = 0
        while True:
            expired = await self._records.read_expired(now_unix_ms - self._linger_ms, _SWEPT_AT_ONCE)
            for artifact in expired:
                await self._forget(artifact)
                swept += 1
            if len(expired) < _SWEPT_AT_ONCE:
                return swept

    async def close(self) -> None:
        """Delete unfinished uploads, then close the store of bytes."""
        await self._uploads.close()
        await self._blobs.close()

    # Internals

    def _new_artifact(self, principal_id: str) -> Artifact:
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
            raise too_large(self._max_bytes)
        async with self._quota.claim(planned.principal) as claim:
            upload = Upload(header, claim, await self._blobs.writer(), self._max_bytes)
            try:
                async for chunk in chunks:
                    await upload.take(chunk)
                upload.check()
                await claim.check()
                return await self._record(planned, upload.writer)
            except BaseException:
                await upload.abort()
                raise

    async def _store_on(self, planned: Artifact, chunks: AsyncIterator[bytes], header: ArtifactHeader) -> Artifact:
        """As `_store`, on a held upload."""
        key, stream = (planned.principal, header.upload_id), object()
        upload = await self._uploads.open_upload(key, header, stream)
        try:
            await upload.fill(chunks, stream)
            return await upload.finish(stream, lambda filled: self._keep(planned, filled))
        finally:
            await shield_until_done(self._uploads.leave_upload(key, upload, stream))

    async def _begin(self, principal_id: str, header: ArtifactHeader) -> HeldUpload:
        if header.size_bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        async with AsyncExitStack() as release:
            claim = await release.enter_async_context(self._quota.claim(principal_id))
            upload = Upload(header, claim, await self._blobs.writer(), self._max_bytes)
            return HeldUpload(header, upload, release.pop_all())

    async def _keep(self, planned: Artifact, upload: Upload) -> Artifact:
        await upload.claim.check()
        return await self._complete(planned, upload.writer)

    async def _record(self, planned: Artifact, writer: BlobWriter) -> Artifact:
        """Write the record. This step is atomic: a caller that is cancelled meanwhile waits until it is undone."""
        completing = asyncio.ensure_future(self._complete(planned, writer))
        try:
            return await asyncio.shield(completing)
        except asyncio.CancelledError:
            await shield_until_done(self._withdraw(completing))
            raise

    async def _complete(self, planned: Artifact, writer: BlobWriter) -> Artifact:
        sha256, size_bytes = await writer.finish()
        now_unix_ms = self._clock.unix_ms()
        artifact = replace(
            planned,
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
            return  # it reported no artifact, and nobody waits for the reason
        if await self._records.remove(artifact.artifact_id):
            await self._leave_to_the_sweeper(artifact)

    async def _release(self, artifact_ids: Sequence[str]) -> None:
        # The store is unreachable: the rest expires by itself, and no caller should wait for each of them.
        with suppress(ToolFailure):
            for artifact_id in artifact_ids:
                artifact = await self._records.get(artifact_id)
                if artifact is not None:
                    await self.delete(artifact)

    async def _forget(self, artifact: Artifact) -> None:
        if await self._records.remove(artifact.artifact_id):
            try:
                await self._blobs.remove(artifact.sha256)
            except ToolFailure:
                await self._leave_to_the_sweeper(artifact)
                raise

    async def _leave_to_the_sweeper(self, artifact: Artifact) -> None:
        """Record bytes that have no artifact as expired: without a record the sweeper would never find them."""
        left = self._new_artifact(artifact.principal)
        await self._records.add(
            replace(
                left, sha256=artifact.sha256, size_bytes=artifact.size_bytes, expires_at_unix_ms=left.created_at_unix_ms
            )
        )


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
