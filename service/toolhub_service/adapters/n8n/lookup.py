"""Which execution a call has begun, when its answer did not tell: by the key that was sent along.

n8n has no search by key, so the newest executions are looked at one by one: those that run (the plain list leaves them
out), those that wait, those that have ended. A list may miss one that has just ended, and what is not saved is never
listed: that nothing was found proves nothing. One call may have begun two executions, where something on the way
repeats requests; the older one counts, for a workflow that knows its keys does its work in that one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from toolhub_service.adapters.n8n.api import Absent, ApiTooLarge, N8nApi
from toolhub_service.adapters.n8n.executions import Execution, bears

CLOCK_SKEW_MS: Final = 120_000
"""By how much n8n's clock may be behind."""
_STATUSES: Final = ("running", "waiting", "")
_LISTED_MAX: Final = 50
_READ_MAX: Final = 60


class Found(NamedTuple):
    execution: Execution
    """With its data."""
    others: int = 0
    """Executions that bear the same key."""


async def find(api: N8nApi, workflow_id: str, key: str, sent_at_unix_ms: int) -> Found | None:
    """The execution that bears the key, begun after it was sent. Raises ApiTrouble when it cannot be looked for."""
    found: dict[str, Execution] = {}
    seen: set[str] = set()
    for status in _STATUSES:
        for listed in await api.executions(workflow_id, status, _LISTED_MAX):
            if listed.id in seen or len(seen) >= _READ_MAX or _is_older(listed, sent_at_unix_ms):
                continue
            seen.add(listed.id)
            try:
                execution = await api.execution(listed.id, with_data=True)
            except (Absent, ApiTooLarge):
                continue  # whose it was cannot be told
            if bears(execution, key):
                found[execution.id] = execution
    if not found:
        return None
    return Found(min(found.values(), key=_age), len(found) - 1)


def _is_older(execution: Execution, sent_at_unix_ms: int) -> bool:
    started = execution.started_unix_ms
    return started is not None and started < sent_at_unix_ms - CLOCK_SKEW_MS


def _age(execution: Execution) -> tuple[int, int, str]:
    started = execution.started_unix_ms
    return (2**63 if started is None else started, len(execution.id), execution.id)
