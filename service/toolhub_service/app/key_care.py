"""Upkeep of API keys while a hub serves: records when each was last used, and warns before one expires."""

from __future__ import annotations

import asyncio
from typing import Final

from toolhub_service.app.config_files.key_file import KeyUses
from toolhub_service.app.wiring.telemetry import Observing
from toolhub_service.domain.ports import Clock
from toolhub_service.identity.api_keys import KnownKeys, StoredKey

USES_KEPT_EVERY_S: Final = 300
"""How exactly the last use of a key is known after the hub was killed; the file is written at most this often."""
EXPIRES_SOON_S: Final = 14 * 86_400
_WARNED_EVERY_S: Final = 86_400


class KeyCare:
    def __init__(self, keys: KnownKeys, uses: KeyUses, observing: Observing, clock: Clock) -> None:
        self._keys = keys
        self._uses = uses
        self._observing = observing
        self._clock = clock
        self._used: dict[str, int] = {}
        self._kept_s = 0
        self._warned_s: dict[str, int] = {}

    async def check(self) -> None:
        """Note which keys were used, and warn of those that expire soon; call it every few seconds."""
        now_s = self._clock.unix_ms() // 1_000
        self._used |= dict.fromkeys(self._keys.take_used(), now_s)
        # Below 0 the clock was set back; waiting for it would record nothing for as long.
        if self._used and not 0 <= now_s - self._kept_s < USES_KEPT_EVERY_S:
            await self._keep(now_s)
        for key_id, key in self._keys.all().items():
            if expires_soon(key, now_s) and not 0 <= now_s - self._warned_s.get(key_id, 0) < _WARNED_EVERY_S:
                self._warned_s[key_id] = now_s
                self._observing.key_expires(key_id, key.name, key.expires_s or 0)

    async def close(self) -> None:
        """Write the uses not yet written."""
        now_s = self._clock.unix_ms() // 1_000
        self._used |= dict.fromkeys(self._keys.take_used(), now_s)
        if self._used:
            await self._keep(now_s)

    async def _keep(self, now_s: int) -> None:
        used, self._used, self._kept_s = self._used, {}, now_s
        try:
            await asyncio.to_thread(self._uses.add, used, set(self._keys.all()))
        except OSError as unwritable:  # such as a read-only folder: calls still work
            self._observing.key_uses_lost(unwritable)


def expires_soon(key: StoredKey, now_s: float) -> bool:
    """Return whether a key expires within two weeks, or a tenth of a shorter life; False when it was replaced or has
    expired."""
    if key.expires_s is None or key.replaced_by or key.has_expired(now_s):
        return False
    life_s = key.expires_s - (key.created_s if key.created_s is not None else 0)
    # A tenth of its life: a key made for an hour does not expire soon all the time.
    return key.expires_s - now_s <= min(EXPIRES_SOON_S, life_s / 10)
