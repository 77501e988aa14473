"""Group commit: what many callers want written goes out in one statement; while it is under way the next group gathers.

A statement is a transaction, so each group is kept or refused as one; of two changes to the same thing only the first
is in a group, the second goes with the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from psycopg import AsyncConnection

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.stores.postgres_link import PostgresLink

W = TypeVar("W")
A = TypeVar("A")
_GROUP: Final = 500
_MAX_WAITING: Final = 20_000


class Lane(Generic[W, A]):
    """`write` answers each of a group, in their order; an exception among the answers is raised for that caller."""

    def __init__(
        self,
        link: PostgresLink,
        write: Callable[[AsyncConnection, Sequence[W]], Awaitable[Sequence[A | Exception]]],
        *,
        key: Callable[[W], object],
        repeatable: bool,
    ) -> None:
        """`key`: what two changes have in common that must not be written at once. `repeatable`: see the link's run."""
        self._link = link
        self._write = write
        self._key = key
        self._repeatable = repeatable
        self._waiting: list[tuple[W, asyncio.Future[A]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def put(self, wanted: W) -> A:
        """Raises ToolFailure TOOL_UNAVAILABLE, RATE_LIMITED when too much waits; durable when it returns."""
        if len(self._waiting) >= _MAX_WAITING:
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
