"""Counters shared by all hubs that use one store: rate, quota and the calls of a request.

A hub without a shared store never uses these. One with it asks the store once per call, and only for calls with such
a limit: all counters in one request, taken completely or not at all. A call that does not run now (a dry run, a
submission) is only checked, so that it has nothing to return. A store that does not answer refuses the call: nobody
else knows what has been spent.
"""

from __future__ import annotations

import asyncio

from toolhub_service.budget.limits import refuse_over_limit
from toolhub_service.budget.quota import RequestKey, refuse_used_up_request
from toolhub_service.domain.call import Call, Mode
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.verdict import Limit, SharedCounts, Taken

REQUEST_WINDOW_S = 86_400.0
"""Seconds for which the calls of a request are counted, from its first one: as long as a budget may last."""


class Due:
    """What one call takes of the shared counters. Call `pay` once, then `give_back` at most once."""

    __slots__ = ("_counts", "_limits", "_max_tool_calls", "_spend", "_taken")

    def __init__(
        self, counts: SharedCounts, limits: tuple[Limit, ...], max_tool_calls: int | None, spend: bool
    ) -> None:
        """`max_tool_calls` is set when the first limit is the request's."""
        self._counts = counts
        self._limits = limits
        self._max_tool_calls = max_tool_calls
        self._spend = spend
        self._taken = Taken()

    async def pay(self, timeout_s: float) -> None:
        """Raises ToolFailure RATE_LIMITED, BUDGET_EXCEEDED or TOOL_UNAVAILABLE, and has taken nothing then."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._counts.take(self._limits, spend=self._spend)
        except TimeoutError:
            raise refuse(
                ErrorKind.TOOL_UNAVAILABLE,
                "The shared counters of this call's limits could not be read before its deadline, so nothing "
                "happened. Call again with more time.",
            ) from None
        if isinstance(answer, Taken):
            self._taken = answer
        elif self._max_tool_calls is not None and answer.limit == self._limits[0]:
            raise refuse_used_up_request(self._max_tool_calls, self._max_tool_calls)
        else:
            raise refuse_over_limit(answer.limit, answer.scarce, answer.wait_s)

    async def give_back(self) -> None:
        """Return what was taken when the call does not run. If the store has become unreachable it stays counted: never
        too few."""
        taken, self._taken = self._taken, Taken()
        if taken.limits and self._spend:
            try:
                await self._counts.give_back(taken)
            except ToolFailure:
                return


def due_of(counts: SharedCounts, call: Call, request: RequestKey | None, limits: tuple[Limit, ...]) -> Due | None:
    """Return what the call takes of shared counters; None when it has no limit that hubs count together."""
    shared = tuple([limit for limit in limits if limit.rate_per_s or limit.quota is not None])
    max_tool_calls = call.context.budget.max_tool_calls if request else None
    if request and max_tool_calls is not None:
        shared = (_of_request(request, max_tool_calls), *shared)
    return Due(counts, shared, max_tool_calls, call.mode is Mode.EXECUTE) if shared else None


def _of_request(request: RequestKey, max_tool_calls: int) -> Limit:
    """Return the id of a request's limit; no limit of a policy has such an id, because those begin with a name."""
    principal, request_id = request
    return Limit(
        f"|request|{len(principal)}|{principal}|{request_id}", quota=max_tool_calls, quota_window_s=REQUEST_WINDOW_S
    )
