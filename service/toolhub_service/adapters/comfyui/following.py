"""How one prompt fares, asked again and again until it has ended, is certainly gone, or nobody can tell.

What is unknown to its server for `lost_after_s` without a break is LOST: history, queue and jobs of a server are empty
after a restart, and a prompt that somebody takes out of the queue leaves no trace. One that the server itself has taken
out for us, and then does not know, is cancelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

from toolhub_service.adapters.comfyui.backends import Backend
from toolhub_service.adapters.comfyui.client import NoReply
from toolhub_service.adapters.comfyui.event_feed import NodeProgress
from toolhub_service.adapters.comfyui.states import Seen, Stage, newest_in_history
from toolhub_service.adapters.remote_polling import Answer, Unreachable
from toolhub_service.domain.errors import RemoteUnclear
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import Progress

# Which prompts of one source are to be stopped, and how far that has come: shared by who asks and who follows.


class Stops:
    """Sets of prompt ids."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()
        """Somebody has cancelled them."""
        self.overran: set[str] = set()
        """They ran for longer than their templates allow."""
        self.removed: set[str] = set()
        """Servers have taken them out for us."""
        self._under_way: set[str] = set()

    @contextmanager
    def asking(self, prompt_id: str) -> Iterator[None]:
        """While a server is asked: that it does not know the prompt may then be our own doing."""
        self._under_way.add(prompt_id)
        try:
            yield
        finally:
            self._under_way.discard(prompt_id)

    def is_under_way(self, prompt_id: str) -> bool:
        return prompt_id in self._under_way

    def forget(self, prompt_id: str) -> None:
        for known in (self.wanted, self.overran, self.removed):
            known.discard(prompt_id)


# Stopping one prompt and no other. With `/api/jobs`: one atomic request that may be repeated. Without: it is removed
# from the queue first; then, only if it is the one that runs, it is interrupted by its id (an interrupt without an id,
# or to a server too old to read it, stops whatever runs). A node is not interrupted, only what follows it.


class Stop(Enum):
    REMOVED = "removed"
    """The server has taken it out: if it is not known there any more, that is why."""
    ASKED = "asked"
    """It runs, and is to stop."""
    OVER = "over"
    """There is nothing to stop."""


async def stop(backend: Backend, prompt_id: str) -> Stop:
    """Raises NoReply when it does not take it."""
    kind = await backend.kind()
    stage = (await backend.look(prompt_id)).stage
    if stage.is_over or stage is Stage.UNKNOWN:
        return Stop.OVER
    if kind.has_jobs:
        return await _by_jobs(backend, prompt_id)
    return await _by_queue(backend, prompt_id, was_waiting=stage is Stage.PENDING)


async def _by_jobs(backend: Backend, prompt_id: str) -> Stop:
    reply = await backend.client.post(f"/api/jobs/{prompt_id}/cancel", {})
    if reply.status == 200 and reply.fields.get("cancelled") is True:
        return Stop.REMOVED
    stage = (await backend.look(prompt_id)).stage
    if stage.is_over or stage is Stage.UNKNOWN:
        return Stop.OVER
    raise NoReply(f"it does not stop it ({reply.status})")


async def _by_queue(backend: Backend, prompt_id: str, *, was_waiting: bool) -> Stop:
    deleted = await backend.client.post("/queue", {"delete": [prompt_id]})
    stage = (await backend.look(prompt_id)).stage
    if stage is Stage.RUNNING:
        reply = await backend.client.post("/interrupt", {"prompt_id": prompt_id})
        if reply.status != 200:
            raise NoReply(f"it does not stop it ({reply.status})")
        return Stop.ASKED
    if stage is Stage.UNKNOWN and was_waiting and deleted.status == 200:
        return Stop.REMOVED
    if stage is Stage.PENDING:
        raise NoReply(f"it does not take it out of its queue ({deleted.status})")
    return Stop.OVER


STOP_AGAIN_S: Final = 5.0
"""Between two requests to stop the same prompt, for a server may lose one that comes between two nodes."""
_CERTAIN_LOOKS: Final = 2
_SILENT_LOOKS: Final = 3
"""Questions without an answer, one after the other, before who watches is told."""


class Absence:
    """For how long a server has said without a break that it does not know a prompt."""

    def __init__(self, backend: Backend, mark: RemoteMark, clock: Clock, lost_after_s: float) -> None:
        self._backend = backend
        self._mark = mark
        self._clock = clock
        self._lost_after_s = lost_after_s
        self._since_s: float | None = None
        self.looks = 0

    def over(self) -> None:
        """It is known, or there was no answer."""
        self._since_s, self.looks = None, 0

    async def goes_on(self) -> None:
        """Raises RemoteUnclear when that has lasted too long."""
        now_s = self._clock.monotonic_s()
        self._since_s = now_s if self._since_s is None else self._since_s
        self.looks += 1
        if self.looks >= _CERTAIN_LOOKS and now_s - self._since_s >= self._lost_after_s:
            raise RemoteUnclear(await _why_lost(self._backend, self._mark))


class Following:
    """Of one prompt."""

    def __init__(
        self,
        backend: Backend,
        mark: RemoteMark,
        nodes: NodeProgress,
        clock: Clock,
        *,
        lost_after_s: float,
        stops: Stops,
        is_refused: bool = False,
        max_runtime_s: float | None = None,
    ) -> None:
        """`is_refused`: its server took only a part of it, which is to be stopped; `max_runtime_s`: None: no bound;
        the wait is not counted."""
        self._backend = backend
        self._prompt_id = mark.remote_id
        self._nodes = nodes
        self._clock = clock
        self._absence = Absence(backend, mark, clock, lost_after_s)
        self._stops = stops
        self._is_refused = is_refused
        self._stopped_at_s: float | None = None
        self._max_runtime_s = max_runtime_s
        self._runs_since_s: float | None = None
        self._silent = 0

    async def ask(self) -> Answer[Progress]:
        """A `Question` of a Poller. Raises Unreachable, RemoteUnclear."""
        try:
            seen = await self._backend.look(self._prompt_id)
            if seen.stage is Stage.RUNNING:
                self._look_at_the_time()
            if seen.stage in (Stage.PENDING, Stage.RUNNING) and self._is_to_stop:
                await self._stop_again()
        except NoReply as silent:
            return self._silence(silent)
        self._silent = 0
        if seen.stage is Stage.UNKNOWN:
            return await self._absent()
        self._absence.over()
        return Answer(self._progress(seen), is_over=seen.stage.is_over)

    async def end(self) -> Answer[Seen]:
        """The same for what it has come to. Raises Unreachable, RemoteUnclear."""
        try:
            seen = await self._backend.look(self._prompt_id)
        except NoReply as silent:
            raise Unreachable(silent.retry_after_s) from silent
        if seen.stage is Stage.UNKNOWN and self._prompt_id not in self._stops.removed:
            await self._absence.goes_on()
        elif seen.stage.is_over or seen.stage is Stage.UNKNOWN:
            return Answer(seen)
        raise Unreachable

    @property
    def _is_to_stop(self) -> bool:
        return self._is_refused or self._is_over_time or self._prompt_id in self._stops.wanted

    @property
    def _is_over_time(self) -> bool:
        return self._prompt_id in self._stops.overran

    def _look_at_the_time(self) -> None:
        now_s = self._clock.monotonic_s()
        self._runs_since_s = now_s if self._runs_since_s is None else self._runs_since_s
        if self._max_runtime_s is not None and now_s - self._runs_since_s >= self._max_runtime_s:
            self._stops.overran.add(self._prompt_id)

    def _silence(self, silent: NoReply) -> Answer[Progress]:
        """Once is nothing; what lasts is told. Raises Unreachable."""
        self._absence.over()
        self._silent += 1
        if self._silent < _SILENT_LOOKS:
            raise Unreachable(silent.retry_after_s) from silent
        told = f"{self._backend.name} does not answer ({silent.reason}); it is asked again"
        return Answer(self._nodes.progress(told), retry_after_s=silent.retry_after_s)

    async def _absent(self) -> Answer[Progress]:
        if self._stops.is_under_way(self._prompt_id):
            raise Unreachable
        if self._prompt_id in self._stops.removed and self._absence.looks >= _CERTAIN_LOOKS - 1:
            return Answer(self._nodes.progress("the server has taken it out"), is_over=True)
        await self._absence.goes_on()
        raise Unreachable

    async def _stop_again(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._stopped_at_s is not None and now_s - self._stopped_at_s < STOP_AGAIN_S:
            return
        self._stopped_at_s = now_s
        if await stop(self._backend, self._prompt_id) is Stop.REMOVED:
            self._stops.removed.add(self._prompt_id)

    def _progress(self, seen: Seen) -> Progress:
        name = self._backend.name
        if seen.stage is Stage.SUCCEEDED:
            return self._nodes.ended(f"done on {name}; fetching what it made")
        if seen.stage.is_over:
            return self._nodes.progress(f"it has ended on {name}")
        if self._is_over_time:
            return self._nodes.progress(f"ran for longer than it may; {name} is stopping it")
        if seen.stage is Stage.PENDING:
            at = f"{_ordinal(seen.place[0])} of {seen.place[1]}" if seen.place else "waits"
            return self._nodes.progress(f"{at} in the queue of {name}")
        return self._nodes.progress() if self._nodes.is_heard else self._nodes.progress(f"runs on {name}")


async def _why_lost(backend: Backend, mark: RemoteMark) -> str:
    told = f"The server {backend.name} knows it no more: it is neither running, nor waiting, nor in the history."
    sent = mark.details.get("number", "")
    try:
        newest = await newest_in_history(backend.client)
    except NoReply:
        return told
    if newest is None:
        return f"{told} The history is empty: the server was restarted since, or somebody has cleared it"
    if sent and newest.number < int(float(sent)):
        return f"{told} The server counts its prompts anew: it was restarted since"
    return f"{told} The server goes on counting its prompts: it was not restarted, so somebody has removed this one"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
