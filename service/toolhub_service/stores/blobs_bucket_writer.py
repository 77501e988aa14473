"""One blob on its way to a bucket: held in memory while it is small, then poured into a multipart upload."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Protocol

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from toolhub_service.stores.blobs_bucket_keys import key_of, telling

_HELD_BYTES = 5 * 1024 * 1024
"""Smallest part of a multipart upload (S3); what is smaller is put at once."""
_PARTS_AT_ONCE = 2
_WAITING_CHUNKS = 1


class Naming(Protocol):
    def naming(self, sha256: str) -> asyncio.Lock: ...


class _Aborted(Exception):
    """Raised into the upload, which then takes back the parts it has sent."""


class BucketWriter:
    """`domain.artifact_ports.BlobWriter`."""

    def __init__(self, store: ObjectStore, names: Naming) -> None:
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
        with telling():
            if self._upload is None:
                async with self._names.naming(sha256):
                    await obstore.put_async(self._store, key, bytes(self._held))
            else:
                await self._pour()
                await self._send(None)
                await asyncio.shield(self._upload)  # a cancelled request could not take its parts back
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
        with suppress(_Aborted, BaseError, OSError):
            await asyncio.shield(self._upload)
        await self._forget_temporary()

    async def _pour(self) -> None:
        """Hand over what is held to the upload, begun when there is none."""
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
        await self._waiting.put(data)  # an upload that has failed drains the queue, so that this never waits for it
        if self._upload.done() and data is not None:
            with telling():
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
        """What stays is cleared away by the bucket's lifecycle rule; the blob does not hang on it."""
        with suppress(BaseError, OSError):
            await obstore.delete_async(self._store, self._temporary)
