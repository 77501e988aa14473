"""Where chained events lie: what the audit log needs of a database, and no more.

The chain, its key, the checkpoints and the verification are the same wherever the events are; a store keeps rows and
gives them back. All of it is called from threads, never on the event loop, but for `last_row`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeAlias

from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.event import EventFilter

Row: TypeAlias = tuple[str, int, int, str, str, str, str, str, str, str, str, str]
"""The columns of `COLUMNS`, in their order."""

COLUMNS: Final = (
    "writer, sequence, at_unix_ms, type, principal, tool, call_id, request_id, body, previous_mac, mac, key_id"
)


_REMEDY: Final = (
    "Calls are refused until it is as it was. Keep a copy of what is there, restore the log from a backup, and run "
    "`toolhub audit verify`; where it cannot be had back, `toolhub audit begin` begins a new log, with the hub stopped."
)


def tampered(what: str) -> HubFailure:
    """`what` was found wrong with the log while, or before, a hub writes it: for the operator, never for a caller."""
    return HubFailure(HubStatus.FAILED_PRECONDITION, "AUDIT_LOG_CHANGED", f"{what}. {_REMEDY}")


class EventTable(Protocol):
    """An open connection that writes; used by one thread. Each method raises one of `EventStore.errors`."""

    def is_empty(self) -> bool: ...

    def insert(self, rows: list[Row]) -> None:
        """Durable when it returns, all or nothing. Rows that an earlier try has written already are left alone."""
        ...

    def check(self, writer: str, count: int, head: str) -> None:
        """Raises HubFailure AUDIT_LOG_CHANGED where the tables, or the writer's chain of so many events with that last
        tag, are not what they were. Cheap, and so not what `verify` is: an edit in the middle of a chain passes."""
        ...

    def announce(self) -> None:
        """Wake the watchers of other processes; nothing where they look by themselves."""
        ...

    def tidy(self) -> None:
        """What the store has to do now and then and nobody should wait for. May do nothing; never fails."""
        ...

    def keep_copy(self, number: int, line: str) -> None:
        """Remember a checkpoint beside the events, so that a checkpoint file that was cut is noticed."""
        ...

    def ends(self) -> Sequence[tuple[Any, Any]]:
        """Each writer with its highest sequence."""
        ...

    def beyond(self, writer: str, sequence: int) -> Iterable[tuple[Any, ...]]:
        """The writer's rows with a higher sequence, in order."""
        ...

    def old_ends(self, before_unix_ms: int) -> Sequence[tuple[str, int, str]]:
        """Writer, sequence and tag of the last event of each chain's start that is all older than that."""
        ...

    def remove(self, writer: str, sequence: int) -> int:
        """Delete the writer's events up to that one; how many there were."""
        ...

    def news(self, after_row: int, limit: int) -> Sequence[tuple[Any, ...]]:
        """What was committed since by any process, in the order of commits: the row's number, then its columns."""
        ...

    def close(self) -> None: ...


class EventSnapshot(Protocol):
    """The whole log at one moment, for verification. Whatever is read may have been tampered with."""

    def copies(self) -> list[tuple[Any, Any]]:
        """Number and line of every checkpoint that is kept beside the events and belongs to this checkpoint file."""
        ...

    def foreign(self) -> list[Any]:
        """Lines of checkpoints that other files hold: those of hubs on other machines that share the database."""
        ...

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Every row by writer and sequence."""
        ...

    def problems(self) -> Iterator[str]:
        """What the database itself finds wrong with its structure."""
        ...


class EventStore(Protocol):
    errors: tuple[type[Exception], ...]
    """What opening and writing raise."""
    damage: tuple[type[Exception], ...]
    """What it raises when it can be reached and its content is not what it was."""
    poll_s: float
    """How often to look for other processes' events while somebody watches."""

    check_s: float
    """How often a writer looks whether the tables are still what they were."""
    is_made_with_key: bool
    """Whether the events lie beside the key, so that a key without them says that they were removed."""

    def open(self, *, create: bool) -> EventTable:
        """Connect; make the tables only where a log begins (`create`).

        Raises one of `errors`, and HubFailure AUDIT_LOG_CHANGED when tables are missing that must be there.
        """
        ...

    def last_row(self) -> int:
        """Where news begin now. May be called on the event loop."""
        ...

    def page(self, where: EventFilter, after: tuple[int, str, int] | None, limit: int) -> Sequence[tuple[Any, ...]]:
        """Rows in (at_unix_ms, writer, sequence) order after the cursor."""
        ...

    def exists(self) -> bool:
        """Whether there is anything to verify."""
        ...

    def snapshot(self) -> AbstractContextManager[EventSnapshot]: ...
