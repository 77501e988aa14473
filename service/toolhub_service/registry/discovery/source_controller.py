"""The control loop of one source, in its own task: read it, evaluate and publish its tools, wait, repeat.

A read is bounded in time. A failed one leaves the tools in the catalog, UNAVAILABLE with the reason, and is retried
with growing pauses; the next successful one restores their state. An incomplete one makes the missing tools
UNAVAILABLE. After a restart the tools with approved definitions are listed as UNAVAILABLE until the source has been
read. A decision on a pin, here or in another process, is applied at once to the last read. However often a source
changes, its reads take no more than their share of a processor (`CpuShare`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from toolhub_service.aio.cooperative import CpuClock, CpuMeter
from toolhub_service.aio.cpu_share import CpuShare
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.pin import Pin, PinChange, PinState
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.domain.source import (
    Definition,
    Discovery,
    LoginNeeded,
    SourceObserver,
    SourceState,
    SourceStatus,
    ToolSource,
    Trust,
)
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.foreign_text import on_one_line
from toolhub_service.registry.discovery.offers import Offer, SourceTools, offers_of
from toolhub_service.registry.discovery.pin_ledger import PinLedger
from toolhub_service.registry.discovery.quarantine import unavailable, with_problem
from toolhub_service.registry.discovery.registered import MakeRegistered, RegisteredTools

# When a source is read again: after its time to live, soon after it announces a change, and with exponential backoff
# and jitter while it cannot be read.

TTL_MIN_S: Final = 30.0
TTL_MAX_S: Final = 300.0
QUIET_S: Final = 0.25
"""A change is read when no other was announced for so long …"""
PATIENCE_S: Final = 2.0
"""… or so long after the first."""
REST_S: Final = 1.0
"""The least time between two reads because of announced changes, however many a source announces."""
BACKOFF_FIRST_S: Final = 1.0
_DOUBLINGS_MAX: Final = 20
NEVER_S: Final = float("inf")

Wait = Callable[[asyncio.Event, float], Awaitable[None]]
"""Returns when the event is set or so many seconds have passed."""


async def wait_for_event(event: asyncio.Event, delay_s: float) -> None:
    """`Wait` on the event loop's clock."""
    with suppress(TimeoutError):  # it returns either way
        async with asyncio.timeout(delay_s):
            await event.wait()


def refresh_delay_s(ttl_s: float | None, refresh_s: float) -> float:
    """Return the source's own interval, within 30 s and 5 min, else the operator's."""
    return refresh_s if ttl_s is None else min(max(ttl_s, TTL_MIN_S), TTL_MAX_S)


def backoff_s(failures: int, refresh_s: float, randomness: Randomness) -> float:
    """Return the delay before attempt `failures` + 1: between half and all of 1, 2, 4 … s, at most the refresh
    interval."""
    longest_s = min(BACKOFF_FIRST_S * 2 ** min(failures - 1, _DOUBLINGS_MAX), refresh_s)
    return randomness.uniform(longest_s / 2, longest_s)


class ChangeDebouncer:
    """Collects announced changes (debounced), so that a burst causes one read."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._last_s = 0.0

    def add(self, now_s: float) -> None:
        self._first_s = now_s if self._first_s is None else self._first_s
        self._last_s = now_s

    def clear(self) -> None:
        self._first_s = None

    @property
    def due_s(self) -> float:
        """Return when to read, on the clock of `add`; infinite while nothing was announced."""
        # A source that announces all the time must not postpone its read for ever.
        return NEVER_S if self._first_s is None else min(self._last_s + QUIET_S, self._first_s + PATIENCE_S)


_REASON_MAX_CHARS: Final = 500
_PROBLEMS_SHOWN: Final = 3
_CLOSE_S: Final = 15.0
_NOT_READ_YET: Final = "it has not been read yet"
_NOT_SEEN: Final = "it was not in the last reading of its source, which was not complete"
# Most tools kept so, whatever a source leaves out of its reads in turn.
_MISSING_MAX: Final = 2_000
_UNEXPECTED: Final = "reading it failed unexpectedly; the log says how"

Restored = Callable[[JsonObject], Definition | None]
"""Makes a definition from the stored `Pin.definition` after a restart; None: it is not to be offered."""


class ReadingTerms(msgspec.Struct, frozen=True):
    refresh_s: float
    """The interval between reads when the source gives none."""
    timeout_s: float
    """Timeout of one read."""


class SharedDeps(msgspec.Struct, frozen=True):
    """Dependencies that all sources share."""

    ledger: PinLedger
    clock: Clock
    randomness: Randomness
    observer: SourceObserver
    wait: Wait
    breaker_of: Callable[[str], str]
    """State of an upstream's breaker, such as `mcp:files`; empty when there is none yet."""
    cpu_s: CpuClock


class SourceController:
    def __init__(
        self,
        source: ToolSource,
        terms: ReadingTerms,
        tools: SourceTools,
        deps: SharedDeps,
        *,
        restored: Restored | None = None,
        registered: MakeRegistered | None = None,
    ) -> None:
        self._source = source
        self.registered = RegisteredTools(source, deps.observer, registered)
        self._terms = terms
        self._tools = tools
        self._deps = deps
        self._restored = restored
        self._task: asyncio.Task[None] | None = None
        self._checking = asyncio.Lock()
        self._wake = asyncio.Event()
        self._changes = ChangeDebouncer()
        self._share = CpuShare()
        self._requests: list[asyncio.Future[None]] = []
        self._specs: tuple[ToolSpec, ...] = ()
        self._offers: tuple[Offer, ...] = ()
        self._missing: frozenset[str] = frozenset()
        self._discovery = Discovery(())
        self._down = _NOT_READ_YET
        self._login_commands: tuple[str, ...] = ()
        self._was_read = False
        self._has_ended = False
        self._failures = 0
        self._problems: tuple[str, ...] = ()
        self._pin_problem = ""
        self._refreshed_at_unix_ms = 0
        self._next_at_unix_ms = 0
        self._latency_ms = 0.0
        self.was_tried = asyncio.Event()
        """Set once the source has been read, or has failed, for the first time."""

    @property
    def status(self) -> SourceStatus:
        source = self._source
        return SourceStatus(
            name=source.name,
            kind=source.kind,
            state=self._state,
            reason=self._reason,
            tool_count=self._tools.count,
            quarantined_count=self._tools.quarantined_count,
            refreshed_at_unix_ms=self._refreshed_at_unix_ms,
            next_refresh_at_unix_ms=self._next_at_unix_ms,
            endpoint=source.endpoint,
            latency_ms=self._latency_ms,
            breaker=self._deps.breaker_of(f"{source.kind.value}:{source.name}"),
            server=self._discovery.server,
            protocol=self._discovery.protocol,
            trust=source.trust,
            diagnose=source.diagnostics,
            login_commands=self._login_commands,
        )

    @property
    def unread_reason(self) -> str:
        """Return why the source has never been read; empty when it has."""
        return "" if self._was_read else self._down or _NOT_READ_YET

    @property
    def endpoint(self) -> str:
        return self._source.endpoint

    def offers(self, tool: str) -> bool:
        """Return whether the last read of the source itself has a tool of that full name."""
        return any(offer.name == tool for offer in self._offers)

    def begin(self) -> None:
        """Start the task and return at once."""
        self._source.listen(self._note_change)
        self._task = asyncio.create_task(self._run(), name=f"source:{self._source.name}")

    async def end(self) -> None:
        """Stop reading and close the source, within a bound. The tools stay in the catalog."""
        self._has_ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSE_S)
        self._answer(self._take_requests())
        self.was_tried.set()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._source.close()
        except Exception as problem:  # noqa: BLE001 - the others are still to be closed
            self._deps.observer.on_problem(self._source.name, problem)

    async def refresh(self) -> None:
        """Return when a read that began after now has ended."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests.append(ended)
        self._wake.set()
        await ended

    async def follow(self) -> None:
        """Evaluate the last read again, after a decision."""
        async with self._checking:
            if self._refreshed_at_unix_ms and not self._has_ended:
                await self._check(is_reading=False)
                self._deps.observer.on_judgement(self.status)

    @property
    def _state(self) -> SourceState:
        if self._login_commands:
            return SourceState.NEEDS_LOGIN
        if self._down or not self._was_read:  # READY only when a whole first read is in the catalog
            return SourceState.DOWN if self.was_tried.is_set() else SourceState.PENDING
        return SourceState.PARTIAL if self._reason else SourceState.READY

    @property
    def _reason(self) -> str:
        if self._down or not self._was_read:
            return self._down or _NOT_READ_YET
        problems = (*([self._pin_problem] if self._pin_problem else ()), *self._discovery.problems, *self._problems)
        shown = " ".join(problems[:_PROBLEMS_SHOWN])
        more = f" And {len(problems) - _PROBLEMS_SHOWN} more." if len(problems) > _PROBLEMS_SHOWN else ""
        return _as_reason(shown + more)

    def _note_change(self) -> None:
        self._changes.add(self._deps.clock.monotonic_s())
        self._wake.set()

    async def _run(self) -> None:
        try:
            await self._source.start()
            await self._restore()
        except Exception as problem:  # noqa: BLE001 - reading it says what is wrong
            self._deps.observer.on_problem(self._source.name, problem)
        while True:
            await self._wait_until_due(await self._read())

    async def _restore(self) -> None:
        """List the approved tools before the source has answered, though they cannot be called."""
        if self._restored is None or self._source.trust is Trust.ALWAYS:
            return
        pins = await self._deps.ledger.of_source(self._source.name)
        approved = (pin for pin in pins if pin.state is PinState.APPROVED and pin.change is not PinChange.REMOVED)
        specs = {pin.tool: spec for pin in approved if (spec := self._restored_spec(pin, self._restored)) is not None}
        self._specs = tuple(specs.values())
        await self._publish()

    def _restored_spec(self, pin: Pin, restored: Restored) -> ToolSpec | None:
        try:
            definition = self.registered.restore_definition(pin) if pin.registered else restored(pin.definition)
        except Exception as problem:  # noqa: BLE001 - the others can be restored
            self._deps.observer.on_problem(self._source.name, problem)
            return None
        return with_problem(definition) if definition is not None and definition.spec.name == pin.tool else None

    async def _read(self) -> float:
        """Read once; return how many seconds to wait afterwards."""
        requests = self._take_requests()
        meter = CpuMeter(self._deps.cpu_s)
        try:
            await meter.run(self._try_to_read())
            delay_s = self._delay_s()
            self._next_at_unix_ms = self._deps.clock.unix_ms() + round(delay_s * 1_000)
            self.was_tried.set()
            self._deps.observer.on_reading(self.status)
            return delay_s
        finally:
            self._share.charge(meter.used_s, self._deps.clock.monotonic_s())
            self._answer(requests)

    async def _try_to_read(self) -> None:
        self._changes.clear()
        began_s = self._deps.clock.monotonic_s()
        try:
            await self._take_in(await self._discover(), began_s)
        except LoginNeeded as needed:
            await self._note_failure(needed.error.message, needed.commands)
        except ToolFailure as failure:
            await self._note_failure(
                str(failure.error.details.get("reason") or failure.error.message)
            )  # the operator's text
        except Exception as defect:  # noqa: BLE001 - whatever a source does, it is read again
            self._deps.observer.on_problem(self._source.name, defect)
            await self._note_failure(_UNEXPECTED)

    async def _discover(self) -> Discovery:
        try:
            async with asyncio.timeout(self._terms.timeout_s):
                return await self._source.discover()
        except TimeoutError:
            message = f"it did not answer within {self._terms.timeout_s:g} s"
            raise refuse(ErrorKind.TIMEOUT, message) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this task: the source's library did so when its connection broke.
            raise refuse(ErrorKind.UPSTREAM_ERROR, "its connection broke while it was read") from None

    async def _take_in(self, discovery: Discovery, began_s: float) -> None:
        clock = self._deps.clock
        latency_ms = (clock.monotonic_s() - began_s) * 1_000
        offers = await offers_of(
            self._source.name, discovery.definitions, self._offers, elsewhere=self._tools.elsewhere
        )
        async with self._checking:
            missing = self._missing_from(offers) if discovery.problems else ()
            self._missing = frozenset(offer.name for offer in missing)
            self._discovery, self._offers = discovery, (*offers, *missing)
            self._latency_ms = latency_ms
            self._refreshed_at_unix_ms = clock.unix_ms()
            self._down, self._login_commands = "", ()
            await self._check(is_reading=not discovery.problems)
            self._was_read = True
        self._failures = self._failures + 1 if self._pin_problem else 0

    def _missing_from(self, offers: Sequence[Offer]) -> Sequence[Offer]:
        """Return earlier tools that may belong to the part that could not be read."""
        names = {offer.name for offer in offers}
        return [offer for offer in self._offers if offer.name not in names][:_MISSING_MAX]

    async def _note_failure(self, reason: str, login_commands: tuple[str, ...] = ()) -> None:
        async with self._checking:
            self._failures += 1
            self._down, self._login_commands = _as_reason(reason), login_commands
            await self._publish()

    async def _check(self, *, is_reading: bool) -> None:
        offers = self._offers
        if self.registered.are_possible:
            pins = await self._deps.ledger.registered_pins_of(self._source.name)
            offers = (*offers, *self.registered.offers(pins, offers))
        found = await self._deps.ledger.verdicts(self._source, offers, is_reading=is_reading)
        self._specs, self._pin_problem = found.specs, found.problem
        await self._publish()

    async def _publish(self) -> None:
        gone, why = self._missing, _NOT_SEEN
        if self._down:
            gone = frozenset(spec.name for spec in self._specs)
            fault = "needs a login" if self._login_commands else "is not there"
            why = f"its source `{self._source.name}` {fault}: {self._down.removesuffix('.')}"
        self._problems = await self._tools.publish(
            unavailable(spec, why) if spec.name in gone else spec for spec in self._specs
        )

    def _delay_s(self) -> float:
        if self._failures:
            return backoff_s(self._failures, self._terms.refresh_s, self._deps.randomness)
        return refresh_delay_s(self._discovery.ttl_s, self._terms.refresh_s)

    async def _wait_until_due(self, delay_s: float) -> None:
        """Wait until the next read is due, requested, or announced and permitted."""
        clock = self._deps.clock
        ended_s = clock.monotonic_s()
        while True:
            wanted_s = min(ended_s + delay_s, max(self._changes.due_s, ended_s + REST_S))
            due_s = max(ended_s if self._requests else wanted_s, self._share.due_s)
            left_s = due_s - clock.monotonic_s()
            if left_s <= 0:
                return
            self._wake.clear()
            await self._deps.wait(self._wake, left_s)

    def _take_requests(self) -> list[asyncio.Future[None]]:
        requests, self._requests = self._requests, []
        return requests

    def _answer(self, requests: list[asyncio.Future[None]]) -> None:
        for ended in requests:
            if not ended.done():
                ended.set_result(None)


def _as_reason(reason: str) -> str:
    """Return a reason from partly untrusted text: on one line, hidden characters escaped, cut."""
    return excerpt(on_one_line(excerpt(reason, 2 * _REASON_MAX_CHARS)), _REASON_MAX_CHARS)
