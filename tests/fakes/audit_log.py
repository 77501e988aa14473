"""An audit log in memory: chained like the real one, gone with the process."""

from __future__ import annotations

from collections.abc import Sequence

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.event import ChainedEvent, ChainFault, Event, EventFilter, Verification
from toolhub_service.guards.secrets import Redactor
from toolhub_service.stores.audit.chain import GENESIS, Chain, bytes_to_seal, canonical
from toolhub_service.stores.audit.events import Tail, matches
from toolhub_service.stores.audit.keyring import Keyring
from toolhub_service.stores.audit.presentation import encodable, presentable


class MemoryAuditLog:
    """Implements `AuditLog`. `broken` makes every append fail, as a full disk does; `events` may be tampered with."""

    def __init__(self, redactor: Redactor | None = None, *, writer: str = "memory", tail_limit: int = 1_000) -> None:
        self._redactor = redactor or Redactor()
        self._keyring = Keyring([b"\1" * 32])
        self._chain = Chain(writer, self._keyring)
        self._tails: set[Tail] = set()
        self._tail_limit = tail_limit
        self.events: list[ChainedEvent] = []
        self.broken = False

    def append(self, event: Event) -> None:
        if self.broken:
            raise refuse(ErrorKind.IO_ERROR, "The audit log cannot be written.", component="audit", cause="disk")
        event = encodable(presentable(event, self._redactor))
        sequence, previous, tag = self._chain.add(canonical(event))
        chained = ChainedEvent(event, self._chain.writer, sequence, previous, tag, self._chain.key_id)
        self.events.append(chained)
        for tail in self._tails:
            tail.offer([chained])

    async def append_durably(self, event: Event) -> None:
        self.append(event)

    async def ready(self) -> None:
        if self.broken:
            raise refuse(ErrorKind.IO_ERROR, "The audit log cannot be written.", component="audit", cause="disk")

    async def read(
        self, where: EventFilter, *, after: tuple[int, str, int] | None, limit: int
    ) -> Sequence[ChainedEvent]:
        found = sorted((event for event in self.events if matches(where, event)), key=_place)
        return [event for event in found if after is None or _place(event) > after][: max(0, limit)]

    def tail(self, where: EventFilter) -> Tail:
        tail = Tail(where, 0, closed=self._tails.discard, limit=self._tail_limit)
        self._tails.add(tail)
        return tail

    async def verify(self) -> Verification:
        mac = self._keyring.chain()
        assert mac is not None
        head = GENESIS
        for expected, event in enumerate(self.events, start=1):
            message = bytes_to_seal(head, event.writer, expected, event.key_id, canonical(event.event))
            if event.sequence != expected or event.previous_mac != head or not mac.fits(message, event.mac):
                fault = ChainFault(event.writer, expected, "the tag does not fit the event")
                return Verification(len(self.events), 1, (fault,))
            head = event.mac
        return Verification(len(self.events), 1 if self.events else 0)


def _place(event: ChainedEvent) -> tuple[int, str, int]:
    return (event.event.at_unix_ms, event.writer, event.sequence)
