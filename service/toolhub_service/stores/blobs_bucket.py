"""Bytes of artifacts in an S3-compatible bucket, under their sha256: `<prefix>/ab/cdef…`, through obstore.

The digest is known only at the end. Up to 5 MiB (most artifacts) wait in memory and are put at once; more goes by
multipart upload to `<prefix>/incoming/<random>` and, when whole, is copied inside the bucket to its name: nothing is
spooled to a disk of the hub, and no name ever stands for a part. A copy inside a bucket takes at most 5 GiB (S3).

What a killed hub leaves is an unfinished multipart upload or an object below `incoming/`; a lifecycle rule of the
bucket clears both away. A removal leaves bytes alone that were stored less than `settle_s` ago: a keeper of the same
content, here or on another hub, is about to record them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, S3Store

from toolhub_service.domain.artifact_ports import BlobWriter
from toolhub_service.stores.blobs_bucket_keys import key_of, telling
from toolhub_service.stores.blobs_bucket_writer import BucketWriter
from toolhub_service.stores.blobs_refusals import CHUNK_BYTES, SETTLE_S, gone

_WINDOW_BYTES = 4 * 1024 * 1024
"""What one request of a reading brings: a slow reader holds no connection open."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SETTINGS: Final = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_REGION": "region",
    "AWS_ENDPOINT_URL": "endpoint",
}


def open_bucket(url: str, environment: Mapping[str, str], *, settle_s: float = SETTLE_S) -> BucketBlobs:
    """The bucket of `s3://name/prefix`.

    Credential, region and endpoint come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION
    and AWS_ENDPOINT_URL, each also as NAME_FILE, which names a file that holds the value; without a key from the
    machine's own identity (web identity, container or instance role). Raises ValueError for another URL, OSError when
    a file cannot be read.
    """
    if not re.fullmatch(r"s3://[^/?#]+(/[^?#]*)?", url):
        raise ValueError("the URL of the artifacts' bucket must read s3://name or s3://name/prefix")
    config: Any = {key: value for name, key in _SETTINGS.items() if (value := _value(name, environment))}
    plain = str(config.get("endpoint", "")).startswith("http://")
    store = S3Store.from_url(
        url,
        config=config,
        client_options={"allow_http": plain, "connect_timeout": "5s", "timeout": "60s"},
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=20)},
    )
    return BucketBlobs(store, settle_s=settle_s)


def _value(name: str, environment: Mapping[str, str]) -> str:
    file = environment.get(f"{name}_FILE", "")
    return Path(file).read_text("utf-8").strip() if file else environment.get(name, "")


class BucketBlobs:
    """`domain.artifact_ports.Blobs` over any store of obstore."""

    def __init__(self, store: ObjectStore, *, settle_s: float = SETTLE_S) -> None:
        self._store = store
        self._settle_s = settle_s
        self._naming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def writer(self) -> BlobWriter:
        return BucketWriter(self._store, self)

    async def read(self, sha256: str, offset_bytes: int, limit_bytes: int) -> AsyncIterator[bytes]:
        """Chunks of 1 to 262144 bytes; a limit of 0 means to the end. Raises ToolFailure NOT_FOUND and others."""
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
        """Nothing happens to bytes younger than `settle_s`, nor when they are gone."""
        if not _SHA256.fullmatch(sha256):
            return
        async with self.naming(sha256):
            with telling():
                try:
                    status = await obstore.head_async(self._store, key_of(sha256))
                    age = datetime.now(UTC) - status["last_modified"]
                    if age.total_seconds() >= self._settle_s:
                        await obstore.delete_async(self._store, key_of(sha256))
                except FileNotFoundError:
                    return

    async def close(self) -> None:
        """Connections end with the process."""

    def naming(self, sha256: str) -> asyncio.Lock:
        """Held while a name is given or taken away, so that in this process neither falls into the other."""
        return self._naming.setdefault(sha256, asyncio.Lock())

    async def _window(self, sha256: str, at: int, window_bytes: int) -> tuple[bytes, int]:
        """Bytes from `at`, none at or past the end, and the size of the whole."""
        if not _SHA256.fullmatch(sha256):
            raise gone()
        key = key_of(sha256)
        with telling():
            try:
                found = await obstore.get_async(self._store, key, options={"range": (at, at + window_bytes)})
                return bytes(await found.bytes_async()), found.meta["size"]
            except FileNotFoundError:
                raise gone() from None
            except BaseError:
                size_bytes = (await obstore.head_async(self._store, key))["size"]
                if at >= size_bytes:  # no store answers a range that begins at the end
                    return b"", size_bytes
                raise
