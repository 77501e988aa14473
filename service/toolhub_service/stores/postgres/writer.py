"""Batches the writes of many callers to PostgreSQL: while one group is written the next one collects.

A group is one transaction, so it is committed or refused as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from psycopg import AsyncConnection

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.stores.postgres.link import PostgresLink

W = TypeVar("W")
A = TypeVar("A")
_GROUP: Final = 500
_MAX_QUEUED: Final = 20_000


class BatchWriter(Generic[W, A]):
    """Writes groups by `write`, which returns an answer for each item, in order; an exception is raised for its caller.

    Of two changes to the same thing only the first joins a group; the second goes with the next.
    """

    def __init__(
        self,
        link: PostgresLink,
        write: Callable[[AsyncConnection, Sequence[W]], Awaitable[Sequence[A | Exception]]],
        *,
        key: Callable[[W], object],
        repeatable: bool,
    ) -> None:
        """`key` is equal for two changes that must not be in one group. `repeatable`: see `PostgresLink.run`."""
        self._link = link
        self._write = write
        self._key = key
        self._repeatable = repeatable
        self._waiting: list[tuple[W, asyncio.Future[A]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def put(self, wanted: W) -> A:
        """Write the item durably. Raises ToolFailure TOOL_UNAVAILABLE, or RATE_LIMITED when too much waits."""
        if len(self._waiting) >= _MAX_QUEUED:
            raise refuse(ErrorKind.RATE_LIMITED, "The hub's store is overloaded. Try again later.", retry_after_s=1.0)
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, answer))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        return await answer

    async def close(self) -> None:
        """Return when what waits has been written or refused."""
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def _write_all(self) -> None:
        try:
            while group := self._next_group():
                await self._write_group(group)
        finally:
            self._writer = None

    def _next_group(self) -> list[tuple[W, asyncio.Future[A]]]:
        group: dict[object, tuple[W, asyncio.Future[A]]] = {}
        rest: list[tuple[W, asyncio.Future[A]]] = []
        for each in self._waiting:
            key = self._key(each[0])
            if len(group) < _GROUP and key not in group and not each[1].done():
                group[key] = each
            elif not each[1].done():
                rest.append(each)
        self._waiting = rest
        return list(group.values())

    async def _write_group(self, group: Sequence[tuple[W, asyncio.Future[A]]]) -> None:
        try:
            answers: Sequence[A | Exception] = await self._link.run(
                lambda connection: self._write(connection, [wanted for wanted, _ in group]), repeatable=self._repeatable
            )
        except ToolFailure as failure:
            answers = [ToolFailure(failure.error) for _ in group]
        except Exception as defect:  # noqa: BLE001 — raised where it is awaited: callers must not wait for ever
            answers = [defect] * len(group)
        for (_, future), answer in zip(group, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


class _Change(NamedTuple):
    statement: str
    parameters: Sequence[Any] | Mapping[str, Any]


class TableWriter:
    """Changes one table by one statement a change; groups of all writers are committed one after the other.

    So each statement sees all earlier changes, and may decide about several rows by what it finds.
    """

    def __init__(self, link: PostgresLink, table: str, *, is_durable: bool = True) -> None:
        """`is_durable` False: a crash of the server may lose the writes of the last second."""
        # The lock has its own statement: a statement sees what was committed before it began, not before it got the
        # lock.
        self._lock = f"SELECT pg_advisory_xact_lock(hashtext('toolhub {table}'), hashtext(current_schema()))"
        if not is_durable:
            self._lock += ", set_config('synchronous_commit', 'off', true)"
        self._group: BatchWriter[_Change, list[Any]] = BatchWriter(link, self._write, key=id, repeatable=False)

    async def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
        """Return the statement's rows. Raises like `BatchWriter.put`."""
        return await self._group.put(_Change(statement, parameters))

    async def close(self) -> None:
        await self._group.close()

    async def _write(self, connection: AsyncConnection, changes: Sequence[_Change]) -> list[list[Any]]:
        # A pipeline sends everything at once: a hub that freezes in the middle of its group would block all other
        # writers.
        async with connection.pipeline(), connection.transaction():
            await connection.execute(self._lock.encode())
            cursors = [
                await connection.execute(change.statement.encode(), change.parameters, binary=True)
                for change in changes
            ]
        return [await cursor.fetchall() for cursor in cursors]
