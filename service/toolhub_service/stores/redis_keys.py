"""Idempotency keys in Redis, shared by all hubs with the same prefix.

Each change is one script, so a compare-and-set. Expiry is by the hubs' clock: a key whose time is over counts as gone,
and each claim of a new key removes up to a hundred of those. Waiting costs one subscriber of the process's feed, and a
settled key is told of only where somebody has said that it waits.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from weakref import WeakValueDictionary

from toolhub_service.domain.key import EffectKey, KeyRecord
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import ToolResult
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.codec import decode_key_record, decode_result, encode_key_record, encode_result
from toolhub_service.stores.key_refusals import full, share_is_taken
from toolhub_service.stores.redis_key_scripts import AWAIT, CLAIM, RELEASE, SETTLE
from toolhub_service.stores.redis_link import RedisLink


class RedisKeys:
    """Implements `KeyStore`. Bounded in keys, of which each principal has a share (domain/share.py): when full, it
    refuses new ones and forgets none.

    Bytes are bounded by the server's `maxmemory`, which refuses in the same way: nothing is evicted.
    """

    def __init__(self, link: RedisLink, clock: Clock, *, max_keys: int = 1_000_000) -> None:
        """`max_keys` of all hubs together. The link is started by its owner."""
        self._link = link
        self._clock = clock
        self._max_keys = max_keys
        self._awaited: WeakValueDictionary[bytes, asyncio.Event] = WeakValueDictionary()
        """Kept alive by those who wait."""
        link.listen(b"key", self._heard)

    async def claim(self, key: EffectKey, record: KeyRecord, *, replacing: str = "") -> KeyRecord | None:
        answer: int | list[bytes] | None = await self._link.call(
            CLAIM,
            _name(key),
            self._clock.unix_ms(),
            self._max_keys,
            record.owner,
            replacing,
            encode_key_record(record),
            record.expires_at_unix_ms,
            _owner_of(key),
        )
        if answer is None:
            return None
        if isinstance(answer, int):
            raise full(answer)
        if len(answer) == 1:
            raise share_is_taken(int(answer[0]))
        standing, expires, *result = answer
        return replace(
            decode_key_record(standing),
            expires_at_unix_ms=int(expires),
            result=decode_result(result[0]) if result and result[0] else None,
        )

    async def settle(self, key: EffectKey, owner: str, result: ToolResult, expires_at_unix_ms: int) -> bool:
        now, kept = self._clock.unix_ms(), encode_result(result)
        token = self._link.token()
        return bool(await self._link.call(SETTLE, _name(key), now, owner, kept, expires_at_unix_ms, token))

    async def release(self, key: EffectKey, owner: str) -> bool:
        return bool(await self._link.call(RELEASE, _name(key), self._clock.unix_ms(), owner))

    async def ended(self, key: EffectKey, owner: str, timeout_s: float) -> bool:
        name = _name(key)
        until_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            news = self._awaited.setdefault(name, asyncio.Event())
            left_ms = await self._link.call(AWAIT, name, self._clock.unix_ms(), owner)
            if not left_ms:
                return True
            if not await _heard_of(news, left_ms / 1_000, until_s):
                return False

    def _heard(self, values: tuple[bytes, ...] | None) -> None:
        """After a gap anything may have ended: all look again."""
        for name in tuple(self._awaited) if values is None else values:
            if news := self._awaited.pop(name, None):
                news.set()


async def _heard_of(news: asyncio.Event, left_s: float, until_s: float) -> bool:
    """Wait for news, or for the claim to expire. False when the waiter's own time is over."""
    loop = asyncio.get_running_loop()
    expires_s = loop.time() + left_s
    try:
        async with asyncio.timeout_at(min(expires_s, until_s)):
            await news.wait()
    except TimeoutError:
        return expires_s < until_s
    return True


def _name(key: EffectKey) -> bytes:
    """Of any length and any characters, within its scope: told apart, and bounded."""
    return hashlib.sha256(dumps(list(key))).hexdigest().encode()


def _owner_of(key: EffectKey) -> bytes:
    """The principal, of any length and any characters, told apart."""
    return hashlib.sha256(dumps([key.principal])).hexdigest()[:32].encode()
