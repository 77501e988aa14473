"""Approvals in Redis, shared by all hubs with the same prefix: see redis_approval_scripts for the keys."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from toolhub_service.domain.approval import Approval, ApprovalFilter, Binding
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.codec import UnreadableRecord, decode_approval, encode_approval, readable
from toolhub_service.stores.redis_approval_scripts import CREATE, FORGET, LAPSED, PUT, READ
from toolhub_service.stores.redis_link import RedisLink
from toolhub_service.stores.redis_pages import Facts, RedisPages


class RedisApprovals:
    """Implements `ApprovalStore`."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._pages = RedisPages(link, "approval:", ("principal", "state", "tool"))
        self._unlisten: Callable[[], None] | None = None

    async def create(self, approval: Approval) -> Approval | None:
        binding = approval.binding
        found_by = (approval.requested_at_unix_ms, binding.principal, binding.tool)
        standing = await self._link.call(CREATE, *self._change(approval), *found_by)
        return decode_approval(standing) if standing else None

    async def get(self, approval_id: str) -> Approval | None:
        (record,) = await self._link.call(READ, approval_id)
        return decode_approval(record) if record else None

    async def put(self, approval: Approval) -> bool:
        return bool(await self._link.call(PUT, *self._change(approval)))

    async def page(
        self, where: ApprovalFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Approval], int]:
        lists, matches = _search(where)
        ids, count = await self._pages.page(lists, matches, after=after, limit=limit)
        return _approvals_of(await self._link.call(READ, *ids) if ids else ()), count

    async def lapsed(self, now_unix_ms: int, limit: int) -> Sequence[Approval]:
        return _approvals_of(await self._link.call(LAPSED, now_unix_ms, limit))

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        return int(await self._link.call(FORGET, before_unix_ms, limit))

    def listen(self, heard: Callable[[Approval | None], None]) -> None:
        self._unlisten = self._link.listen(b"approval", lambda values: heard(_news_of(values)))

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        """Listening ends; the link is closed by its owner."""
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None

    def _change(self, approval: Approval) -> tuple[bytes | str | int, ...]:
        """What every change writes, in the scripts' order."""
        return (
            approval.approval_id,
            self._link.token(),
            approval.version,
            approval.state.value,
            approval.expires_at_unix_ms,
            _digest(approval.binding),
            encode_approval(approval),
        )


def _approvals_of(records: Sequence[bytes | None]) -> list[Approval]:
    return readable([record for record in records if record is not None], decode_approval)


def _news_of(values: tuple[bytes, ...] | None) -> Approval | None:
    """None where something was missed, or cannot be read: whoever is concerned looks at the store itself."""
    try:
        return decode_approval(values[0]) if values else None
    except UnreadableRecord:
        return None


def _digest(binding: Binding) -> str:
    return hashlib.sha256(dumps(binding.parts)).hexdigest()


def _search(where: ApprovalFilter) -> tuple[list[str], Callable[[Facts], bool] | None]:
    """The list that holds every match, and what judges; None where the list judges by itself."""
    lists = [f"approvals:of:{where.principal}" if where.principal else "approvals"]
    if not where.states and not where.tool:
        return lists, None
    states = {state.value for state in where.states}

    def matches(facts: Facts) -> bool:
        _, state, tool = facts
        return (not states or state in states) and (not where.tool or fnmatchcase(tool, where.tool))

    return lists, matches
