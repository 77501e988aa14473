"""Which execution a call has begun, when its answer did not tell: by the key that was sent along.

n8n has no search by key, so the newest executions are looked at one by one: those that run (the plain list leaves them
out), those that wait, those that have ended. A list may miss one that has just ended, and what is not saved is never
listed: that nothing was found proves nothing. One call may have begun two executions, where something on the way
repeats requests; the older one counts, for a workflow that knows its keys does its work in that one.

Lists come without data. The data of each that may be ours are read whole, for n8n tells them in no other way, and once:
the key under which an execution was called never changes, so what was found to be another call's is remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from toolhub_service.adapters.n8n.api import Absent, ApiTooLarge, N8nApi
from toolhub_service.adapters.n8n.executions import Execution, has_all_keys, keys_of

CLOCK_SKEW_MS: Final = 120_000
"""By how much n8n's clock may be behind."""
_STATUSES: Final = ("running", "waiting", "")
_MODES: Final = frozenset({"", "webhook", "retry"})
"""Of executions that a call may have begun; those of timers and the like are not."""
_LISTED_MAX: Final = 50
_READ_MAX: Final = 60
_REMEMBERED_MAX: Final = 4_096
_KEYS_MAX: Final = 16
"""Of one execution; one with more is read again each time."""


class Found(NamedTuple):
    execution: Execution
    """With its data."""
    others: int = 0
    """Executions that bear the same key."""


class Lookup:
    """Of one server."""

    def __init__(self, api: N8nApi) -> None:
        self._api = api
        self._keys: OrderedDict[tuple[str, str], frozenset[str]] = OrderedDict()
        """By execution and its start: under which keys it was called, all there will ever be."""

    async def find(self, workflow_id: str, key: str, sent_at_unix_ms: int) -> Found | None:
        """The execution that bears the key, begun after it was sent. Raises ApiTrouble when it cannot be looked for."""
        found: dict[str, Execution] = {}
        seen: set[str] = set()
        for status in _STATUSES:
            for listed in await self._api.executions(workflow_id, status, _LISTED_MAX):
                if listed.id in seen or len(seen) >= _READ_MAX or not self._may_be(listed, key, sent_at_unix_ms):
                    continue
                seen.add(listed.id)
                execution = await self._bearing(listed, key)
                if execution is not None:
                    found[listed.id] = execution
        if not found:
            return None
        return Found(min(found.values(), key=_age), len(found) - 1)

    def _may_be(self, listed: Execution, key: str, sent_at_unix_ms: int) -> bool:
        if listed.mode not in _MODES or _is_older(listed, sent_at_unix_ms):
            return False
        return key in self._keys.get((listed.id, listed.started_at), (key,))

    async def _bearing(self, listed: Execution, key: str) -> Execution | None:
        """The execution with its data when it bears the key. Of any other they are dropped where they were read."""

        def judge(execution: Execution) -> tuple[Execution | None, frozenset[str] | None]:
            keys = keys_of(execution)
            return execution if key in keys else None, keys if has_all_keys(execution) else None

        try:
            execution, keys = await self._api.judged(listed.id, judge)
        except (Absent, ApiTooLarge):
            return None  # whose it was cannot be told
        if keys is not None and len(keys) <= _KEYS_MAX:
            self._keys[listed.id, listed.started_at] = keys
            if len(self._keys) > _REMEMBERED_MAX:
                self._keys.popitem(last=False)
        return execution


def _is_older(execution: Execution, sent_at_unix_ms: int) -> bool:
    started = execution.started_unix_ms
    return started is not None and started < sent_at_unix_ms - CLOCK_SKEW_MS


def _age(execution: Execution) -> tuple[int, int, str]:
    started = execution.started_unix_ms
    return (2**63 if started is None else started, len(execution.id), execution.id)
