"""Asking a remote side again and again, for many jobs at once, without being a burden to either side.

One `Poller` serves all jobs of one endpoint. Each job is asked about at growing intervals with jitter (Brooker,
"Timeouts, retries, and backoff with jitter"); together they ask at most `per_s` times a second, whatever their number,
and at most `at_once` answers are waited for. A Retry-After (RFC 9110 §10.2.3) is honoured, within reason. Between two
questions a job costs one future and one timer. Whoever learns by another way that there is news (a WebSocket, a request
to stop that was accepted) says `hurry`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from toolhub_service.domain.ports import Randomness

Told = TypeVar("Told")

_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class PollTerms:
    first_s: float = 0.25
    """Between the first two questions about a job, and after `hurry`."""
    growth: float = 1.5
    longest_s: float = 15.0
    jitter: float = 0.2
    """Share by which an interval is shortened or lengthened."""
    at_once: int = 8
    """Questions under way at the endpoint."""
    per_s: float = 50.0
    """Questions a second at the endpoint, on average over all its jobs."""
    retry_after_max_s: float = 120.0
    """The longest Retry-After that is believed."""


class Answer(NamedTuple, Generic[Told]):
    """What a remote side said."""

    told: Told
    is_over: bool = False
    """Whether there is nothing more to ask."""
    retry_after_s: float = 0.0
    """The remote side wishes to be left alone for so long."""


class Unreachable(Exception):
    """No answer, or none worth the name: ask again later. Raised by questions."""

    def __init__(self, retry_after_s: float = 0.0) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


Question = Callable[[], Awaitable[Answer[Told]]]
"""Asks once. Raises Unreachable, or what ends the asking."""


class Poller:
    """All questions to one endpoint."""

    def __init__(self, randomness: Randomness, terms: PollTerms | None = None) -> None:
        self._randomness = randomness
        self._terms = terms or PollTerms()
        self._under_way = asyncio.Semaphore(self._terms.at_once)
        self._rounds: dict[str, _Round] = {}
        self._asking = 0

    @property
    def asking(self) -> int:
        """Jobs that are being asked about."""
        return self._asking

    async def poll(self, ask: Question[Told], *, key: str = "") -> AsyncIterator[Told]:
        """What was told, each time it differs from the last time; ends with what was told last.

        `key` is what `hurry` is told; empty for questions that nobody can hurry.
        """
        waits = _Round(self._terms.first_s)
        self._asking += 1
        if key:
            self._rounds[key] = waits
        before: object = _NOTHING
        try:
            while True:
                at_least_s = 0.0
                try:
                    async with self._under_way:
                        answer = await ask()
                except Unreachable as silent:
                    at_least_s = silent.retry_after_s
                else:
                    if answer.told != before:
                        before = answer.told
                        yield answer.told
                    if answer.is_over:
                        return
                    at_least_s = answer.retry_after_s
                await self._pause(waits, at_least_s)
        finally:
            self._asking -= 1
            if self._rounds.get(key) is waits:
                del self._rounds[key]

    async def answer(self, ask: Question[Told]) -> Told:
        """The first answer, however long it takes: for what must be known, such as the result of an ended job."""
        waits = _Round(self._terms.first_s)
        while True:
            try:
                async with self._under_way:
                    return (await ask()).told
            except Unreachable as silent:
                await self._pause(waits, silent.retry_after_s)

    def hurry(self, key: str) -> None:
        """There is news of this job: ask now, and often again. Nothing happens when it is not being asked about."""
        waits = self._rounds.get(key)
        if waits is not None:
            waits.hurry(self._terms.first_s)

    async def _pause(self, waits: _Round, at_least_s: float) -> None:
        terms = self._terms
        share_s = self._asking / terms.per_s
        shaken_s = max(waits.interval_s, share_s) * self._randomness.uniform(1 - terms.jitter, 1 + terms.jitter)
        waits.interval_s = min(waits.interval_s * terms.growth, terms.longest_s)
        await waits.pause(shaken_s + min(at_least_s, terms.retry_after_max_s))


class _Round:
    """Where one job stands between its questions."""

    __slots__ = ("_is_hurried", "_woken", "interval_s")

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._woken: asyncio.Future[None] | None = None
        self._is_hurried = False

    async def pause(self, seconds: float) -> None:
        """Until then, or until hurried; at once when hurried since the last pause."""
        if not self._is_hurried:
            loop = asyncio.get_running_loop()
            self._woken = loop.create_future()
            timer = loop.call_later(seconds, self._wake)
            try:
                await self._woken
            finally:
                timer.cancel()
                self._woken = None
        self._is_hurried = False

    def hurry(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._is_hurried = True
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
