"""Records refusals of credentials or roles, and reads of the audit log, as audit events, log lines and a metric.

Events that unauthenticated callers can cause are counted and written once a minute, for a bounded number of peers: a
flood of bad keys must neither fill the log nor hide other events in it (docs/decisions/0031).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, NamedTuple

from structlog.typing import FilteringBoundLogger

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.telemetry import names
from toolhub_service.telemetry.metrics import Metrics

OTHERS: Final = "others"
"""Stands for all peers, or filters, beyond the bound."""

PEERS_MAX: Final = 256
"""Most distinct refusals, and most distinct reads of the audit log, that are counted in one minute."""

_EVERY_S: Final = 60.0
# Refusals of one kind in a minute, beyond which a peer is asked to wait.
_PATIENCE: Final = 20


class _Kind(NamedTuple):
    """The key under which refusals or reads are counted together."""

    type: EventType
    principal: str
    peer: str = ""
    reason: str = ""
    method: str = ""
    """For reads only: refusals store their first request's."""
    filter: str = ""


@dataclass(slots=True)
class _Tally:
    first_unix_ms: int
    facts: dict[str, str]
    """The request id of the first."""
    count: int = 0
    """Those not in the audit log yet."""
    events: int = 0
    """Events that the reads returned."""
    from_unix_ms: int = 0
    """The earliest start of the reads; 0: the beginning of the log."""
    to_unix_ms: int = 0
    """The latest end of the reads, exclusive; 0: the end of the log."""

    def add(self, events: int, from_unix_ms: int, to_unix_ms: int) -> None:
        """Count one more read with its time span."""
        if not self.count:
            self.from_unix_ms, self.to_unix_ms = from_unix_ms, to_unix_ms
        self.from_unix_ms = min(self.from_unix_ms, from_unix_ms)
        # 0 means the end of the log, which is later than any moment.
        self.to_unix_ms = max(self.to_unix_ms, to_unix_ms) if self.to_unix_ms and to_unix_ms else 0
        self.count, self.events = self.count + 1, self.events + events


class AccessTrace:
    """Implements `AccessObserver`; all methods run on the loop's thread. Close it before the audit log."""

    def __init__(self, audit: AuditLog, metrics: Metrics, log: FilteringBoundLogger, clock: Clock) -> None:
        self._audit = audit
        self._refused = metrics.family(names.ACCESS_REFUSED)
        self._log = log
        self._clock = clock
        self._refusals: dict[_Kind, _Tally] = {}
        self._reads: dict[_Kind, _Tally] = {}
        self._timer: asyncio.TimerHandle | None = None

    def count_refusal(self, peer: str, method: str, reason: str, *, principal: str = "", key_id: str = "") -> float:
        """Count a refusal; return the seconds that the peer should wait.

        The first of a minute is logged, and all of it becomes one event.
        """
        # By reason only: with a label for each peer, unauthenticated callers could create any number of series.
        self._refused.labels(reason).inc()
        type = EventType.AUTH_FAILED if reason.startswith("CREDENTIAL_") else EventType.ROLE_REFUSED
        kind = _Kind(type, principal, peer, reason)
        if kind not in self._refusals and len(self._refusals) >= PEERS_MAX:
            kind = kind._replace(peer=OTHERS)  # A principal is never hidden among unauthenticated peers.
        counts = self._refusals.get(kind)
        if counts is None:
            facts = {"method": method, "key_id": key_id} if key_id else {"method": method}
            counts = self._refusals[kind] = self._new(facts)
            self._log.warning(
                names.LOG_ACCESS_REFUSED, peer=kind.peer, reason=reason, principal=principal, rpc=method, key_id=key_id
            )
        counts.count += 1
        is_worn = counts.count > _PATIENCE and type is EventType.AUTH_FAILED and kind.peer != OTHERS
        return _EVERY_S if is_worn else 0.0

    async def audit_read(
        self, principal: str, method: str, where: str, events: int, from_unix_ms: int = 0, to_unix_ms: int = 0
    ) -> None:
        """Record a read; it is on disk when this returns.

        The same read within a minute is counted, and becomes one event at its end: with an event for each page, an
        open-ended query would never reach the end of the log. The times do not distinguish reads, because `toolhub
        audit tail` reads ever longer spans back. When the log takes no event it may still be read, because an operator
        needs it then; the event follows when the log recovers.
        """
        kind = _Kind(EventType.AUDIT_READ, principal, method=method, filter=where)
        # Filters are chosen by the reader, and so need a bound as peers do.
        if kind not in self._reads and len(self._reads) >= PEERS_MAX:
            kind = kind._replace(filter=OTHERS)
        counts = self._reads.get(kind)
        if counts is not None:
            counts.add(events, from_unix_ms, to_unix_ms)
            return
        # Added before the event is awaited: a concurrent second page is counted, not written.
        counts = self._reads[kind] = self._new({})
        first = _Tally(counts.first_unix_ms, counts.facts, 1, events, from_unix_ms, to_unix_ms)
        try:
            await self._audit.append_durably(self._event(kind, first))
        except ToolFailure:
            self._log.error(names.LOG_ACCESS_UNRECORDED, type=kind.type.value, principal=principal, count=1)
            counts.add(events, from_unix_ms, to_unix_ms)

    def flush(self) -> None:
        """Write one event for each kind of refusal or read that was counted; each minute, and at the end.

        Counts that the audit log does not accept are kept.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Counts that the log has accepted restart from zero, so that a peer's next refusal is logged again.
        self._refusals, self._reads = self._unwritten(self._refusals), self._unwritten(self._reads)
        kept = [*self._refusals.values(), *self._reads.values()]
        if kept:
            self._log.error(names.LOG_ACCESS_UNRECORDED, count=sum(counts.count for counts in kept))
            self._start_minute()

    def close(self) -> None:
        self.flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _new(self, facts: dict[str, str]) -> _Tally:
        if self._timer is None:
            self._start_minute()
        return _Tally(self._clock.unix_ms(), facts)

    def _start_minute(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self.flush)

    def _unwritten(self, tallies: dict[_Kind, _Tally]) -> dict[_Kind, _Tally]:
        unwritten: dict[_Kind, _Tally] = {}
        for kind, counts in tallies.items():
            if not counts.count:
                continue
            try:
                self._audit.append(self._event(kind, counts))
            except ToolFailure:
                unwritten[kind] = counts
        return unwritten

    def _event(self, kind: _Kind, counts: _Tally) -> Event:
        """Return the event with the time of writing, because a reader who continues from a moment must not miss it."""
        is_read = kind.type is EventType.AUDIT_READ
        if is_read:
            attributes = {"method": kind.method, "filter": kind.filter, "events": str(counts.events)}
            times = {"from_unix_ms": counts.from_unix_ms, "to_unix_ms": counts.to_unix_ms}
            attributes |= {name: str(at) for name, at in times.items() if at}
        else:
            attributes = {"peer": kind.peer, "reason": kind.reason}
        attributes |= counts.facts | {"count": str(counts.count), "first_unix_ms": str(counts.first_unix_ms)}
        return Event(
            type=kind.type,
            at_unix_ms=self._clock.unix_ms(),
            principal=kind.principal,
            outcome="ok" if is_read else "refused",
            attributes=attributes,
        )
