"""The heartbeat of a process that runs jobs: by it other processes conclude that its jobs may be claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.runtime.jobs.ledger import JobLedger


class Heartbeat:
    """One runner's heartbeat, and whether this process may conclude that other runners are dead."""

    def __init__(self, ledger: JobLedger, runner: str, dead: Callable[[], Iterable[str]] = tuple) -> None:
        """`dead` yields the names of runners that have certainly ended, each once."""
        self.runner = runner
        """Names this process; new at each start."""
        self._dead = dead
        self._known_dead: set[str] = set()
        self._store = ledger.store
        self._observer = ledger.observer
        self._clock = ledger.clock
        self._terms = ledger.terms
        self._steady_since_s: float | None = None
        self._alive_until_unix_ms = 0

    async def beat(self) -> bool:
        """Write to the store that this runner is alive. Return False when the store could not be reached."""
        now_unix_ms = self._clock.unix_ms()
        alive_until_unix_ms = now_unix_ms + self._terms.dead_after_ms
        try:
            await self._store.beat(self.runner, alive_until_unix_ms)
        except Exception as unheard:  # noqa: BLE001 - whatever it is, signs of life must go on
            self._steady_since_s = None
            self._observer.on_problem("", unheard)
            return False
        if self._steady_since_s is None or not self._is_fresh(now_unix_ms):
            self._steady_since_s = self._clock.monotonic_s()
        self._alive_until_unix_ms = alive_until_unix_ms
        return True

    async def leave(self) -> None:
        """Remove the heartbeat, so that others need not wait: this process runs nothing any more."""
        try:
            await self._store.beat(self.runner, 0)
        except ToolFailure as unreachable:
            self._observer.on_problem("", unreachable)

    async def release_dead(self) -> None:
        """Release the jobs of runners that have certainly ended, without waiting for their heartbeat to expire. Raises
        ToolFailure."""
        for runner in self._dead():
            self._known_dead.add(runner)
            await self._store.beat(runner, 0)

    def may_take_over(self, runner: str) -> bool:
        """Return whether a runner that the store does not know as alive may be considered dead."""
        return runner in self._known_dead or self.may_declare_dead

    @property
    def may_declare_dead(self) -> bool:
        """Return whether this process may consider others dead. After an outage of the store every process looks dead
        until it has sent a heartbeat again, so no job is taken over until then; nor may a process decide whose own
        heartbeat is overdue."""
        steady_since_s = self._steady_since_s
        if not self._is_fresh(self._clock.unix_ms()):
            return False
        return steady_since_s is not None and self._clock.monotonic_s() - steady_since_s >= self._terms.dead_after_s

    def _is_fresh(self, now_unix_ms: int) -> bool:
        """Return whether the last heartbeat is recent: at half its lifetime, those of others, sent earlier, may have
        expired."""
        return now_unix_ms < self._alive_until_unix_ms - self._terms.dead_after_ms // 2
