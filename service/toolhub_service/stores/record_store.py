"""The port under stores of records: a key, a version, columns to find by, and the record itself as bytes.

Each record type declares a `Table`; each backend implements `RecordStore` once, for all of them. Constraints that must
be atomic over several records are declared in the table (`unique`, `shared`, `total`), so that no backend knows the
record types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.call import Owners
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.job import Job, JobFilter
from toolhub_service.domain.pin import Pin, PinFilter
from toolhub_service.stores.codec import (
    UnreadableRecord,
    decode_approval,
    decode_artifact,
    decode_pin,
    encode_approval,
    encode_artifact,
    encode_pin,
)

R = TypeVar("R")


class BrokenRecord(Exception):
    """One of several records cannot be read, and the caller may not go on with the others."""

    def __init__(self, key: Key) -> None:
        super().__init__("a record cannot be read")
        self.key = key


Row: TypeAlias = Mapping[str, Any]
"""The columns of a record by name: texts and integers."""
Key: TypeAlias = tuple[str, ...]
Place: TypeAlias = tuple[Any, ...]
"""Where a page ended: the values of the table's `order`."""


@dataclass(frozen=True)
class Column(Generic[R]):
    """A text or integer by which records are found, ordered or guarded."""

    name: str
    type: type[str | int]
    value: Callable[[R], str | int] | None = None
    """Computes the value from a record; by default it is the record's attribute of that name."""
    list_name: str = ""
    """For a text by which records are found: names the Redis lists of the records with one value. Never changes."""

    def value_of(self, record: R) -> str | int:
        found: str | int = getattr(record, self.name) if self.value is None else self.value(record)
        return found


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """How the records of one type are stored. One that expires has a column `expires_at_unix_ms`."""

    name: str
    key: tuple[str, ...]
    """The columns that name a record."""
    row: Callable[[R], Row]
    """All columns, the key's first."""
    encode: Callable[[R], bytes]
    decode: Callable[[bytes], R]
    """Decodes a record. Raises UnreadableRecord."""
    order: tuple[str, ...]
    """Columns by which pages are ordered, newest first; the key's are the last of them."""
    has_version: bool = True
    """Whether rows have `version`, by which `put` compares and sets."""
    ends: bool = False
    """Whether rows have `is_open`: only open ones expire, and only the others are forgotten."""
    unique: str = ""
    """A column in which two open records never have the same value."""
    shared: str = ""
    """A column of which several records may share a value: see `RecordStore.remove`."""
    total: tuple[str, str] = ("", "")
    """Records are counted by the first column, and the second is summed."""
    columns: tuple[Column[R], ...] = ()
    """Of a table whose stored form is derived (`declared_table.py`); empty where it has migrations and a layout."""

    def key_of(self, row: Row) -> Key:
        return tuple(row[column] for column in self.key)

    def read(self, kept: Kept) -> R:
        """Decode a record. Raises UnreadableRecord, also for another key or version than the store names."""
        record = self.decode(kept.record)
        # Bytes of another approval or pin, written by anyone with access to the store, would be a decision nobody made.
        row = self.row(record)
        if (self.key_of(row), row.get("version", kept.version)) != (kept.key, kept.version):
            raise UnreadableRecord(f"a record of {self.name} that lies in the place of another")
        return record

    def read_all(self, found: Iterable[Kept]) -> list[R]:
        """Decode all records. Raises BrokenRecord."""
        records: list[R] = []
        for kept in found:
            try:
                records.append(self.read(kept))
            except UnreadableRecord:
                raise BrokenRecord(kept.key) from None
        return records


class Kept(NamedTuple):
    """A record as stored, with its key and version from the store's own columns."""

    key: Key
    version: int
    """0 when the table has no versions."""
    record: bytes


class Where(msgspec.Struct, frozen=True):
    """Conditions on columns. Empty values match everything; all conditions are joined by AND."""

    equals: Mapping[str, str] = msgspec.field(default_factory=dict)
    among: Mapping[str, Collection[str]] = msgspec.field(default_factory=dict)
    like: Mapping[str, str] = msgspec.field(default_factory=dict)
    """A name or a glob (fnmatch, case-sensitive)."""
    checked: Mapping[str, Owners | None] = msgspec.field(default_factory=dict)

    def matches(self, row: Row) -> bool:
        # Loops, because a page checks many rows: `all` over generators takes three times as long.
        for column, wanted in self.equals.items():
            if wanted and row[column] != wanted:
                return False
        for column, values in self.among.items():
            if values and row[column] not in values:
                return False
        for column, glob in self.like.items():
            if glob and not fnmatchcase(row[column], glob):
                return False
        for column, passes in self.checked.items():  # noqa: SIM110 — the fourth of four
            if passes is not None and not passes(row[column]):
                return False
        return True


class RecordStore(Protocol[R]):
    """Records of one table, in a store that others may share. Changes are durable when a method returns.

    Each raises ToolFailure TOOL_UNAVAILABLE when the store cannot be reached.
    """

    async def create(self, record: R) -> R | None:
        """Store a new record. Return None when it was stored, else the open record with the same `unique` value."""

    async def put(self, records: Sequence[R]) -> bool:
        """Replace those of the version before, all or none; version 1 takes a free key.

        False when any was changed first.
        """

    async def get(self, key: Key) -> R | None: ...

    async def find(self, column: str, value: str) -> Sequence[R]:
        """Return all records that have the value, as of one moment. Raises BrokenRecord when one cannot be read."""

    async def page(self, where: Where, *, after: Place | None, limit: int) -> tuple[Sequence[R], int]:
        """Return readable records, newest first and after the cursor, and how many match in all."""

    async def read_expired(self, now_unix_ms: int, limit: int) -> Sequence[R]:
        """Return open records, or any if the table has no `is_open`, that have expired by now: oldest first."""

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        """Remove the records that are not open and expired before then; return how many were removed."""

    async def remove(self, key: Key, version: int = 0) -> bool:
        """Remove one record, of any or that version. True when it was there and no other has its `shared` value."""

    async def remove_all(self, column: str, value: str) -> int:
        """Remove the records that have the value; return how many there were."""

    async def totals(self, value: str) -> tuple[int, int]:
        """Return count and sum (`Table.total`) of the records that have the value."""

    async def all_totals(self) -> Sequence[tuple[str, int, int]]:
        """Return the same for each value that any record has."""

    async def revision(self) -> int:
        """Return a number that rises with every `put`, `remove` and `remove_all`, by any process, that changed
        something."""

    def listen(self, on_event: Callable[[R | None], None]) -> None:
        """Before `start`: call `on_event`, on the loop, with each record that any process changes; None after a gap."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


# The record types: approvals, records of artifacts and pins.

OPEN_STATES: Final = (ApprovalState.PENDING, ApprovalState.APPROVED)


def _approval_row(approval: Approval) -> dict[str, Any]:
    binding = approval.binding
    return {
        "approval_id": approval.approval_id,
        "version": approval.version,
        "state": approval.state.value,
        "is_open": approval.state in OPEN_STATES,
        "binding": json.dumps(binding.parts),
        "principal": binding.principal,
        "tool": binding.tool,
        "requested_at_unix_ms": approval.requested_at_unix_ms,
        "expires_at_unix_ms": approval.expires_at_unix_ms,
    }


def _artifact_row(artifact: Artifact) -> dict[str, Any]:
    return {
        "artifact_id": artifact.artifact_id,
        "sha256": artifact.sha256,
        "principal": artifact.principal,
        "size_bytes": artifact.size_bytes,
        "expires_at_unix_ms": artifact.expires_at_unix_ms,
    }


def _pin_row(pin: Pin) -> dict[str, Any]:
    return {
        "source": pin.source,
        "tool": pin.tool,
        "digest": pin.digest,
        "version": pin.version,
        "state": pin.state.value,
        "seen_at_unix_ms": pin.seen_at_unix_ms,
    }


APPROVALS: Final = Table(
    "approvals",
    ("approval_id",),
    _approval_row,
    encode_approval,
    decode_approval,
    order=("requested_at_unix_ms", "approval_id"),
    ends=True,
    unique="binding",
)
ARTIFACTS: Final = Table(
    "artifacts",
    ("artifact_id",),
    _artifact_row,
    encode_artifact,
    decode_artifact,
    order=("expires_at_unix_ms", "artifact_id"),
    has_version=False,
    shared="sha256",
    total=("principal", "size_bytes"),
)
PINS: Final = Table(
    "pins",
    ("source", "tool", "digest"),
    _pin_row,
    encode_pin,
    decode_pin,
    order=("seen_at_unix_ms", "source", "tool", "digest"),
)


# Each backend stores jobs in parts: changing fields, arguments, history. The search columns are the same for all.


def job_facts(job: Job) -> dict[str, str]:
    """Return the columns that a filter uses."""
    call = job.call
    return {
        "principal": call.principal.id,
        "state": job.status.state.value,
        "tool": call.tool,
        "request_id": call.context.request_id,
        "task_id": call.context.task_id,
    }


def jobs_where(where: JobFilter) -> Where:
    equals = {"principal": where.principal, "request_id": where.request_id, "task_id": where.task_id}
    states, owners = {state.value for state in where.states}, {"principal": where.owners}
    return Where(equals, {"state": states}, {"tool": where.tool}, owners)


class Records(Generic[R]):
    """A record type's store over any `RecordStore`."""

    def __init__(self, records: RecordStore[R]) -> None:
        self._records = records

    async def start(self) -> None:
        await self._records.start()

    async def close(self) -> None:
        await self._records.close()


class Approvals(Records[Approval]):
    """Implements `ApprovalStore`."""

    async def create(self, approval: Approval) -> Approval | None:
        return await self._records.create(approval)

    async def get(self, approval_id: str) -> Approval | None:
        return await self._records.get((approval_id,))

    async def put(self, approval: Approval) -> bool:
        return await self._records.put([approval])

    async def page(
        self, where: ApprovalFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Approval], int]:
        states = {state.value for state in where.states}
        of, owners = {"principal": where.principal}, {"principal": where.owners}
        terms = Where(of, {"state": states}, {"tool": where.tool}, owners)
        return await self._records.page(terms, after=after, limit=limit)

    async def read_expired(self, now_unix_ms: int, limit: int) -> Sequence[Approval]:
        return await self._records.read_expired(now_unix_ms, limit)

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        return await self._records.forget(before_unix_ms, limit)

    def listen(self, on_event: Callable[[Approval | None], None]) -> None:
        self._records.listen(on_event)


class Artifacts(Records[Artifact]):
    """Implements `ArtifactRecords`."""

    async def add(self, artifact: Artifact) -> None:
        await self._records.create(artifact)

    async def get(self, artifact_id: str) -> Artifact | None:
        return await self._records.get((artifact_id,))

    async def read_expired(self, now_unix_ms: int, limit: int) -> Sequence[Artifact]:
        return await self._records.read_expired(now_unix_ms, limit)

    async def page(
        self, principal: str, sha256: str, *, after: tuple[int, str] | None, limit: int, owners: Owners | None = None
    ) -> Sequence[Artifact]:
        where = Where({"principal": principal, "sha256": sha256}, checked={"principal": owners})
        found, _ = await self._records.page(where, after=after, limit=limit)
        return found

    async def remove(self, artifact_id: str) -> bool:
        return await self._records.remove((artifact_id,))

    async def usage(self, principal: str) -> tuple[int, int]:
        return await self._records.totals(principal)

    async def usage_of(self, owners: Owners) -> tuple[int, int]:
        theirs = [totals for value, *totals in await self._records.all_totals() if owners(value)]
        return sum(count for count, _ in theirs), sum(size_bytes for _, size_bytes in theirs)


class Pins(Records[Pin]):
    """Implements `PinStore`. A source's pins are returned whole and under their own names, or the source is blocked."""

    async def of_source(self, source: str) -> Sequence[Pin]:
        """Return the pins of a source. Raises HubFailure FAILED_PRECONDITION when one cannot be read."""
        try:
            return await self._records.find("source", source)
        except BrokenRecord as broken:  # the unreadable one may be a rejection: nothing is inferred from the others
            raise _unreadable(broken.key) from None

    async def put(self, pins: Sequence[Pin]) -> bool:
        if len({pin.key for pin in pins}) < len(pins):
            return False  # the second change to one pin comes too late, and refuses its batch
        return not pins or await self._records.put(pins)

    async def page(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]:
        states = {state.value for state in where.states}
        terms = Where({"source": where.source}, {"state": states}, {"tool": where.tool}, {"source": where.sources})
        return await self._records.page(terms, after=after, limit=limit)

    async def revision(self) -> int:
        return await self._records.revision()

    async def remove(self, pin: Pin) -> bool:
        return await self._records.remove(pin.key, pin.version)

    async def forget_source(self, source: str) -> int:
        return await self._records.remove_all("source", source)


def _unreadable(key: Key) -> HubFailure:
    source, tool, digest = key
    return HubFailure(
        Reason.PIN_UNREADABLE,
        f"What was decided about `{tool}` of source `{source}` cannot be read: its record is damaged, or was "
        "written by a newer hub. No tool of this source is called until the store is restored, the newer hub is "
        "started again, or the pins of this source are forgotten and its tools decided about anew.",
        source=source,
        tool=tool,
        digest=digest,
    )
