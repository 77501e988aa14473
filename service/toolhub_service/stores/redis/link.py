"""A process's one link to Redis: a pipeline for commands, a feed for news of changes.

An acknowledged change is as durable as the server is configured: `appendonly yes` with `appendfsync always` survives a
loss of power, `everysec` a killed server, and may lose the last second when the machine goes down; replicas follow
asynchronously. Tested with Redis 6.2 and 7.0.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import InvalidResponse, NoScriptError, ResponseError

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import StartReason
from toolhub_service.domain.ports import Randomness
from toolhub_service.stores.redis.pipeline import Pipeline, reason_of, stay_connected, unavailable

# One blocking reader for a whole process, which reads the changes of all hubs.
#
# All stores of one prefix publish changes in one stream, `<prefix>feed`. An entry's id is `<number>-0`; the numbers
# come without gaps from the counter `<prefix>feed:count`, in the script that made the change. A missing number tells a
# reader that the stream was trimmed before it came, and a counter behind its own that data was lost. After a gap, and
# after every new connection, listeners must read everything again.

Listener = Callable[[tuple[bytes, ...] | None], None]
"""Takes the fields of one entry, or None after a gap."""
KEPT = 10_000
"""About how many entries the stream holds, and so how far a reader may lag before it has a gap."""
_READ_AT_ONCE = 500
_BLOCK_S = 5.0


class RedisFeed:
    """Listeners by kind. They are called on the loop and must not block."""

    def __init__(
        self, connection: AbstractConnection, prefix: str, randomness: Randomness, *, patience_s: float
    ) -> None:
        self._connection = connection
        self._stream = f"{prefix}feed"
        self._count = f"{prefix}feed:count"
        self._randomness = randomness
        self._patience_s = patience_s
        self._listeners: dict[bytes, list[Listener]] = {}
        self._following: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._last = 0
        self._trouble = ""

    def listen(self, kind: bytes, on_event: Listener) -> Callable[[], None]:
        """Call `on_event` with entries of this kind from now on; return a function that ends that."""
        listeners = self._listeners.setdefault(kind, [])
        listeners.append(on_event)
        return lambda: listeners.remove(on_event)

    async def start(self) -> None:
        """Start reading; on return nothing appended from then on is missed. Raises ToolFailure TOOL_UNAVAILABLE."""
        if self._following is None or self._following.done():
            reading = stay_connected(
                self._connection, self._read, self._broken, self._randomness, connect_within_s=self._patience_s
            )
            self._following = asyncio.create_task(reading, name="redis-feed")
        try:
            async with asyncio.timeout(self._patience_s):
                await self._ready.wait()
        except TimeoutError:
            raise unavailable(self._trouble or "no answer in time") from None

    async def close(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait((following,))
        await self._connection.disconnect(nowait=True)

    def _broken(self, error: Exception) -> None:
        self._trouble = reason_of(error)

    async def _read(self) -> None:
        self._last = await self._counted()
        # A later connection: entries published between the two were not seen.
        if self._ready.is_set():
            self._notify_gap()
        self._ready.set()
        while True:
            batch = await self._next_batch()
            if batch is None:
                await self._detect_data_loss()
            else:
                self._notify(batch)

    async def _next_batch(self) -> list[tuple[bytes, list[bytes]]] | None:
        block_ms = round(_BLOCK_S * 1_000)
        options = ("COUNT", _READ_AT_ONCE, "BLOCK", block_ms, "STREAMS", self._stream, f"{self._last}-0")
        answer = await self._ask("XREAD", *options, within_s=_BLOCK_S + self._patience_s)
        return None if answer is None else answer[0][1]

    async def _detect_data_loss(self) -> None:
        """Detect a counter behind ours: the server has lost data, and counts again from before."""
        counted = await self._counted()
        if counted < self._last:
            self._last = counted
            self._notify_gap()

    async def _counted(self) -> int:
        return int(await self._ask("GET", self._count, within_s=self._patience_s) or 0)

    async def _ask(self, *command: str | int, within_s: float) -> Any:
        async with asyncio.timeout(within_s):
            await self._connection.send_command(*command, check_health=False)
            return await self._connection.read_response(disable_decoding=True)

    def _notify(self, batch: list[tuple[bytes, list[bytes]]]) -> None:
        for entry_id, fields in batch:
            number = int(entry_id.partition(b"-")[0])
            if number != self._last + 1:
                self._notify_gap()
            self._last = number
            if len(fields) < 2:
                raise InvalidResponse
            kind, *values = fields[1::2]
            self._call(self._listeners.get(kind, ()), tuple(values))

    def _notify_gap(self) -> None:
        for listeners in self._listeners.values():
            self._call(listeners, None)

    def _call(self, listeners: list[Listener] | tuple[()], values: tuple[bytes, ...] | None) -> None:
        # In its own callback: a listener that raises must not end the reading.
        loop = asyncio.get_running_loop()
        for on_event in listeners:
            loop.call_soon(on_event, values)


# Lua scripts that Redis runs atomically: for changes that must not interleave, and reads that would need many round
# trips.
#
# KEYS[1] is the prefix of all keys, which scripts append to. (A prefix with a hash tag, `{toolhub}:`, puts all keys
# into one slot.) A script may run twice when its first answer was lost: one that changes something takes a token of the
# call and stores it beside what it wrote, so that the second run answers like the first one. A script that forgets
# records trims their entries from the feed, and older ones with them: no reader lags that far.

PRELUDE = f"""
local P = KEYS[1]
local call = redis.call

local function tell(kind, ...)
  local number = call('INCR', P .. 'feed:count')
  local fields = {{'k', kind}}
  for at, value in ipairs({{...}}) do
    fields[#fields + 1] = at
    fields[#fields + 1] = value
  end
  call('XADD', P .. 'feed', 'MAXLEN', '~', {KEPT}, number .. '-0', unpack(fields))
  return number
end

local function trim(last)
  if last > 0 then
    call('XTRIM', P .. 'feed', 'MINID', (last + 1) .. '-0')
  end
end
"""


class RedisScript:
    """A script and its digest, by which Redis knows it once it has been loaded."""

    __slots__ = ("digest", "text")

    def __init__(self, *parts: str) -> None:
        self.text = "\n".join((PRELUDE, *parts))
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


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

    async def run(self, *command: bytes | str | int) -> Any:
        """Run one command and return its answer. Raises ToolFailure TOOL_UNAVAILABLE."""
        try:
            return await self._pipeline.run(*command)
        except ResponseError as error:
            raise unavailable(reason_of(error)) from None

    async def call(self, script: RedisScript, *arguments: bytes | str | int, once: bool = False) -> Any:
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
                _check(await self.run("INFO"))
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


def _check(info: bytes) -> None:
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
