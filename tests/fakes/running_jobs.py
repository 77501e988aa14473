"""Jobs of a process, in memory: `RunningJobs` for tests of adapters, and process lives that end at a chosen contact.

`KeptMarks` is what outlives a process. A `Life` counts every contact of a run with the world (each call of RunningJobs
and of the RemoteJob, before and after it) and ends at the chosen one: as by kill -9 (`Died`; nothing gets through
afterwards, whatever the dying code tries), or by cancelling the task (a drain, after which it may still act).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.job_ports import RemoteJob
from toolhub_service.domain.result import Outcome, Progress

Answer = TypeVar("Answer")


class ProcessDied(BaseException):
    """The process is gone."""


@dataclass
class KeptMarks:
    """What a store of jobs remembers of remote sides, with every mark that was ever kept."""

    marks: dict[str, RemoteMark] = field(default_factory=dict)
    history: list[RemoteMark] = field(default_factory=list)
    outage: int = 0
    """So many requests fail because the store is away."""
    taken_by_another: bool = False
    """Whether the jobs are no longer this process's."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when somebody has cancelled the job; it stays so for every later run."""


class Life:
    """Of one process. `ends_at`: which contact with the world is its last, from 1; 0: it lives on."""

    def __init__(self, ends_at: int = 0, *, gently: bool = False) -> None:
        self.contacts: list[str] = []
        self._ends_at = ends_at
        self._gently = gently
        self._is_over = False
        self.task: asyncio.Task[Outcome] | None = None
        """The run, when some of its contacts are another task's."""

    @property
    def is_over(self) -> bool:
        return self._is_over

    async def contact(self, name: str) -> None:
        if self._is_over and not self._gently:
            raise ProcessDied
        self.contacts.append(name)
        if len(self.contacts) == self._ends_at:
            await self._end()

    async def around(self, name: str, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The process may end before it has asked, and before it has heard the answer."""
        await self.contact(f"before {name}")
        answer = await ask()
        await self.contact(f"after {name}")
        return answer

    async def _end(self) -> None:
        self._is_over = True
        if self.task is not None:
            self.task.cancel()
        if not self._gently:
            raise ProcessDied
        await asyncio.sleep(0)  # where the cancellation arrives


class FakeRunningJobs:
    """Implements `RunningJobs`."""

    def __init__(self, kept: KeptMarks | None = None, life: Life | None = None) -> None:
        self.kept = kept or KeptMarks()
        self._life = life or Life()
        self.begun: set[str] = set()

    async def begins(self, job_id: str) -> None:
        await self._life.around("begins", self._reached)
        self.begun.add(job_id)

    async def asks(self, job_id: str) -> None:
        await self._life.around("asks", self._reached)
        self.begun.discard(job_id)

    async def mark(self, job_id: str) -> RemoteMark | None:
        await self._life.around("mark", self._reached)
        return self.kept.marks.get(job_id)

    async def keep_mark(self, job_id: str, mark: RemoteMark) -> None:
        async def keep() -> None:
            await self._reached()
            self.kept.marks[job_id] = mark
            self.kept.history.append(mark)

        await self._life.around("keep_mark", keep)

    def suspends(self, job_id: str, approval_id: str) -> None: ...

    def continues_elsewhere(self, job_id: str) -> bool:
        return False

    def stopping(self, job_id: str) -> asyncio.Event:
        return self.kept.cancelled

    async def _reached(self) -> None:
        if self.kept.taken_by_another:
            raise refuse(ErrorKind.CANCELLED, "Another process has taken this job.")
        if self.kept.outage:
            self.kept.outage -= 1
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, "The job store is away.")


class KillableRemote:
    """A `RemoteJob` as a process with this life reaches it."""

    def __init__(self, remote: RemoteJob, life: Life) -> None:
        self._remote = remote
        self._life = life

    async def start(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark:
        return await self._life.around("start", lambda: self._remote.start(call, mark))

    async def find(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark | None:
        return await self._life.around("find", lambda: self._remote.find(call, mark))

    async def follow(self, call: GrantedCall, mark: RemoteMark) -> AsyncIterator[Progress]:
        await self._life.contact("before follow")
        async for progress in self._remote.follow(call, mark):
            await self._life.contact("while following")
            yield progress
        await self._life.contact("after follow")

    async def cancel(self, call: GrantedCall, mark: RemoteMark) -> bool:
        return await self._life.around("cancel", lambda: self._remote.cancel(call, mark))

    async def collect(self, call: GrantedCall, mark: RemoteMark) -> Outcome:
        return await self._life.around("collect", lambda: self._remote.collect(call, mark))
