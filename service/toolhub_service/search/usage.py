"""Learning from use: the purposes of successful calls raise their tools in the same tenant's searches.

A call costs an append to a bounded buffer. One task does the rest every few seconds, a little at a time: purposes are
redacted, cut to 300 characters and to terms, put into the tenant's `TenantUsage` and added to the store; uses learnt by
other processes are read from there after a cursor, which begins at the first. A repeated use counts once, so reading
this process's own uses does no harm. An unreachable store is reported once per outage and retried; the newest uses that
it could not take are kept, and nothing is ever raised to the caller. Memory is bounded: the tenants and tools that have
not been used for longest are forgotten first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from toolhub_service.domain.call import Mode
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import SettledCall
from toolhub_service.domain.tool import ToolUse, UsageStore
from toolhub_service.search.analyser import Analyser
from toolhub_service.search.usage_index import IndexedUse, TenantUsage

PURPOSE_MAX_CHARS: Final = 300
PURPOSE_MAX_TERMS: Final = 48
FLUSH_EVERY_S: Final = 3.0
HALF_LIFE_DAYS: Final = 30.0
FORGET_DAYS: Final = 180.0
MAX_USES: Final = 100_000
"""Most uses kept over all tenants; each takes about 0.5 kB."""
PENDING_MAX: Final = 2_000
"""Most uses that are not yet learnt, or not yet stored; beyond that the oldest are lost."""
# Uses learnt before other tasks of the event loop run: about 2 ms.
_SLICE: Final = 20
_PAGE: Final = 500
_DAY_MS: Final = 24 * 3600 * 1000
_FORGET_EVERY_MS: Final = 3600 * 1000
_RECENT_MAX: Final = 4_096


class UsageLearning:
    """Provides the search's `Learnt` as `of`. `redact` removes secrets from text; `notify` gets each store outage."""

    def __init__(
        self,
        store: UsageStore,
        *,
        clock: Clock,
        redact: Callable[[str], str],
        notify: Callable[[str], None],
        flush_every_s: float = FLUSH_EVERY_S,
        half_life_days: float = HALF_LIFE_DAYS,
        forget_days: float = FORGET_DAYS,
        max_uses: int = MAX_USES,
    ) -> None:
        self._store = store
        self._clock = clock
        self._redact = redact
        self._notify = notify
        self._flush_every_s = flush_every_s
        self._half_life_ms = round(half_life_days * _DAY_MS)
        self._forget_ms = round(forget_days * _DAY_MS)
        self._max_uses = max_uses
        self._analyser = Analyser()
        self._tenants: OrderedDict[str, TenantUsage] = OrderedDict()
        self._size = 0
        self._received: deque[ToolUse] = deque(maxlen=PENDING_MAX)
        self._unstored: deque[ToolUse] = deque(maxlen=PENDING_MAX)
        self._recent: OrderedDict[tuple[str, str, str, int], int] = OrderedDict()
        self._cursor = 0
        self._next_forget_ms = 0
        self._is_store_unavailable = False
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def learn_from_call(self, settled: SettledCall) -> None:
        """Learn from an ended call that was executed now, succeeded and had a purpose. Cheap."""
        call, result = settled.call, settled.result
        # A replay is the same use again; whether a job succeeded is known only at its end.
        if result.ok and call.purpose and call.mode is Mode.EXECUTE and not result.replayed and result.job is None:
            now = self._clock.unix_ms()
            self._received.append(ToolUse(call.principal.id, call.tool, call.context.agent_id, call.purpose, now))

    def learn_use(self, use: ToolUse) -> None:
        """Learn one use within seconds; the purpose need not be redacted yet. Cheap, and never raises."""
        self._received.append(use)

    def of(self, tenant: str) -> TenantUsage | None:
        """Return a tenant's past uses; None: nothing is known."""
        usage = self._tenants.get(tenant)
        if usage is not None:
            self._tenants.move_to_end(tenant)
        return usage

    async def start(self) -> None:
        """Start to read the store and to learn; returns at once. The store is started already."""
        self._task = asyncio.create_task(self._keep_up(), name="learn from use")

    async def close(self) -> None:
        """Store received uses, then stop. The store's owner closes it afterwards."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self.flush()

    async def flush(self) -> None:
        """Learn and store received uses now, and read those of other processes."""
        async with self._turn:
            await self._learn_received()
            try:
                await self._store_learnt()
                await self._follow_others()
                await self._forget()
            except ToolFailure as failure:
                self._note_store_failure(failure)
            else:
                self._is_store_unavailable = False

    async def _keep_up(self) -> None:
        while True:
            try:
                await self.flush()
            except Exception as defect:  # noqa: BLE001 - learning must outlive a defect, and search goes on without it
                self._notify(f"learning from use failed: {type(defect).__name__}")
            await asyncio.sleep(self._flush_every_s)

    async def _learn_received(self) -> None:
        learnt = 0
        while self._received:
            use = self._received.popleft()
            if self._is_first(use):
                use = replace(use, purpose=self._redact(use.purpose)[:PURPOSE_MAX_CHARS])
                if self._learn(use):
                    self._unstored.append(use)
                learnt += 1
                if learnt % _SLICE == 0:
                    await asyncio.sleep(0)

    def _is_first(self, use: ToolUse) -> bool:
        """Return False when an agent repeats a purpose, or has taught enough: so a loop of calls has no effect."""
        known = self._tenants.get(use.tenant)
        if known is not None and not known.accepts(use.tool, use.agent, use.at_unix_ms):
            return False
        key = (use.tenant, use.tool, use.agent, hash(use.purpose))
        last = self._recent.get(key)
        # Otherwise one looping agent would impose its own words on all others.
        if last is not None and use.at_unix_ms - last < _DAY_MS:
            return False
        self._recent[key] = use.at_unix_ms
        self._recent.move_to_end(key)
        if len(self._recent) > _RECENT_MAX:
            self._recent.popitem(last=False)
        return True

    def _learn(self, use: ToolUse) -> bool:
        """Learn a use; return False when it does not count."""
        # Numbers belong to that one call: dates, ids, amounts.
        terms = dict.fromkeys(term for term in self._analyser.terms(use.purpose) if not term.isdigit())
        now = self._clock.unix_ms()
        usage = self._tenants.get(use.tenant)
        if usage is None:
            usage = TenantUsage(now, self._half_life_ms, self._forget_ms)
        before = usage.size
        is_kept = usage.put(use.tool, IndexedUse(use.agent, tuple(terms)[:PURPOSE_MAX_TERMS], use.at_unix_ms), now)
        if is_kept:
            self._tenants[use.tenant] = usage
            self._tenants.move_to_end(use.tenant)
        self._size += usage.size - before
        self._stay_within_bounds()
        return is_kept

    def _stay_within_bounds(self) -> None:
        while self._size > self._max_uses:
            tenant, usage = next(iter(self._tenants.items()))
            before = usage.size
            if len(self._tenants) > 1:
                del self._tenants[tenant]
                self._size -= before
            else:
                # With a single tenant, the tool used longest ago is dropped.
                usage.forget_oldest_tool()
                self._size += usage.size - before

    async def _store_learnt(self) -> None:
        """Store learnt uses.

        Raises ToolFailure when the store is unreachable; what it did not take is kept for the next time.
        """
        uses = tuple(self._unstored)
        if uses:
            await self._store.add(uses)
            for _ in uses:
                self._unstored.popleft()

    async def _follow_others(self) -> None:
        while True:
            uses, self._cursor = await self._store.after(self._cursor, _PAGE)
            for number, use in enumerate(uses, 1):
                self._learn(use)
                if number % _SLICE == 0:
                    await asyncio.sleep(0)
            if len(uses) < _PAGE:
                return

    async def _forget(self) -> None:
        """Forget old uses once an hour, here and in the store."""
        now = self._clock.unix_ms()
        if now < self._next_forget_ms:
            return
        self._next_forget_ms = now + _FORGET_EVERY_MS
        for tenant, usage in list(self._tenants.items()):
            before = usage.size
            usage.forget(now - self._forget_ms)
            self._size += usage.size - before
            if not usage.size:
                del self._tenants[tenant]
        await self._store.forget(now - self._forget_ms, _PAGE)

    def _note_store_failure(self, failure: ToolFailure) -> None:
        if not self._is_store_unavailable:
            self._notify(f"what tools are used for cannot be kept or read now: {failure.error.message}")
        self._is_store_unavailable = True
