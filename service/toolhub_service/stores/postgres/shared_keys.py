"""Keys that all hubs of one schema seal with: rows of `shared_keys`, written once and never changed by a hub."""

from __future__ import annotations

from typing import Final

from toolhub_service.stores.postgres.link import PostgresLink

_TABLE: Final = 'CREATE TABLE IF NOT EXISTS shared_keys (name text COLLATE "C" PRIMARY KEY, key bytea NOT NULL)'
_OFFER: Final = "INSERT INTO shared_keys (name, key) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING"
_READ: Final = "SELECT key FROM shared_keys WHERE name = %s"


class PostgresSharedKeys:
    """Implements `SharedKeys`. The link is started by its owner, after this is made."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link
        # Absent in a version before, whose hubs then start beside this one.
        link.declare([_TABLE])

    async def agree(self, name: str, own: bytes) -> bytes:
        # Two statements: one with both would not see the row that another hub commits while it runs.
        await self._link.execute(_OFFER, (name, own))
        ((key,),) = await self._link.rows(_READ, name)
        return bytes(key)
