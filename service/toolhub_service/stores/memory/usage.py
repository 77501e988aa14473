"""What tools were used for, in the memory of one process: lost with it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

from toolhub_service.domain.tool import ToolUse


class MemoryUsage:
    """Implements `UsageStore`."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._count = 0
        # Numbers of the stored uses, ascending.
        self._numbers: list[int] = []
        self._uses: dict[int, ToolUse] = {}
        # The numbers by tenant and tool.
        self._of: dict[tuple[str, str], deque[int]] = {}

    async def add(self, uses: Sequence[ToolUse]) -> None:
        for use in uses:
            self._count += 1
            self._numbers.append(self._count)
            self._uses[self._count] = use
            numbers = self._of.setdefault((use.tenant, use.tool), deque())
            numbers.append(self._count)
            if len(numbers) > self._keep:
                self._drop(numbers[0])

    async def after(self, cursor: int, limit: int) -> tuple[Sequence[ToolUse], int]:
        first = bisect_right(self._numbers, cursor)
        numbers = self._numbers[first : first + limit]
        return [self._uses[number] for number in numbers], numbers[-1] if numbers else cursor

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        aged = [(use.at_unix_ms, number) for number, use in self._uses.items() if use.at_unix_ms < before_unix_ms]
        oldest = sorted(aged)[:limit]
        for _, number in oldest:
            self._drop(number)
        return len(oldest)

    async def start(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close."""

    def _drop(self, number: int) -> None:
        use = self._uses.pop(number)
        del self._numbers[bisect_left(self._numbers, number)]
        numbers = self._of[use.tenant, use.tool]
        numbers.remove(number)
        if not numbers:
            del self._of[use.tenant, use.tool]
