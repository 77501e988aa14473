"""A process's signs of life, by which others tell whether its jobs are still in somebody's hands."""

from __future__ import annotations

from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.job_ports import JobObserver, JobStore
from toolhub_service.domain.ports import Clock
from toolhub_service.runtime.jobs.terms import JobTerms


class Life:
    """Beats for one runner, and knows whether this process may judge that others are dead."""

    def __init__(self, store: JobStore, observer: JobObserver, clock: Clock, runner: str, terms: JobTerms) -> None:
        self.runner = runner
        """Names this process, anew each time it starts."""
        self._store = store
        self._observer = observer
        self._clock = clock
        self._terms = terms
        self._steady_since_s: float | None = None
        self._alive_until_unix_ms = 0

    async def beat(self) -> bool:
        """Whether the store heard it."""
        now_unix_ms = self._clock.unix_ms()
        alive_until_unix_ms = now_unix_ms + self._terms.dead_after_ms
        try:
            await self._store.beat(self.runner, alive_until_unix_ms)
        except Exception as unheard:  # noqa: BLE001 - whatever it is, signs of life must go on
            self._steady_since_s = None
            self._observer.troubled("", unheard)
            return False
        if self._steady_since_s is None or not self._is_fresh(now_unix_ms):
            self._steady_since_s = self._clock.monotonic_s()
        self._alive_until_unix_ms = alive_until_unix_ms
        return True

    async def leave(self) -> None:
        """Others need not wait: this process runs nothing any more."""
        try:
            await self._store.beat(self.runner, 0)
        except ToolFailure as unreachable:
            self._observer.troubled("", unreachable)

    @property
    def may_judge(self) -> bool:
        """After an outage of the store, or when all stood still, every process looks dead until it has beaten again: so
        long nobody is taken. Nor does one judge that has fallen silent itself."""
        steady_since_s = self._steady_since_s
        if not self._is_fresh(self._clock.unix_ms()):
            return False
        return steady_since_s is not None and self._clock.monotonic_s() - steady_since_s >= self._terms.dead_after_s

    def _is_fresh(self, now_unix_ms: int) -> bool:
        """Whether the last sign was lately: when it is half over, those of others, given earlier, may have lapsed."""
        return now_unix_ms < self._alive_until_unix_ms - self._terms.dead_after_ms // 2
