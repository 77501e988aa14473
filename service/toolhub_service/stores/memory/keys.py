"""Idempotency keys in the memory of one process: lost with it, and not seen by any other.

A dictionary holds them in the order of the last change, which is the order of expiry except for the length of a call.
So expired keys are at its beginning, and are dropped before a new key is added. No method awaits between a read and a
change, so each is one compare-and-set.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from msgspec.structs import replace

from toolhub_service.domain.key import EffectKey, KeyRecord, full, refuse_key_share
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.shares import may_take
from toolhub_service.schema.canonical_json import dumps

# About the size of a record without the value of its result.
_RECORD_BYTES = 2_048


class _Slot:
    __slots__ = ("ended", "record", "size_bytes")

    def __init__(self, record: KeyRecord) -> None:
        self.record = record
        self.size_bytes = _RECORD_BYTES
        self.ended: asyncio.Event | None = None
        """Made by the first waiter; set when the record's owner no longer runs."""


class MemoryKeys:
    """Implements `KeyStore`. Bounded in keys and in bytes, of which each principal has a share (`may_take`): when
    full, it refuses new keys and forgets none."""

    def __init__(self, clock: Clock, *, max_keys: int = 100_000, max_bytes: int = 256 * 1024 * 1024) -> None:
        """`max_bytes` bounds the size of stored results, measured as canonical JSON."""
        self._clock = clock
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._slots: dict[EffectKey, _Slot] = {}
        self._size_bytes = 0
        self._keys_of: Counter[str] = Counter()
        self._size_bytes_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._slots)

    async def claim(self, key: EffectKey, record: KeyRecord, *, replacing: str = "") -> KeyRecord | None:
        existing = self._live(key)
        if existing is not None:
            if existing.record.owner != replacing or existing.record.result is not None:
                return existing.record
            self._forget(key, existing)
        self._make_room(key.principal)
        self._put(key, _Slot(record))
        return None

    async def settle(self, key: EffectKey, owner: str, result: ToolResult, expires_at_unix_ms: int) -> bool:
        slot = self._find_held_slot(key, owner)
        if slot is None:
            return False
        self._forget(key, slot)
        slot.record = replace(slot.record, result=result, expires_at_unix_ms=expires_at_unix_ms)
        slot.size_bytes += _size_bytes(result)
        self._put(key, slot)
        return True

    async def release(self, key: EffectKey, owner: str) -> bool:
        slot = self._find_held_slot(key, owner)
        if slot is None:
            return False
        self._forget(key, slot)
        return True

    async def wait_for_end(self, key: EffectKey, owner: str, timeout_s: float) -> bool:
        slot = self._find_held_slot(key, owner)
        if slot is None:
            return True
        slot.ended = ended = slot.ended or asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await ended.wait()
        except TimeoutError:
            return self._find_held_slot(key, owner) is None
        return True

    def _live(self, key: EffectKey) -> _Slot | None:
        slot = self._slots.get(key)
        if slot is not None and slot.record.expires_at_unix_ms <= self._clock.unix_ms():
            self._forget(key, slot)
            return None
        return slot

    def _find_held_slot(self, key: EffectKey, owner: str) -> _Slot | None:
        """Return the slot in which this owner's call still runs."""
        slot = self._live(key)
        return slot if slot is not None and slot.record.owner == owner and slot.record.result is None else None

    def _put(self, key: EffectKey, slot: _Slot) -> None:
        self._slots[key] = slot
        self._count(key, 1, slot.size_bytes)

    def _forget(self, key: EffectKey, slot: _Slot) -> None:
        del self._slots[key]
        self._count(key, -1, -slot.size_bytes)
        if slot.ended is not None:
            slot.ended.set()
            slot.ended = None

    def _count(self, key: EffectKey, keys: int, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        self._keys_of[key.principal] += keys
        self._size_bytes_of[key.principal] += size_bytes
        if not self._keys_of[key.principal]:
            del self._keys_of[key.principal], self._size_bytes_of[key.principal]

    def _make_room(self, principal: str) -> None:
        now_unix_ms = self._clock.unix_ms()
        while self._slots:
            key, slot = next(iter(self._slots.items()))
            if slot.record.expires_at_unix_ms > now_unix_ms:
                break
            self._forget(key, slot)
        oldest = next(iter(self._slots.values()), None)
        room_in_ms = oldest.record.expires_at_unix_ms - now_unix_ms if oldest else 0
        if len(self._slots) >= self._max_keys or self._size_bytes >= self._max_bytes:
            raise full(room_in_ms)
        has_keys = may_take(self._keys_of[principal], len(self._slots), self._max_keys)
        if not has_keys or not may_take(self._size_bytes_of[principal], self._size_bytes, self._max_bytes):
            raise refuse_key_share(room_in_ms)


def _size_bytes(result: ToolResult) -> int:
    return len(dumps(result.value)) if result.ok else len(repr(result.error))
