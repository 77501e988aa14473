"""Idempotency keys in Redis, shared by all hubs with one prefix.

Each change is one script, so a compare-and-set. Expiry is by the hubs' clock: an expired key counts as gone, and each
claim of a new key removes up to a hundred of those. Waiters share the process's one feed, and a settled key is
published only if a waiter is registered.
"""

from __future__ import annotations

import asyncio
import hashlib
from weakref import WeakValueDictionary

from msgspec.structs import replace

from toolhub_service.domain.key import EffectKey, KeyRecord, full, refuse_key_share
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import ToolResult
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.codec import decode_key_record, decode_result, encode_key_record, encode_result
from toolhub_service.stores.redis.key_scripts import await_key, claim_key, release_key, settle_key
from toolhub_service.stores.redis.link import RedisLink


class RedisKeys:
    """Implements `KeyStore`.

    Bounded in keys, with a share for each principal (`may_take`): when full, it refuses new ones and never drops an
    unexpired one. Bytes are bounded by the server's `maxmemory`, which refuses in the same way: nothing is evicted.
    """

    def __init__(self, link: RedisLink, clock: Clock, *, max_keys: int = 1_000_000) -> None:
        """`max_keys` applies to all hubs together. The link is started by its owner."""
        self._link = link
        self._clock = clock
        self._max_keys = max_keys
        # Entries live as long as their waiters.
        self._awaited: WeakValueDictionary[bytes, asyncio.Event] = WeakValueDictionary()
        link.listen(b"key", self._on_event)

    async def claim(self, key: EffectKey, record: KeyRecord, *, replacing: str = "") -> KeyRecord | None:
        answer = await claim_key(
            self._link,
            name=_digest_of_key(key),
            now_unix_ms=self._clock.unix_ms(),
            max_keys=self._max_keys,
            owner=record.owner,
            replacing=replacing,
            record=encode_key_record(record),
            expires=record.expires_at_unix_ms,
            principal=_digest_of_principal(key),
        )
        if answer is None:
            return None
        if isinstance(answer, int):
            raise full(answer)
        if len(answer) == 1:
            raise refuse_key_share(int(answer[0]))
        existing, expires, *result = answer
        return replace(
            decode_key_record(existing),
            expires_at_unix_ms=int(expires),
            result=decode_result(result[0]) if result and result[0] else None,
        )

    async def settle(self, key: EffectKey, owner: str, result: ToolResult, expires_at_unix_ms: int) -> bool:
        done = await settle_key(
            self._link,
            name=_digest_of_key(key),
            now_unix_ms=self._clock.unix_ms(),
            owner=owner,
            result=encode_result(result),
            expires=expires_at_unix_ms,
            token=self._link.token(),
        )
        return bool(done)

    async def release(self, key: EffectKey, owner: str) -> bool:
        return bool(
            await release_key(self._link, name=_digest_of_key(key), now_unix_ms=self._clock.unix_ms(), owner=owner)
        )

    async def wait_for_end(self, key: EffectKey, owner: str, timeout_s: float) -> bool:
        name = _digest_of_key(key)
        until_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            news = self._awaited.setdefault(name, asyncio.Event())
            left_ms = await await_key(self._link, name=name, now_unix_ms=self._clock.unix_ms(), owner=owner)
            if not left_ms:
                return True
            if not await _wait_for_change(news, left_ms / 1_000, until_s):
                return False

    def _on_event(self, values: tuple[bytes, ...] | None) -> None:
        """Wake the keys' waiters; all of them after a gap, when any key may have ended."""
        for name in tuple(self._awaited) if values is None else values:
            if news := self._awaited.pop(name, None):
                news.set()


async def _wait_for_change(news: asyncio.Event, left_s: float, until_s: float) -> bool:
    """Wait for news, or for the claim to expire. Return False when the waiter's own time is over."""
    loop = asyncio.get_running_loop()
    expires_s = loop.time() + left_s
    try:
        async with asyncio.timeout_at(min(expires_s, until_s)):
            await news.wait()
    except TimeoutError:
        return expires_s < until_s
    return True


def _digest_of_key(key: EffectKey) -> bytes:
    """Return a bounded name, distinct for any length and any characters, within its scope."""
    return hashlib.sha256(dumps(list(key))).hexdigest().encode()


def _digest_of_principal(key: EffectKey) -> bytes:
    """Return a distinct name of the principal, for any length and any characters."""
    return hashlib.sha256(dumps([key.principal])).hexdigest()[:32].encode()
