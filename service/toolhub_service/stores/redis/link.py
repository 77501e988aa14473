"""A process's one link to Redis: a pipeline for commands, a feed for news of changes.

An acknowledged change is as durable as the server is configured: `appendonly yes` with `appendfsync always` survives a
loss of power, `everysec` a killed server, and may lose the last second when the machine goes down; replicas follow
asynchronously. Tested with Redis 6.2 and 7.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ResponseError

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import StartReason
from toolhub_service.domain.ports import Randomness
from toolhub_service.stores.redis.feed import Listener, RedisFeed
from toolhub_service.stores.redis.pipeline import Pipeline
from toolhub_service.stores.redis.reconnection import reason_of, unavailable
from toolhub_service.stores.redis.script import LuaText, Value


class RedisLink:
    """Shared by all Redis stores of a process. It has two connections, however many callers there are."""

    def __init__(
        self,
        url: str,
        randomness: Randomness,
        *,
        prefix: str = "toolhub:",
        patience_s: float = 5.0,
        max_waiting: int = 20_000,
    ) -> None:
        """`url`: redis://, rediss:// or unix://, with user, password and database where there are any.

        `patience_s`: the timeout of a command, outages included. `max_waiting`: most commands in flight. Raises
        HubFailure INVALID_ARGUMENT for an invalid URL; no message here quotes it.
        """
        self.prefix = prefix
        self._randomness = randomness
        self._pipeline = Pipeline(_connection(url), randomness, patience_s=patience_s, max_waiting=max_waiting)
        self._feed = RedisFeed(_connection(url), prefix, randomness, patience_s=patience_s)
        self._starting = asyncio.Lock()
        self._is_checked = False

    def key(self, name: str) -> str:
        return self.prefix + name

    def token(self) -> str:
        """Return a token by which a script recognises its own repetition."""
        return self._randomness.token_hex(8)

    async def run(self, *command: Value) -> Any:
        """Run one command and return its answer. Raises ToolFailure TOOL_UNAVAILABLE."""
        try:
            return await self._pipeline.run(*command)
        except ResponseError as error:
            raise unavailable(reason_of(error)) from None

    async def call(self, script: LuaText, *arguments: Value, once: bool = False) -> Any:
        """Return the script's answer. Raises ToolFailure TOOL_UNAVAILABLE.

        `once`: do not send it again when its answer was lost.
        """
        try:
            try:
                return await self._pipeline.run("EVALSHA", script.digest, 1, self.prefix, *arguments, once=once)
            except NoScriptError:
                return await self._pipeline.run("EVAL", script.text, 1, self.prefix, *arguments, once=once)
        except ResponseError as error:
            raise unavailable(reason_of(error)) from None

    def listen(self, kind: bytes, on_event: Listener) -> Callable[[], None]:
        """Call `on_event` with what scripts `tell` under this kind, None after a gap; return a function that ends
        that."""
        return self._feed.listen(kind, on_event)

    async def start(self) -> None:
        """Connect; each store calls it.

        Raises ToolFailure TOOL_UNAVAILABLE, and HubFailure for a server that evicts keys.
        """
        async with self._starting:
            if not self._is_checked:
                _check_eviction(await self.run("INFO"))
                self._is_checked = True
            await self._feed.start()

    async def close(self) -> None:
        await self._feed.close()
        await self._pipeline.close()


def _connection(url: str) -> AbstractConnection:
    try:
        _check_options(urlsplit(url).query)
        pool = ConnectionPool.from_url(  # only to parse the URL
            url,
            protocol=2,
            socket_timeout=None,
            socket_connect_timeout=None,
            health_check_interval=0,
            retry=Retry(NoBackoff(), 0),
        )
        return cast("AbstractConnection", pool.make_connection())  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        raise HubFailure(
            StartReason.REDIS_URL_INVALID,
            "stores.redis_url is no URL of a Redis: redis://[user:password@]host[:port][/database], rediss:// for TLS "
            "(with options ?ssl_ca_certs=, ssl_certfile=, ssl_keyfile=), unix://path[?db=] for a socket.",
        ) from None


def _check_options(query: str) -> None:
    """Refuse options of the URL that change how the link uses its connections."""
    if any(name != "db" and not name.startswith("ssl_") for name in parse_qs(query)):
        raise ValueError


def _check_eviction(info: bytes) -> None:
    """Refuse a server that evicts keys: it would forget that an effect has happened."""
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    facts = {name: value for name, colon, value in lines if colon}
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and facts.get("maxmemory", "0") != "0":
        raise HubFailure(
            StartReason.REDIS_EVICTS,
            f"The Redis of stores.redis_url evicts keys when its memory is full (maxmemory-policy {policy}), and would "
            "forget jobs and idempotency keys at will. Set maxmemory-policy noeviction.",
        )
