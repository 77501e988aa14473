"""A process's one link to Redis: a lane for commands, a feed for news of changes, and nothing per caller.

What was answered is as durable as the server is configured: `appendonly yes` with `appendfsync always` survives a loss
of power, `everysec` a killed server, and may lose the last second when the machine goes down; replicas follow
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

from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.ports import Randomness
from toolhub_service.stores.redis_feed import Heard, RedisFeed
from toolhub_service.stores.redis_lane import RedisLane
from toolhub_service.stores.redis_script import RedisScript
from toolhub_service.stores.redis_trouble import reason_of, unavailable


class RedisLink:
    """Shared by all Redis stores of a process. Two connections, however many callers."""

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

        `patience_s`: how long a command waits, outages included. `max_waiting`: commands on their way at once.
        Raises HubFailure INVALID_ARGUMENT for a URL that is none; no message here quotes it.
        """
        self.prefix = prefix
        self._randomness = randomness
        self._lane = RedisLane(_connection(url), randomness, patience_s=patience_s, max_waiting=max_waiting)
        self._feed = RedisFeed(_connection(url), prefix, randomness, patience_s=patience_s)
        self._starting = asyncio.Lock()
        self._is_judged = False

    def key(self, name: str) -> str:
        return self.prefix + name

    def token(self) -> str:
        """By which a script knows its own repetition."""
        return self._randomness.token_hex(8)

    async def run(self, *command: bytes | str | int) -> Any:
        """One command. Raises ToolFailure TOOL_UNAVAILABLE."""
        try:
            return await self._lane.run(*command)
        except ResponseError as error:
            raise unavailable(reason_of(error)) from None

    async def call(self, script: RedisScript, *arguments: bytes | str | int, once: bool = False) -> Any:
        """What the script answers. `once`: it is not sent again when its answer was lost.

        Raises ToolFailure TOOL_UNAVAILABLE.
        """
        try:
            try:
                return await self._lane.run("EVALSHA", script.digest, 1, self.prefix, *arguments, once=once)
            except NoScriptError:
                return await self._lane.run("EVAL", script.text, 1, self.prefix, *arguments, once=once)
        except ResponseError as error:
            raise unavailable(reason_of(error)) from None

    def listen(self, kind: bytes, heard: Heard) -> Callable[[], None]:
        """Tell `heard` of what scripts `tell` under this kind, None after a gap; what is returned ends that."""
        return self._feed.listen(kind, heard)

    async def start(self) -> None:
        """Each store calls it. Raises ToolFailure TOOL_UNAVAILABLE, HubFailure for a server that forgets at will."""
        async with self._starting:
            if not self._is_judged:
                _judge(_facts(await self.run("INFO")))
                self._is_judged = True
            await self._feed.start()

    async def close(self) -> None:
        await self._feed.close()
        await self._lane.close()


def _connection(url: str) -> AbstractConnection:
    try:
        _judge_options(urlsplit(url).query)
        pool = ConnectionPool.from_url(  # only its reading of URLs
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
            HubStatus.INVALID_ARGUMENT,
            "REDIS_URL_INVALID",
            "stores.redis_url is no URL of a Redis: redis://[user:password@]host[:port][/database], rediss:// for TLS "
            "(with options ?ssl_ca_certs=, ssl_certfile=, ssl_keyfile=), unix://path[?db=] for a socket.",
        ) from None


def _judge_options(query: str) -> None:
    """How the link uses its connections is its own to say."""
    if any(name != "db" and not name.startswith("ssl_") for name in parse_qs(query)):
        raise ValueError


def _facts(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def _judge(facts: dict[str, str]) -> None:
    """A server that evicts keys would forget that an effect has happened."""
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and facts.get("maxmemory", "0") != "0":
        raise HubFailure(
            HubStatus.FAILED_PRECONDITION,
            "REDIS_EVICTS",
            f"The Redis of stores.redis_url evicts keys when its memory is full (maxmemory-policy {policy}), and would "
            "forget jobs and idempotency keys at will. Set maxmemory-policy noeviction.",
        )
