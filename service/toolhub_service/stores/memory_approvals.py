"""Approvals in the memory of one process: nothing awaits between a look and a change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState, Binding

_OPEN: Final = frozenset({ApprovalState.PENDING, ApprovalState.APPROVED})


class MemoryApprovals:
    """Implements `ApprovalStore`."""

    def __init__(self) -> None:
        self._approvals: dict[str, Approval] = {}
        self._open: dict[Binding, str] = {}
        """The PENDING or APPROVED one of each binding."""
        self._heard: Callable[[Approval | None], None] | None = None

    async def create(self, approval: Approval) -> Approval | None:
        standing = self._open.get(approval.binding)
        if standing is not None:
            return self._approvals[standing]
        self._keep(approval)
        return None

    async def get(self, approval_id: str) -> Approval | None:
        return self._approvals.get(approval_id)

    async def put(self, approval: Approval) -> bool:
        before = self._approvals.get(approval.approval_id)
        if before is None or before.version != approval.version - 1:
            return False
        self._keep(approval)
        return True

    async def page(
        self, where: ApprovalFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Approval], int]:
        matching = sorted(
            (each for each in self._approvals.values() if _matches(where, each)), key=_place, reverse=True
        )
        behind = [each for each in matching if after is None or _place(each) < after]
        return behind[:limit], len(matching)

    async def lapsed(self, now_unix_ms: int, limit: int) -> Sequence[Approval]:
        standing = (self._approvals[approval_id] for approval_id in self._open.values())
        return sorted((each for each in standing if each.expires_at_unix_ms <= now_unix_ms), key=_expiry)[:limit]

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        ended = (each for each in self._approvals.values() if each.state not in _OPEN)
        expired = sorted((each for each in ended if each.expires_at_unix_ms < before_unix_ms), key=_expiry)[:limit]
        for each in expired:
            del self._approvals[each.approval_id]
        return len(expired)

    def listen(self, heard: Callable[[Approval | None], None]) -> None:
        self._heard = heard

    async def start(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _keep(self, approval: Approval) -> None:
        self._approvals[approval.approval_id] = approval
        if approval.state in _OPEN:
            self._open[approval.binding] = approval.approval_id
        elif self._open.get(approval.binding) == approval.approval_id:
            del self._open[approval.binding]
        if self._heard is not None:
            self._heard(approval)


def _place(approval: Approval) -> tuple[int, str]:
    return approval.requested_at_unix_ms, approval.approval_id


def _expiry(approval: Approval) -> tuple[int, str]:
    return approval.expires_at_unix_ms, approval.approval_id


def _matches(where: ApprovalFilter, approval: Approval) -> bool:
    binding = approval.binding
    return (
        (not where.states or approval.state in where.states)
        and where.principal in ("", binding.principal)
        and (not where.tool or fnmatchcase(binding.tool, where.tool))
    )
