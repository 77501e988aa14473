"""Large values by reference: kept, opened, read, uploaded, swept. Implements `ArtifactService`.

Bytes first, then the record: what is recorded can be read. A keep that fails or is cancelled leaves no record; bytes
that it had stored already are left to the sweeper under a record that has expired. The sweeper works in the other
order, and a while (`linger_s`) after the expiry: record, then bytes when no other record has their digest. A keep of
the same content between these two is safe, for a store of bytes removes nothing that was stored a moment ago.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

from msgspec.structs import replace

from toolhub_service.domain.artifact import OCTETS, Artifact, ArtifactRecords, ArtifactRef, Blobs, BlobWriter
from toolhub_service.domain.call import Call
from toolhub_service.domain.errors import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.domain.reasons import Reason
from toolhub_service.runtime.artifact_references import ResolvedArguments, resolve_arguments
from toolhub_service.runtime.steps import to_its_end

# How much each principal may own in artifacts, with what is on its way counted in.
#
# What is recorded is asked of the records, which all hubs share; what this process is taking in is counted here, so
# that uploads at once cannot pass the quota together. Several hubs may pass it by what they take in at the same
# moment.

# What an artifact counts beside its bytes, so that empty ones are not free.
_RECORD_BYTES = 1_024


@dataclass(slots=True)
class _Taking:
    """What this process is taking in for one principal."""

    bytes: int = 0
    running: int = 0
    ended: int = 0


class Quota:
    """`async with quota.claim(principal) as claim`: `grow` with every chunk, `check` before it is recorded."""

    def __init__(self, records: ArtifactRecords, quota_bytes: int) -> None:
        self._records = records
        self._quota_bytes = quota_bytes
        self._taking: dict[str, _Taking] = {}

    @asynccontextmanager
    async def claim(self, principal_id: str) -> AsyncIterator[Claim]:
        """Holds its bytes until the body ends: by then they are recorded or gone. Raises as `Claim.grow`."""
        taking = self._taking.setdefault(principal_id, _Taking())
        claim = Claim(taking, self._quota_bytes)
        taking.running += 1
        try:
            claim.used_bytes = await self.used_bytes(principal_id)
            claim.grow(_RECORD_BYTES)
            yield claim
            # The body ends when what it kept is recorded.
        finally:
            taking.bytes -= claim.bytes
            taking.running -= 1
            taking.ended += 1
            if not taking.running:
                self._taking.pop(principal_id, None)

    async def check(self, principal_id: str, claim: Claim) -> None:
        """Once all bytes are in: others may have been recorded meanwhile. Raises as `Claim.grow`."""
        claim.used_bytes = await self.used_bytes(principal_id)
        claim.grow(0)

    async def used_bytes(self, principal_id: str) -> int:
        """What is recorded, asked again when something ended meanwhile: it would be counted by neither side."""
        taking = self._taking[principal_id]
        while True:
            ended = taking.ended
            count, size_bytes = await self._records.usage(principal_id)
            if taking.ended == ended:
                return size_bytes + count * _RECORD_BYTES


class Claim:
    """Bytes on their way to one artifact."""

    def __init__(self, taking: _Taking, quota_bytes: int) -> None:
        self._taking = taking
        self._quota_bytes = quota_bytes
        self.used_bytes = 0
        self.bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Raises ToolFailure BUDGET_EXCEEDED beyond the quota."""
        self.bytes += size_bytes
        self._taking.bytes += size_bytes
        if self.used_bytes + self._taking.bytes > self._quota_bytes:
            raise refuse(
                ErrorKind.BUDGET_EXCEEDED,
                f"The artifacts of this caller would pass their quota of {self._quota_bytes} bytes. Keep less, or wait "
                "until older ones expire.",
                quota_bytes=self._quota_bytes,
                used_bytes=self.used_bytes,
            )


# What a writer says of an artifact before its bytes: judged when a client uploads, made harmless when a tool keeps.

NAME_MAX_CHARS = 255
# RFC 6838, with parameters.
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}(;[ -~]*)?")
_FOLDERS = re.compile(r"[/\\]")


@dataclass(frozen=True, slots=True)
class ArtifactHeader:
    """Everything may be left out."""

    media_type: str = ""
    name: str = ""
    """For people; no folders."""
    task_id: str = ""
    size_bytes: int = 0
    """Exact when it is not 0."""
    sha256: str = ""
    """64 lower-case hex digits, exact when not empty."""


def judge_header(header: ArtifactHeader) -> None:
    """Raises HubFailure INVALID_ARGUMENT for a name that could lead astray and for what is no media type."""
    if header.name and plain_name(header.name) != header.name:
        raise HubFailure(
            Reason.BAD_NAME,
            "Its name must be a file name without folders and control characters; change it or leave it out.",
        )
    if header.media_type and plain_media_type(header.media_type) != header.media_type:
        raise HubFailure(
            Reason.BAD_MEDIA_TYPE,
            "The artifact's media type must read type/subtype, such as text/plain; change it or leave it out.",
        )


def judge_whole(header: ArtifactHeader, size_bytes: int, sha256: str) -> None:
    """Whether what came is what was declared. Raises HubFailure INVALID_ARGUMENT."""
    if header.size_bytes and size_bytes != header.size_bytes:
        came = "more" if size_bytes > header.size_bytes else f"only {size_bytes}"
        raise HubFailure(
            Reason.SIZE_MISMATCH,
            f"{header.size_bytes} bytes were declared and {came} came; nothing was kept. Send it again.",
        )
    if sha256 != header.sha256:
        raise HubFailure(
            Reason.DIGEST_MISMATCH,
            f"What came digests to {sha256}, not to what was declared; nothing was kept. Send it again.",
        )


def plain_name(name: str) -> str:
    """The last component, without control characters and direction marks; empty when nothing is left of it."""
    last = "".join(char for char in _FOLDERS.split(name)[-1] if char.isprintable())[:NAME_MAX_CHARS]
    return "" if last in (".", "..") else last


def plain_media_type(media_type: str) -> str:
    """As declared, or octets when it is no media type."""
    return media_type if len(media_type) <= 255 and _MEDIA_TYPE.fullmatch(media_type) else OCTETS


_ID_BYTES = 16
_SWEPT_AT_ONCE = 100
# What an upload is refused with as RESOURCE_EXHAUSTED.
_AS_STATUS = {ErrorKind.FILE_TOO_LARGE: Reason.ARTIFACT_TOO_LARGE, ErrorKind.BUDGET_EXCEEDED: Reason.QUOTA_EXCEEDED}


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
        self._quota = Quota(records, quota_bytes)

    async def keep(
        self, chunks: AsyncIterator[bytes], *, call: Call, media_type: str = OCTETS, name: str = ""
    ) -> Artifact:
        """Store a call's output. Raises ToolFailure FILE_TOO_LARGE beyond the cap, BUDGET_EXCEEDED beyond the quota."""
        planned = replace(
            self._planned(call.principal.id),
            media_type=plain_media_type(media_type),
            name=plain_name(name),
            task_id=call.context.task_id,
            call_id=call.call_id,
        )
        return await self._store(planned, chunks, ArtifactHeader())

    async def release(self, artifact_ids: Sequence[str]) -> None:
        """As `ArtifactService.release`; done also where the caller is cancelled meanwhile."""
        if artifact_ids:
            await to_its_end(self._release(artifact_ids))

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
        planned = replace(
            self._planned(principal_id),
            media_type=header.media_type or OCTETS,
            name=header.name,
            task_id=header.task_id,
        )
        try:
            return await self._store(planned, chunks, header)
        except ToolFailure as failure:
            reason = _AS_STATUS.get(failure.error.kind)
            if reason is None:
                raise
            raise HubFailure(reason, failure.error.message) from failure

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
        async with self._quota.claim(planned.principal) as claim:
            writer = await self._blobs.writer()
            try:
                await self._pour(chunks, header, claim, writer)
                await self._quota.check(planned.principal, claim)
                return await self._record(planned, writer)
            except BaseException:
                with suppress(ToolFailure):  # why it failed is reported, not that its traces could not be wiped
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
        with suppress(ToolFailure):
            for artifact_id in artifact_ids:
                artifact = await self._records.get(artifact_id)
                if artifact is not None and await self._records.remove(artifact_id):
                    # Nobody's: the bytes may be too young to go, and the caller's quota is free at once.
                    await self._leave_to_the_sweeper(replace(artifact, principal=""))

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
            replace(
                left, sha256=artifact.sha256, size_bytes=artifact.size_bytes, expires_at_unix_ms=left.created_at_unix_ms
            )
        )

    def _too_large(self) -> ToolFailure:
        message = f"The artifact is larger than {self._max_bytes} bytes, the most that is kept. Keep less or split it."
        return refuse(ErrorKind.FILE_TOO_LARGE, message, max_bytes=self._max_bytes)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
