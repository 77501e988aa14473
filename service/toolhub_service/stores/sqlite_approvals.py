"""Approvals in the hub's own file, shared by its processes. Each change is logged beside them, for those who watch."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import orjson

from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState
from toolhub_service.stores.codec import decode_approval, encode_approval, readable
from toolhub_service.stores.sqlite_file import SqliteFile
from toolhub_service.stores.sqlite_file_feed import Feed, last_row
from toolhub_service.stores.sqlite_file_pages import Where
from toolhub_service.stores.sqlite_file_writer import Change

_OPEN: Final = frozenset({ApprovalState.PENDING, ApprovalState.APPROVED})
_RECORDS: Final = "SELECT record FROM approvals"


class SqliteApprovals:
    """Implements `ApprovalStore`. The file is started before and closed after it."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._heard: Callable[[Approval | None], None] | None = None
        self._feed: Feed[Approval | None] | None = None
        self._creating: Change[Approval, Approval | None] = Change(_create_all, self._created)
        self._putting: Change[Approval, bool] = Change(_put_all, self._put_done)

    async def create(self, approval: Approval) -> Approval | None:
        return await self._file.change(self._creating, approval)

    async def get(self, approval_id: str) -> Approval | None:
        found = await self._file.read(partial(_read, where="WHERE approval_id = ?", parameters=(approval_id,)))
        return found[0] if found else None

    async def put(self, approval: Approval) -> bool:
        return await self._file.change(self._putting, approval)

    async def page(
        self, where: ApprovalFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Approval], int]:
        return await self._file.read(partial(_page, where=where, after=after, limit=limit))

    async def lapsed(self, now_unix_ms: int, limit: int) -> Sequence[Approval]:
        where = "WHERE is_open = 1 AND expires_at_unix_ms <= ? ORDER BY expires_at_unix_ms, approval_id LIMIT ?"
        return await self._file.read(partial(_read_many, where=where, parameters=(now_unix_ms, limit)))

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        return await self._file.change(_FORGETTING, (before_unix_ms, limit))

    def listen(self, heard: Callable[[Approval | None], None]) -> None:
        self._heard = heard

    async def start(self) -> None:
        if self._heard is not None:
            after_row = await self._file.read(last_row("approval_changes"))
            self._feed = Feed(
                "approval_changes", "record", _approval_of, gap=None, heard=self._heard, after_row=after_row
            )
            self._file.watch(self._feed)

    async def close(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            self._file.unwatch(feed)

    def _created(self, wanted: Sequence[Approval], standing: Sequence[Approval | None]) -> None:
        self._told(each for each, other in zip(wanted, standing, strict=True) if other is None)

    def _put_done(self, wanted: Sequence[Approval], done: Sequence[bool]) -> None:
        self._told(each for each, was_put in zip(wanted, done, strict=True) if was_put)

    def _told(self, approvals: Any) -> None:
        if self._feed is not None:
            for approval in approvals:
                self._feed.added(approval)


def _create_all(connection: sqlite3.Connection, wanted: Sequence[Approval]) -> list[Approval | None]:
    return [_create(connection, approval) for approval in wanted]


def _create(connection: sqlite3.Connection, approval: Approval) -> Approval | None:
    standing = _read(connection, "WHERE binding = ? AND is_open = 1", (_binding(approval),))
    if standing:
        return standing[0]
    binding, record = approval.binding, encode_approval(approval)
    connection.execute(
        "INSERT INTO approvals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            approval.approval_id,
            approval.version,
            approval.state.value,
            approval.state in _OPEN,
            _binding(approval),
            binding.principal,
            binding.tool,
            approval.requested_at_unix_ms,
            approval.expires_at_unix_ms,
            record,
        ),
    )
    _log(connection, approval.approval_id, record)
    return None


def _put_all(connection: sqlite3.Connection, wanted: Sequence[Approval]) -> list[bool]:
    return [_put(connection, approval) for approval in wanted]


def _put(connection: sqlite3.Connection, approval: Approval) -> bool:
    state, record = approval.state, encode_approval(approval)
    done = connection.execute(
        "UPDATE approvals SET version = version + 1, state = ?, is_open = ?, expires_at_unix_ms = ?, record = ? "
        "WHERE approval_id = ? AND version = ?",
        (state.value, state in _OPEN, approval.expires_at_unix_ms, record, approval.approval_id, approval.version - 1),
    )
    if done.rowcount:
        _log(connection, approval.approval_id, record)
    return bool(done.rowcount)


def _log(connection: sqlite3.Connection, approval_id: str, record: bytes) -> None:
    connection.execute("INSERT INTO approval_changes (approval_id, record) VALUES (?, ?)", (approval_id, record))


def _forget_all(connection: sqlite3.Connection, bounds: Sequence[tuple[int, int]]) -> list[int]:
    return [_forget(connection, before_unix_ms, limit) for before_unix_ms, limit in bounds]


def _forget(connection: sqlite3.Connection, before_unix_ms: int, limit: int) -> int:
    expired = connection.execute(
        "SELECT approval_id FROM approvals WHERE is_open = 0 AND expires_at_unix_ms < ? "
        "ORDER BY expires_at_unix_ms, approval_id LIMIT ?",
        (before_unix_ms, limit),
    ).fetchall()
    ids = orjson.dumps([approval_id for (approval_id,) in expired]).decode()
    for table in ("approval_changes", "approvals"):
        connection.execute(f"DELETE FROM {table} WHERE approval_id IN (SELECT value FROM json_each(?))", (ids,))  # noqa: S608 — fixed names
    return len(expired)


def _page(
    connection: sqlite3.Connection, where: ApprovalFilter, after: tuple[int, str] | None, limit: int
) -> tuple[list[Approval], int]:
    terms = Where()
    terms.among("state", (state.value for state in where.states))
    terms.equals("principal", where.principal)
    terms.like("tool", where.tool)
    order = ("requested_at_unix_ms", "approval_id")
    rows, count = terms.page(connection, _RECORDS, "approvals", order, after, limit)
    return readable(rows, _approval_of), count


def _read(connection: sqlite3.Connection, where: str, parameters: Sequence[Any]) -> list[Approval]:
    return [decode_approval(record) for (record,) in connection.execute(f"{_RECORDS} {where}", parameters)]


def _read_many(connection: sqlite3.Connection, where: str, parameters: Sequence[Any]) -> list[Approval]:
    return readable(connection.execute(f"{_RECORDS} {where}", parameters), _approval_of)


def _approval_of(columns: Sequence[Any]) -> Approval:
    return decode_approval(columns[0])


def _binding(approval: Approval) -> str:
    """One text for one binding."""
    return json.dumps(approval.binding.parts)


_FORGETTING: Change[tuple[int, int], int] = Change(_forget_all)
