"""Counts that all hubs spend together, where the hubs share a store: rate, quota and the calls of a request.

A hub that shares nothing never comes here. One that does asks the store once a call, and only for calls that have such
a limit: all of them in one question, taken whole or not at all. A call that is not to run now (a dry run, a
submission) is only looked at, so that it has nothing to give back. A store that does not answer refuses the call:
nobody else knows what has been spent.
"""

from __future__ import annotations

import asyncio

from toolhub_service.budget.limits import limited
from toolhub_service.budget.quota import RequestKey, all_used
from toolhub_service.domain.call import Call, Mode
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.shared_counts import Refused, SharedCounts, Taken
from toolhub_service.domain.verdict import Limit

REQUEST_WINDOW_S = 86_400.0
"""How long the calls of a request are counted, from its first one: as long as a budget may last."""


class Due:
    """What one call owes to the counts of all hubs. `pay` once, then at most `give_back`."""

    __slots__ = ("_counts", "_limits", "_max_tool_calls", "_spend", "_taken")

    def __init__(
        self, counts: SharedCounts, limits: tuple[Limit, ...], max_tool_calls: int | None, spend: bool
    ) -> None:
        """`max_tool_calls`: set when the first limit is the request's."""
        self._counts = counts
        self._limits = limits
        self._max_tool_calls = max_tool_calls
        self._spend = spend
        self._taken = Taken()

    async def pay(self, timeout_s: float) -> None:
        """Raises ToolFailure RATE_LIMITED, BUDGET_EXCEEDED or TOOL_UNAVAILABLE; nothing is owed then."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._counts.take(self._limits, spend=self._spend)
        except TimeoutError:
            raise refuse(
                ErrorKind.TOOL_UNAVAILABLE,
                "What all hubs have spent of this call's limits could not be learned before its deadline, so nothing "
                "happened: call again with more time.",
            ) from None
        if isinstance(answer, Taken):
            self._taken = answer
        elif self._max_tool_calls is not None and answer.limit == self._limits[0]:
            raise all_used(self._max_tool_calls, self._max_tool_calls)
        else:
            raise _told(answer)

    async def give_back(self) -> None:
        """After all the call does not run. Where the store has gone meanwhile it stays counted: never too few."""
        taken, self._taken = self._taken, Taken()
        if taken.limits and self._spend:
            try:
                await self._counts.give_back(taken)
            except ToolFailure:
                return


def due_of(counts: SharedCounts, call: Call, request: RequestKey | None, limits: tuple[Limit, ...]) -> Due | None:
    """None when the call has no limit that hubs count together."""
    shared = tuple([limit for limit in limits if limit.rate_per_s or limit.quota is not None])
    max_tool_calls = call.context.budget.max_tool_calls if request else None
    if request and max_tool_calls is not None:
        shared = (_of_request(request, max_tool_calls), *shared)
    return Due(counts, shared, max_tool_calls, call.mode is Mode.EXECUTE) if shared else None


def _of_request(request: RequestKey, max_tool_calls: int) -> Limit:
    """No limit of a policy has such an id: those begin with a name."""
    principal, request_id = request
    return Limit(
        f"|request|{len(principal)}|{principal}|{request_id}", quota=max_tool_calls, quota_window_s=REQUEST_WINDOW_S
    )


def _told(refused: Refused) -> ToolFailure:
    return limited(refused.limit, refused.scarce, refused.wait_s)
