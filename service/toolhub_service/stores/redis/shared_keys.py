"""Keys that all hubs of one Redis seal with: `shared_key:<name>`, written once and never changed by a hub."""

from __future__ import annotations

from toolhub_service.stores.redis.link import RedisLink


class RedisSharedKeys:
    """Implements `SharedKeys`. The link is started by its owner."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def agree(self, name: str, own: bytes) -> bytes:
        key = self._link.key(f"shared_key:{name}")
        # Two commands, because SET with both NX and GET needs Redis 7; nothing removes the key in between.
        await self._link.run("SET", key, own, "NX")
        return bytes(await self._link.run("GET", key))
