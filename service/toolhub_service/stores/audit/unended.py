"""Calls that a killed hub left without an end: each gets an event that says that its outcome is unknown.

A call that may have an effect is in the log before it runs (TOOL_CALLED), and when it ends. A process that is killed
writes no end. The next one of the same data folder looks through the last events of the chains that were not closed,
and waits for as long as any call may take: another process of the folder may be alive, and then writes the ends of its
calls itself. Calls of jobs are left out, because the history of the job says how it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final, Protocol

import msgspec

from toolhub_service.domain.errors.kinds import ErrorKind
from toolhub_service.domain.event import ChainedEvent, Event, EventFilter, EventType
from toolhub_service.stores.audit.events import EventStore, read_chained_event

_ENDED: Final = frozenset({EventType.TOOL_RESULT, EventType.POLICY_DENIED})
_LIVES_MAX: Final = 8
"""Chains that are looked through, the latest ones; more are left by a hub that dies again and again."""
_EVENTS_MAX: Final = 20_000
"""Events of each chain that are looked through, the latest ones."""
_TYPE, _CALL_ID = 3, 6
"""Columns of a row."""


class OpenLog(Protocol):
    """What is needed of the audit log that this process writes."""

    events: EventStore
    left_behind: Sequence[str]
    """Writers of this process's name whose chains nobody has closed, oldest first."""

    def append(self, event: Event) -> None: ...

    async def read(
        self, where: EventFilter, *, after: tuple[int, str, int] | None, limit: int
    ) -> Sequence[ChainedEvent]: ...


def find_unended(events: EventStore, writers: Sequence[str]) -> list[Event]:
    """Return the first events of the writers' calls that have no last one, without those of jobs."""
    begun: dict[str, tuple[Any, ...]] = {}
    if not writers:
        return []
    with closing(events.open(create=False)) as table:
        ends = dict(table.ends())
        for writer in writers[-_LIVES_MAX:]:
            for row in table.beyond(writer, max(0, int(ends.get(writer, 0)) - _EVENTS_MAX)):
                if row[_TYPE] == EventType.TOOL_CALLED.value:
                    begun[row[_CALL_ID]] = row
                elif row[_TYPE] in {each.value for each in _ENDED}:
                    begun.pop(row[_CALL_ID], None)
    found = [read_chained_event(row).event for row in begun.values()]
    return [event for event in found if "job_id" not in event.attributes]


class UnendedCalls:
    """Does it once, from `start` to `close` at most."""

    def __init__(
        self, log: OpenLog, unix_ms: Callable[[], int], wait_s: float, failed: Callable[[str, Exception], None]
    ) -> None:
        """`wait_s`: as long as any call may take. `failed` gets a name for this work, and why it could not be done."""
        self._log = log
        self._unix_ms = unix_ms
        self._wait_s = wait_s
        self._failed = failed
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._log.left_behind:
            self._task = asyncio.create_task(self._run(), name="unended-calls")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            found = await asyncio.to_thread(find_unended, self._log.events, self._log.left_behind)
            if found:
                await asyncio.sleep(self._wait_s)
            for event in found:
                if not await self._is_over(event):
                    self._log.append(self._end_of(event))
        except Exception as problem:  # noqa: BLE001 - whatever is wrong with the log, the hub goes on
            self._failed("unended calls", problem)

    async def _is_over(self, event: Event) -> bool:
        """Return whether the call has an end by now, or belongs to a job."""
        root = event.attributes.get("root_call_id")
        if root and any("job_id" in each.event.attributes for each in await self._of(root, frozenset())):
            return True
        return bool(await self._of(event.call_id, _ENDED))

    async def _of(self, call_id: str, types: frozenset[EventType]) -> Sequence[ChainedEvent]:
        return await self._log.read(EventFilter(call_id=call_id, types=types), after=None, limit=100)

    def _end_of(self, event: Event) -> Event:
        return msgspec.structs.replace(
            event,
            type=EventType.TOOL_RESULT,
            at_unix_ms=self._unix_ms(),
            args_summary="",
            purpose="",
            outcome=ErrorKind.OUTCOME_UNKNOWN.value,
            attributes={**event.attributes, "cause": "HUB_DIED"},
        )
