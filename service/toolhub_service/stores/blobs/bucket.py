"""Bytes of artifacts in an S3-compatible bucket, under their sha256: `<prefix>/ab/cdef…`, through obstore.

The digest is known only at the end. Up to 5 MiB (most artifacts) stay in memory and are put in one request; larger ones
go by multipart upload to `<prefix>/incoming/<random>` and, when complete, are copied to their name inside the bucket:
nothing is spooled to a disk of the hub, and no name ever belongs to partial content. A copy inside a bucket takes at
most 5 GiB (S3).

A killed hub leaves an unfinished multipart upload or an object below `incoming/`; a lifecycle rule of the bucket
removes both. Bytes stored less than `settle_s` ago are not removed: a writer of the same content, here or on another
hub, may be about to record them.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import ObjectStore, S3Store

from toolhub_service.domain.artifact import BlobWriter
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.stores.blobs.disk import CHUNK_BYTES, SETTLE_S, no_such_blob

# The names of blobs in a bucket, and the caller's error when the bucket refuses.


def key_of(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256[2:]}"


@contextmanager
def as_tool_failures() -> Iterator[None]:
    """Turn obstore's exceptions into a ToolFailure without their texts, which hold URLs."""
    try:
        yield
    except (PermissionDeniedError, UnauthenticatedError) as error:
        message = (
            "The hub may not use its bucket for artifacts. An operator must check its credential and rights there."
        )
        raise refuse(ErrorKind.IO_ERROR, message) from error
    except (BaseError, OSError) as error:
        message = "The hub's bucket for artifacts does not answer as it should. Try again in a moment."
        raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, retry_after_s=2.0) from error


# Size of one ranged request: a slow reader holds no connection open between two.
_WINDOW_BYTES = 4 * 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SETTINGS: Final = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_REGION": "region",
    "AWS_ENDPOINT_URL": "endpoint",
}


def bucket_of(url: str, environment: Mapping[str, str]) -> S3Store:
    """Return the bucket of `s3://name/prefix`.

    Credential, region and endpoint come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION
    and AWS_ENDPOINT_URL, each also as NAME_FILE, which names a file that holds the value; without a key, from the
    machine's own identity (web identity, container or instance role). Raises ValueError for another URL, OSError when a
    file cannot be read.
    """
    if not re.fullmatch(r"s3://[^/?#]+(/[^?#]*)?", url):
        raise ValueError("the URL of a bucket must read s3://name or s3://name/prefix")
    config: Any = {key: value for name, key in _SETTINGS.items() if (value := _value(name, environment))}
    plain = str(config.get("endpoint", "")).startswith("http://")
    return S3Store.from_url(
        url,
        config=config,
        client_options={"allow_http": plain, "connect_timeout": "5s", "timeout": "60s"},
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=20)},
    )


def _value(name: str, environment: Mapping[str, str]) -> str:
    file = environment.get(f"{name}_FILE", "")
    return Path(file).read_text("utf-8").strip() if file else environment.get(name, "")


class BucketBlobs:
    """Implements `domain.artifact.Blobs` over any store of obstore."""

    def __init__(self, store: ObjectStore, *, settle_s: float = SETTLE_S) -> None:
        self._store = store
        self._settle_s = settle_s
        self._naming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def writer(self) -> BlobWriter:
        return BucketWriter(self._store, self)

    async def read(self, sha256: str, offset_bytes: int, limit_bytes: int) -> AsyncIterator[bytes]:
        """Yield chunks of 1 to 262144 bytes; a limit of 0 means to the end. Raises ToolFailure NOT_FOUND and others."""
        at, left = offset_bytes, limit_bytes or None
        while left is None or left > 0:
            window = _WINDOW_BYTES if left is None else min(_WINDOW_BYTES, left)
            data, size_bytes = await self._window(sha256, at, window)
            for start in range(0, len(data), CHUNK_BYTES):
                yield data[start : start + CHUNK_BYTES]
            at += len(data)
            left = None if left is None else left - len(data)
            if at >= size_bytes or not data:
                return

    async def remove(self, sha256: str) -> None:
        """Remove the bytes, unless they are younger than `settle_s` or gone already."""
        if not _SHA256.fullmatch(sha256):
            return
        async with self.naming(sha256):
            with as_tool_failures():
                try:
                    status = await obstore.head_async(self._store, key_of(sha256))
                    age = datetime.now(UTC) - status["last_modified"]
                    if age.total_seconds() >= self._settle_s:
                        await obstore.delete_async(self._store, key_of(sha256))
                except FileNotFoundError:
                    return

    async def close(self) -> None:
        """Nothing to do: connections end with the process."""

    def naming(self, sha256: str) -> asyncio.Lock:
        """Hold this lock while giving or removing a name, so that in this process the two never interleave."""
        return self._naming.setdefault(sha256, asyncio.Lock())

    async def _window(self, sha256: str, at: int, window_bytes: int) -> tuple[bytes, int]:
        """Return the bytes from `at`, none at or past the end, and the size of the whole."""
        if not _SHA256.fullmatch(sha256):
            raise no_such_blob()
        key = key_of(sha256)
        with as_tool_failures():
            try:
                found = await obstore.get_async(self._store, key, options={"range": (at, at + window_bytes)})
                return bytes(await found.bytes_async()), found.meta["size"]
            except FileNotFoundError:
                raise no_such_blob() from None
            except BaseError:
                size_bytes = (await obstore.head_async(self._store, key))["size"]
                if at >= size_bytes:  # stores refuse a range that begins at the end
                    return b"", size_bytes
                if at or size_bytes > window_bytes:
                    raise
                # Some servers answer a range that covers everything with 200, which RFC 9110, 14.2 allows.
                found = await obstore.get_async(self._store, key)
                return bytes(await found.bytes_async()), size_bytes


# One blob on its way to a bucket: held in memory while it is small, then sent as a multipart upload.

# Smallest part of a multipart upload (S3); smaller blobs are put in one request.
_HELD_BYTES = 5 * 1024 * 1024
_PARTS_AT_ONCE = 2
_WAITING_CHUNKS = 1


class _Aborted(Exception):
    """Raised inside the upload, which then removes the parts it has sent."""


class BucketWriter:
    """Implements `domain.artifact.BlobWriter`."""

    def __init__(self, store: ObjectStore, names: BucketBlobs) -> None:
        self._store = store
        self._names = names
        self._sha256 = hashlib.sha256()
        self._size_bytes = 0
        self._held = bytearray()
        self._upload: asyncio.Future[obstore.PutResult] | None = None
        self._temporary = f"incoming/{secrets.token_hex(16)}"
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING_CHUNKS)
        self._is_aborted = self._is_finished = False

    async def write(self, chunk: bytes) -> None:
        self._sha256.update(chunk)
        self._size_bytes += len(chunk)
        self._held += chunk
        if len(self._held) >= _HELD_BYTES:
            await self._pour()

    async def finish(self) -> tuple[str, int]:
        sha256 = self._sha256.hexdigest()
        key = key_of(sha256)
        with as_tool_failures():
            if self._upload is None:
                async with self._names.naming(sha256):
                    await obstore.put_async(self._store, key, bytes(self._held))
            else:
                await self._pour()
                await self._send(None)
                await asyncio.shield(self._upload)  # a cancelled request could not remove its parts
                async with self._names.naming(sha256):
                    await obstore.copy_async(self._store, self._temporary, key)
                await self._forget_temporary()
        self._is_finished = True
        return sha256, self._size_bytes

    async def abort(self) -> None:
        self._held.clear()
        if self._upload is None or self._is_finished:
            return
        self._is_aborted = True
        self._drain()
        self._waiting.put_nowait(None)
        # It fails because it was aborted, so any other error is irrelevant now.
        with suppress(_Aborted, BaseError, OSError):
            await asyncio.shield(self._upload)
        await self._forget_temporary()

    async def _pour(self) -> None:
        """Hand the chunks in memory to the upload; begin the upload when there is none."""
        if self._upload is None:
            upload = asyncio.ensure_future(
                obstore.put_async(
                    self._store,
                    self._temporary,
                    self._chunks(),
                    chunk_size=_HELD_BYTES,
                    max_concurrency=_PARTS_AT_ONCE,
                    use_multipart=True,
                )
            )
            upload.add_done_callback(lambda _: self._drain())
            self._upload = upload
        if self._held:
            data, self._held = bytes(self._held), bytearray()
            await self._send(data)

    async def _send(self, data: bytes | None) -> None:
        assert self._upload is not None
        await self._waiting.put(data)  # a failed upload drains the queue, so this never waits for it
        if self._upload.done() and data is not None:
            with as_tool_failures():
                await self._upload

    async def _chunks(self) -> AsyncIterator[bytes]:
        while (data := await self._waiting.get()) is not None:
            yield data
        if self._is_aborted:
            raise _Aborted

    def _drain(self) -> None:
        while not self._waiting.empty():
            self._waiting.get_nowait()

    async def _forget_temporary(self) -> None:
        """Remove the temporary object.

        If that fails, the bucket's lifecycle rule does it; the blob does not depend on it.
        """
        with suppress(BaseError, OSError):  # as the docstring says
            await obstore.delete_async(self._store, self._temporary)
