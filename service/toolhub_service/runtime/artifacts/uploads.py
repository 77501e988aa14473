"""Uploads of artifacts: their header, their end, and how one resumes after its connection broke.

An upload that its client named (`upload_id`) is held when its stream breaks: the received bytes, their digest and their
claim of the quota. Another stream resumes after the last byte; it may take over from one that the hub still believes to
be alive, because a client often notices a dead connection first. An upload is held by this process only, for a limited
time.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, TypeAlias

import msgspec

from toolhub_service.aio.waits import shield_until_done
from toolhub_service.domain.artifact import OCTETS, Artifact, BlobWriter
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.ports import Clock
from toolhub_service.runtime.artifacts.quota import Claim

# What a writer declares of an artifact before its bytes: validated when a client uploads, sanitised when a tool stores.

NAME_MAX_CHARS = 255
# RFC 6838, with parameters.
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}(;[ -~]*)?")
_FOLDERS = re.compile(r"[/\\]")


class ArtifactHeader(msgspec.Struct, frozen=True):
    """Every field may be left out."""

    media_type: str = ""
    name: str = ""
    """A name for people, without folders."""
    task_id: str = ""
    size_bytes: int = 0
    """Exact when it is not 0."""
    sha256: str = ""
    """64 lower-case hex digits, exact when not empty."""
    upload_id: str = ""
    offset_bytes: int = 0
    """Offset of the first chunk; 0 starts again."""


def check_header(header: ArtifactHeader) -> None:
    """Raises HubFailure INVALID_ARGUMENT for an unsafe name, an invalid media type, and an upload that cannot be
    resumed."""
    if header.offset_bytes and not header.upload_id:
        message = "offset_bytes requires the upload_id of the first bytes. Without one, start at 0."
        raise HubFailure(Reason.UPLOAD_HEADER_INVALID, message)
    if header.upload_id and not (header.size_bytes or header.sha256):
        # A broken stream may look like the end of the content, so a resumable upload must declare its size or digest.
        message = "An upload_id requires size_bytes or sha256, so that the hub knows when the upload is complete."
        raise HubFailure(Reason.UPLOAD_HEADER_INVALID, message)
    if header.name and plain_name(header.name) != header.name:
        raise HubFailure(
            Reason.BAD_NAME,
            "The artifact's name must be a file name without folders and control characters. Change it or leave it "
            "empty.",
        )
    if header.media_type and plain_media_type(header.media_type) != header.media_type:
        raise HubFailure(
            Reason.BAD_MEDIA_TYPE,
            "The artifact's media type must have the form type/subtype, such as text/plain. Change it or leave it "
            "empty.",
        )


def check_whole(header: ArtifactHeader, size_bytes: int, sha256: str) -> None:
    """Check the received bytes against the declaration. Raises HubFailure INVALID_ARGUMENT."""
    if header.size_bytes and size_bytes != header.size_bytes:
        came = "more" if size_bytes > header.size_bytes else f"only {size_bytes}"
        raise HubFailure(
            Reason.SIZE_MISMATCH,
            f"The header declared {header.size_bytes} bytes, but {came} arrived. Nothing was stored. Send it again.",
        )
    if sha256 != header.sha256:
        raise HubFailure(
            Reason.DIGEST_MISMATCH,
            f"The SHA-256 of the received bytes is {sha256}, not the declared one. Nothing was stored. Send it again.",
        )


def plain_name(name: str) -> str:
    """Return the last path component without control characters and direction marks; it may be empty."""
    last = "".join(char for char in _FOLDERS.split(name)[-1] if char.isprintable())[:NAME_MAX_CHARS]
    return "" if last in (".", "..") else last


def plain_media_type(media_type: str) -> str:
    """Return the declared media type, or application/octet-stream when it is invalid."""
    return media_type if len(media_type) <= 255 and _MEDIA_TYPE.fullmatch(media_type) else OCTETS


def too_large(max_bytes: int) -> ToolFailure:
    message = f"The artifact is larger than the limit of {max_bytes} bytes. Split it."
    return refuse(ErrorKind.FILE_TOO_LARGE, message, max_bytes=max_bytes)


# Resumable uploads: those that their clients named.

HELD_S: Final = 900.0
"""How long an upload without a stream is held, and how long the result of a finished one is kept."""
HELD_MAX_EACH: Final = 16
"""Limit for one principal; beyond it the upload that has waited longest is dropped."""
_HELD_MAX: Final = 1_024


class Upload:
    """Bytes received for one artifact, under a claim of the quota."""

    def __init__(self, header: ArtifactHeader, claim: Claim, writer: BlobWriter, max_bytes: int) -> None:
        self.writer = writer
        self.size_bytes = 0
        self._header = header
        self.claim = claim
        self._max_bytes = max_bytes
        # Only those who declare a digest pay for hashing.
        self._sha256 = hashlib.sha256() if header.sha256 else None

    async def take(self, chunk: bytes) -> None:
        """Store a chunk after checking it against the declaration. Raises ToolFailure, and HubFailure as `check_whole`
        does."""
        size_bytes = self.size_bytes + len(chunk)
        if size_bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        if size_bytes > self._header.size_bytes > 0:
            check_whole(self._header, size_bytes, "")
        self.claim.grow(len(chunk))
        if self._sha256 is not None:
            self._sha256.update(chunk)
        await self.writer.write(chunk)
        self.size_bytes = size_bytes

    def check(self) -> None:
        """Check the whole once all bytes are in. Raises HubFailure INVALID_ARGUMENT."""
        check_whole(self._header, self.size_bytes, self._sha256.hexdigest() if self._sha256 else "")

    async def abort(self) -> None:
        with suppress(ToolFailure):  # report why it failed, not that its remains could not be deleted
            await shield_until_done(self.writer.abort())


class HeldUpload:
    """An upload that another stream may resume. `stream` is the one that writes now; None when there is none."""

    def __init__(self, header: ArtifactHeader, upload: Upload, release: AsyncExitStack) -> None:
        self.artifact_id = ""
        """Result, once it is finished."""
        self.stream: object | None = None
        self.left_at_unix_ms = 0
        self._header = header
        self._upload = upload
        self._release = release
        self._lock = asyncio.Lock()
        # False while a chunk is being stored: an upload whose chunk failed halfway cannot be resumed.
        self._is_sound = True

    @property
    def received_bytes(self) -> int:
        return self._upload.size_bytes

    @property
    def can_continue(self) -> bool:
        return self._is_sound and not self.artifact_id

    async def take_over(self, header: ArtifactHeader, stream: object) -> None:
        """Let this stream write, and no other. Raises HubFailure when the upload cannot be resumed."""
        async with self._lock:
            if not self.can_continue or header.offset_bytes != self.received_bytes:
                what = f"has {self.received_bytes} bytes" if self.can_continue else "is over"
                raise HubFailure(
                    Reason.UPLOAD_OFFSET_WRONG,
                    f"The upload {what}. Call GetUpload and continue at received_bytes.",
                    received_bytes=str(self.received_bytes),
                )
            if msgspec.structs.replace(header, offset_bytes=0) != self._header:
                message = (
                    "The header differs from the first header of this upload. Send the same header, or start at 0."
                )
                raise HubFailure(Reason.UPLOAD_HEADER_INVALID, message)
            self.stream = stream

    async def fill(self, chunks: AsyncIterator[bytes], stream: object) -> None:
        """Store the chunks. Raises as `Upload.take` does, HubFailure ABORTED once another stream writes, and whatever
        `chunks` raises."""
        async for chunk in chunks:
            async with self._lock:
                self._check(stream)
                await _whole(self._take(chunk))

    async def finish(self, stream: object, keep: Callable[[Upload], Coroutine[Any, Any, Artifact]]) -> Artifact:
        """Raises HubFailure as `Upload.check` does, ABORTED as `fill` does, and what `keep` raises."""
        async with self._lock:
            self._check(stream)
            # Content shorter than its size, or declared by digest only, may be the beginning that a broken stream left.
            self._is_sound = not self._header.size_bytes or self.received_bytes < self._header.size_bytes
            self._upload.check()
            self._is_sound = False
            artifact = await shield_until_done(keep(self._upload))
            self.artifact_id = artifact.artifact_id
            await self._release.aclose()
            return artifact

    async def drop(self) -> None:
        """Delete an unfinished upload."""
        async with self._lock:
            self.stream = None
            self._is_sound = False
            if not self.artifact_id:
                await self._upload.abort()
                await self._release.aclose()

    async def _take(self, chunk: bytes) -> None:
        self._is_sound = False
        await self._upload.take(chunk)
        self._is_sound = True

    def _check(self, stream: object) -> None:
        if self.stream is not stream:
            message = "Another stream continued this upload. Nothing is lost."
            raise HubFailure(Reason.UPLOAD_TAKEN_OVER, message)


UploadKey: TypeAlias = tuple[str, str]
"""Principal and upload_id."""


class HeldUploads:
    """The held uploads of this process."""

    def __init__(self, clock: Clock, begin: Callable[[str, ArtifactHeader], Awaitable[HeldUpload]]) -> None:
        self._clock = clock
        self._begin = begin
        self._held: dict[UploadKey, HeldUpload] = {}

    def find(self, key: UploadKey) -> HeldUpload:
        """Return a held upload. Raises HubFailure NOT_FOUND."""
        upload = self._held.get(key)
        if upload is None or self._is_stale(upload, self._clock.unix_ms()):
            raise HubFailure(
                Reason.UPLOAD_NOT_FOUND,
                "This hub process does not have the upload: it expired, or another process has it. Start again "
                "with offset_bytes 0.",
            )
        return upload

    async def open_upload(self, key: UploadKey, header: ArtifactHeader, stream: object) -> HeldUpload:
        """Return the upload that resumes at the header's offset; at 0 a new one. Raises HubFailure, ToolFailure."""
        if header.offset_bytes:
            upload = self.find(key)
            await upload.take_over(header, stream)
            return upload
        await self._forget(key)
        await self._make_room(key[0])
        upload = await self._begin(key[0], header)
        upload.stream = stream
        await self._forget(key)  # another stream may have begun meanwhile
        self._held[key] = upload
        return upload

    async def leave_upload(self, key: UploadKey, upload: HeldUpload, stream: object) -> None:
        """Called when the stream has ended: the upload is held for another stream while it can be resumed."""
        if upload.stream is not stream:
            return
        upload.stream, upload.left_at_unix_ms = None, self._clock.unix_ms()
        if not upload.can_continue and not upload.artifact_id:
            await upload.drop()
            if self._held.get(key) is upload:
                del self._held[key]

    async def expire(self, now_unix_ms: int) -> None:
        for key in [key for key, upload in self._held.items() if self._is_stale(upload, now_unix_ms)]:
            await self._forget(key)

    async def close(self) -> None:
        for key in list(self._held):
            await self._forget(key)

    def _is_stale(self, upload: HeldUpload, now_unix_ms: int) -> bool:
        return upload.stream is None and now_unix_ms - upload.left_at_unix_ms >= HELD_S * 1_000

    async def _make_room(self, principal_id: str) -> None:
        for whose, most in ((principal_id, HELD_MAX_EACH), ("", _HELD_MAX)):
            keys = [key for key in self._held if whose in ("", key[0])]
            waiting = [key for key in keys if self._held[key].stream is None]
            waiting.sort(key=lambda key: self._held[key].left_at_unix_ms)
            for key in waiting[: max(0, len(keys) + 1 - most)]:
                await self._forget(key)

    async def _forget(self, key: UploadKey) -> None:
        upload = self._held.pop(key, None)
        if upload is not None:
            await upload.drop()


async def _whole(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work, then raise a cancellation that came meanwhile: after half a chunk the upload could not be
    resumed."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await shield_until_done(wait_for_end(task))
        raise


async def wait_for_end(task: asyncio.Future[None]) -> None:
    await asyncio.gather(task, return_exceptions=True)
