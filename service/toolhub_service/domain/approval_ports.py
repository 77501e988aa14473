"""The port of approvals: where they are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from toolhub_service.domain.approval import Approval, ApprovalFilter
from toolhub_service.domain.call import Call, PlannedCall
from toolhub_service.domain.question import Question
from toolhub_service.domain.verdict import Verdict


class ApprovalStore(Protocol):
    """Approvals, whoever else shares the store; changes are kept by compare-and-set on `version`.

    What a method has returned from is durable. Each raises ToolFailure TOOL_UNAVAILABLE when it cannot be reached.
    """

    async def create(self, approval: Approval) -> Approval | None:
        """Keep a new one. None when that was done, else the PENDING or APPROVED one that has the same binding."""
        ...

    async def get(self, approval_id: str) -> Approval | None: ...

    async def put(self, approval: Approval) -> bool:
        """Replace the record whose version is one less. False when another change came first, or it is gone."""
        ...

    async def page(
        self, where: ApprovalFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Approval], int]:
        """In (requested_at_unix_ms, approval_id) order, newest first, strictly after the cursor, and how many match."""
        ...

    async def lapsed(self, now_unix_ms: int, limit: int) -> Sequence[Approval]:
        """PENDING and APPROVED ones whose time is over, oldest first."""
        ...

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        """Remove those that ended (REJECTED, EXPIRED, USED) and expired before then; how many were removed."""
        ...

    def listen(self, heard: Callable[[Approval | None], None]) -> None:
        """Tell `heard` of every change, by this process or any other; None after a gap. As `JobStore.listen`."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class ApprovalGate(Protocol):
    """What the steps ask of approvals."""

    async def settle(self, planned: PlannedCall, verdict: Verdict) -> Approval | None:
        """The approval that covers exactly this call, or answers what it asked. Step 4, when the verdict is
        REQUIRE_APPROVAL, or the call that policy allows names an approval; None: it needs none.

        Raises ToolFailure APPROVAL_REQUIRED, a person being asked by then, or APPROVAL_REJECTED.
        """
        ...

    async def pose(
        self, planned: PlannedCall, verdict: Verdict, question: Question, earlier: Approval | None
    ) -> NoReturn:
        """Step 6 has ended with a question: a person is asked. `earlier`: the approval that this run has used up.

        Raises ToolFailure APPROVAL_REQUIRED, or UPSTREAM_ERROR for what cannot be asked.
        """
        ...

    async def use(self, approval: Approval, call: Call) -> None:
        """Use it up, durably, before the effect. Raises ToolFailure when another call was faster."""
        ...
