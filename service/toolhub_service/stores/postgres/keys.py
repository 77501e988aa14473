"""Idempotency keys in PostgreSQL, shared by all hubs of one schema.

Each change is one statement under the table's lock, and so a compare-and-set; a claim is on disk before its call may
run. Expiry is by the server's clock. A trigger counts keys and bytes. Waiting costs one query and no polling: the end
of a key is announced only if a waiter is registered.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Final
from weakref import WeakValueDictionary

from msgspec.structs import replace

from toolhub_service.domain.key import EffectKey, KeyRecord, full, refuse_key_share
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import ToolResult
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.codec import decode_key_record, decode_result, encode_key_record, encode_result
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.records import SERVER_UNIX_MS
from toolhub_service.stores.postgres.writer import TableWriter

# About the size of a record without its result.
_RECORD_BYTES: Final = 2_048
_NOW: Final = f"coalesce(%(now)s::bigint, {SERVER_UNIX_MS})"
_NOTIFY: Final = "CASE WHEN is_awaited THEN pg_notify(%(channel)s, encode(key_digest, 'hex')) END"
_HELD: Final = f"key_digest = %(key)s AND owner = %(owner)s AND result IS NULL AND expires_at_unix_ms > {_NOW}"

# More at once than a claim inserts, so that expired keys do not accumulate.
_EXPIRE: Final = f"""
DELETE FROM keys WHERE key_digest IN (
    SELECT key_digest FROM keys WHERE expires_at_unix_ms <= {_NOW} ORDER BY expires_at_unix_ms LIMIT 100)
RETURNING {_NOTIFY}"""  # noqa: S608 — fixed text
_CLAIM: Final = f"""
WITH existing AS MATERIALIZED (
    SELECT *, owner = %(replacing)s AND result IS NULL AS is_replaced
    FROM keys WHERE key_digest = %(key)s AND expires_at_unix_ms > {_NOW}),
taken AS MATERIALIZED (
    SELECT taken.keys, taken.size_bytes, coalesce(own.keys, 0) AS own_keys, coalesce(own.size_bytes, 0) AS own_bytes
    FROM (SELECT coalesce(sum(keys), 0)::bigint AS keys, coalesce(sum(size_bytes), 0)::bigint AS size_bytes
        FROM key_usage WHERE principal_digest = '') AS taken
    LEFT JOIN key_usage AS own ON own.principal_digest = %(principal)s),
claimed AS (
    INSERT INTO keys (key_digest, principal_digest, owner, expires_at_unix_ms, size_bytes, record)
    SELECT %(key)s, %(principal)s, %(owner)s, %(expires)s, %(size)s, %(record)s FROM taken LEFT JOIN existing ON TRUE
    WHERE coalesce(is_replaced, own_keys < %(max_keys)s - keys AND own_bytes < %(max_bytes)s - taken.size_bytes)
    ON CONFLICT (key_digest) DO UPDATE SET owner = excluded.owner, expires_at_unix_ms = excluded.expires_at_unix_ms,
        size_bytes = excluded.size_bytes, is_awaited = false, record = excluded.record, result = NULL
    RETURNING 1)
SELECT EXISTS (SELECT FROM claimed), existing.record, existing.expires_at_unix_ms, existing.result,
    keys >= %(max_keys)s OR taken.size_bytes >= %(max_bytes)s,
    (SELECT min(expires_at_unix_ms) FROM keys) - {_NOW}, CASE WHEN is_replaced THEN {_NOTIFY} END
FROM taken LEFT JOIN existing ON TRUE"""  # noqa: S608 — fixed text
_SETTLE: Final = f"""
UPDATE keys SET result = %(result)s, expires_at_unix_ms = %(expires)s, size_bytes = %(size)s WHERE {_HELD}
RETURNING {_NOTIFY}"""  # noqa: S608 — fixed text
_RELEASE: Final = f"DELETE FROM keys WHERE {_HELD} RETURNING {_NOTIFY}"  # noqa: S608 — fixed text
_AWAIT: Final = f"UPDATE keys SET is_awaited = true WHERE {_HELD} RETURNING expires_at_unix_ms - {_NOW}"  # noqa: S608 — fixed text


class PostgresKeys:
    """Implements `KeyStore`.

    Bounded in keys and bytes, with a share for each principal: when full, it refuses new keys.

    It never drops one before it expires. The link is started by its owner.
    """

    def __init__(
        self,
        link: PostgresLink,
        clock: Clock | None = None,
        *,
        max_keys: int = 1_000_000,
        max_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        """The bounds apply to all hubs together. `clock` None: the server's clock."""
        self._link = link
        self._clock = clock
        self._max = {"max_keys": max_keys, "max_bytes": max_bytes}
        self._writer = TableWriter(link, "keys")
        # By the digest in hex; entries live as long as their waiters.
        self._awaited: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        link.listen("keys", self._on_event)

    async def claim(self, key: EffectKey, record: KeyRecord, *, replacing: str = "") -> KeyRecord | None:
        terms = {
            **self._parameters_of(key, record.owner),
            **self._max,
            "principal": hashlib.sha256(dumps([key.principal])).digest(),
            "expires": record.expires_at_unix_ms,
            "size": _RECORD_BYTES,
            "record": encode_key_record(record),
            "replacing": replacing,
        }
        # Both statements are in one group, one after the other.
        answers = await asyncio.gather(self._writer.run(_EXPIRE, terms), self._writer.run(_CLAIM, terms))
        is_claimed, existing, expires_at_unix_ms, result, is_full, room_in_ms, _ = answers[1][0]
        if is_claimed:
            return None
        if existing is None:
            raise full(room_in_ms or 0) if is_full else refuse_key_share(room_in_ms or 0)
        return replace(
            decode_key_record(existing),
            expires_at_unix_ms=expires_at_unix_ms,
            result=None if result is None else decode_result(result),
        )

    async def settle(self, key: EffectKey, owner: str, result: ToolResult, expires_at_unix_ms: int) -> bool:
        kept = encode_result(result)
        terms = {"result": kept, "expires": expires_at_unix_ms, "size": _RECORD_BYTES + len(kept)}
        return bool(await self._writer.run(_SETTLE, self._parameters_of(key, owner) | terms))

    async def release(self, key: EffectKey, owner: str) -> bool:
        return bool(await self._writer.run(_RELEASE, self._parameters_of(key, owner)))

    async def wait_for_end(self, key: EffectKey, owner: str, timeout_s: float) -> bool:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        name = _digest(key).hex()
        while True:
            news = self._awaited.setdefault(name, asyncio.Event())
            _, rows = await self._link.execute(_AWAIT, self._parameters_of(key, owner))
            if not rows:
                return True
            expires_s = loop.time() + rows[0][0] / 1_000
            try:
                async with asyncio.timeout_at(min(expires_s, until_s)):
                    await news.wait()
            except TimeoutError:
                if until_s <= expires_s:
                    return False

    def _parameters_of(self, key: EffectKey, owner: str) -> dict[str, Any]:
        now_unix_ms = None if self._clock is None else self._clock.unix_ms()
        return {"key": _digest(key), "owner": owner, "now": now_unix_ms, "channel": self._link.channel("keys")}

    def _on_event(self, payload: str | None) -> None:
        """Wake the key's waiters; all of them after a gap, when any key may have ended."""
        for name in tuple(self._awaited) if payload is None else (payload,):
            if news := self._awaited.pop(name, None):
                news.set()


def _digest(key: EffectKey) -> bytes:
    """Return a bounded key, distinct for any length and any characters, within its scope."""
    return hashlib.sha256(dumps(list(key))).digest()
