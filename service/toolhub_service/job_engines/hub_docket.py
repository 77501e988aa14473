"""Changes to docket in the hub's process: bounded connections, no pickles, and a worker that ends with its session.

docket opens a connection for every command in flight, and redis-py refuses the 101st: here commands wait. docket
unpickles data from Redis, so anyone who can write there could run code in every hub: a delivery needs only its key, so
nothing is pickled or unpickled. A worker that loses Redis drops its messages and then waits until all its tasks have
ended, for hours if need be: `session` ends them. Of docket's internals (0.27) `Dependency.worker_lifecycle` and the
name `cloudpickle` are used.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import docket.execution
import docket.strikelist
from docket import Docket, Execution, Worker
from docket.dependencies import Dependency
from key_value.aio.stores.memory import MemoryStore

# Most commands in flight.
_COMMANDS = 32
# The worker's own loops count as one command and use several connections.
_CONNECTIONS = _COMMANDS + 8
# How long docket remembers how a delivery ended, and so refuses one that a stalled process still holds.
_KEPT = timedelta(minutes=5)
_UNUSED = timedelta(seconds=30)
# Messages checked, from the oldest on.
_SCANNED = 1_000
_SILENCE_S = 60.0


class HubDocket(Docket):
    """A docket whose tasks have a name and a key, no arguments and no result."""

    def __init__(self, name: str, redis_url: str) -> None:
        super().__init__(
            name=name,
            url=_with_connections(redis_url, _CONNECTIONS),
            heartbeat_interval=_UNUSED,
            execution_ttl=_KEPT,
            result_storage=MemoryStore(),
        )
        self.tasks.clear()
        self.session: asyncio.Future[None] | None = None
        """Done when the worker has dropped its messages; None while it has none."""
        self._room = asyncio.Semaphore(_COMMANDS)

    @asynccontextmanager
    async def redis(self) -> AsyncIterator[Any]:
        async with self._room, super().redis() as client:
            yield client

    @asynccontextmanager
    async def in_session(self) -> AsyncIterator[None]:
        session = self.session = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            session.set_result(None)

    async def drop_unreadable(self) -> None:
        """Remove messages that a worker cannot read: it would end at the first, and so would the next worker."""
        async with self.redis() as redis:
            for message_id, message in await redis.xrange(self.stream_key, count=_SCANNED):
                try:
                    await Execution.from_message(self, message, fallback_task=_nothing, sync=False)
                except Exception:  # noqa: BLE001 - whatever it is, nobody can run it
                    await redis.xack(self.stream_key, self.worker_group_name, message_id)
                    await redis.xdel(self.stream_key, message_id)


class Sessions(Dependency[None]):
    """A worker's dependency that maintains `HubDocket.session`."""

    async def __aenter__(self) -> None:
        return None

    @classmethod
    def worker_lifecycle(cls, docket: HubDocket, _: Worker) -> AbstractAsyncContextManager[None]:
        return docket.in_session()


def tame() -> None:
    """Silence docket and disable its pickles, for the whole process. Repeating it changes nothing."""
    setattr(docket.execution, "cloudpickle", _Nothing)  # noqa: B010 - the module's name, not an attribute of ours
    setattr(docket.strikelist, "cloudpickle", _Nothing)  # noqa: B010
    log = logging.getLogger("docket")
    log.setLevel(logging.WARNING)
    log.propagate = False
    if not log.handlers:
        log.addHandler(_Brief())


async def _nothing() -> None:
    """The function of a task with an unknown name."""


class _Nothing(dict[Any, Any]):
    """Replaces pickles: packs to nothing, and unpacks to empty arguments of either kind."""

    def __getitem__(self, _: Any) -> Any:
        return ()

    @staticmethod
    def dumps(_: object) -> bytes:
        return b""

    @staticmethod
    def loads(_: bytes) -> _Nothing:
        return _Nothing()


class _Brief(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self._last_s: dict[object, float] = {}
        self._log = logging.getLogger(__name__)

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith("↩"):
            return  # a task's end, which the runs report themselves
        now_s = time.monotonic()
        if now_s - self._last_s.get(record.msg, -_SILENCE_S) >= _SILENCE_S:
            self._last_s[record.msg] = now_s
            self._log.warning("docket: %s", record.getMessage())


def _with_connections(url: str, count: int) -> str:
    """Return the URL with its own connection limit for the pools made from it."""
    parts = urlsplit(url)
    query = [(name, value) for name, value in parse_qsl(parts.query) if name != "max_connections"]
    return parts._replace(query=urlencode([*query, ("max_connections", str(count))])).geturl()
