"""Verification: read every chain from its start, compare it with all checkpoints, report its first bad sequence.

Found: an edited column, a missing, inserted, swapped or moved event, a cut tail, a chain without an attestation, and a
checkpoint file or a database that was cut, edited, replaced by an older one or removed. Not found by this alone: a tail
cut after the last checkpoint of a writer that was killed (at most one checkpoint interval; none after a clean end), and
database and file rolled back together to one earlier moment; `witnesses` (lines kept elsewhere) find the latter.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from toolhub_service.domain.event import ChainFault, Verification
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.stores.audit.chain import GENESIS, bytes_to_seal, parse
from toolhub_service.stores.audit.checkpoint import (
    ADOPT,
    CLOSE,
    OPEN,
    PRUNE,
    Checkpoint,
    CheckpointFile,
    parse_line,
    read_lines,
)
from toolhub_service.stores.audit.events import EventStore, EventTable
from toolhub_service.stores.audit.keyring import Keyring
from toolhub_service.stores.audit.sqlite import SqliteEvents


def verify_log(
    database: Path,
    checkpoints: Path,
    keyring: Keyring,
    *,
    witnesses: Iterable[str] = (),
    own: tuple[str, int, str] | None = None,
) -> Verification:
    """Run `verify_events` on a database file."""
    return verify_events(SqliteEvents(database), checkpoints, keyring, witnesses=witnesses, own=own)


def verify_events(
    events: EventStore,
    checkpoints: Path,
    keyring: Keyring,
    *,
    witnesses: Iterable[str] = (),
    own: tuple[str, int, str] | None = None,
) -> Verification:
    """Check the whole log; never raises for a damaged one. May run while others write.

    `witnesses` are signed checkpoint lines kept elsewhere; `own` is the state of a running writer: (writer, count,
    head).
    """
    claims = Claims(keyring)
    claims.add_file(read_lines(checkpoints))  # Before the events, which thus include all that it attests.
    for line in witnesses:
        claims.add_witness(line)
    if own is not None:
        claims.add(*own)
    chains = _Chains(keyring, claims)
    if events.exists():
        try:
            _walk(events, checkpoints, claims, chains)
        except events.damage as error:
            chains.unreadable(str(error))
    chains.finish()
    faults = sorted({*claims.faults, *chains.faults}, key=lambda fault: (fault.writer, fault.sequence, fault.reason))
    first = {fault.writer: fault for fault in reversed(faults)}
    return Verification(chains.events, len(chains.seen), tuple(first[writer] for writer in sorted(first)))


def _walk(events: EventStore, checkpoints: Path, claims: Claims, chains: _Chains) -> None:
    with events.snapshot() as log:
        copies = log.copies()
        lines = read_lines(checkpoints)  # Again: it may have grown before the snapshot was taken.
        claims.add_news(lines)
        claims.compare_copies(copies, lines)
        claims.add_foreign(log.foreign())
        for row in log.rows():
            chains.check(row)
        for problem in log.problems():
            claims.faults.append(ChainFault("", 0, f"the database is damaged: {excerpt(problem, 200)}"))


def fault_of(row: tuple[Any, ...], expected: int, head: str, keyring: Keyring) -> str:
    """Return what is wrong with the event that should be number `expected` after the tag `head`, or an empty text."""
    writer, sequence, at, kind, principal, tool, call_id, request_id, body, previous, tag, key_id = row
    if not all(isinstance(text, str) for text in (writer, body, previous, tag, key_id)):
        return "a column was changed"
    if sequence != expected:
        return f"event {expected} is missing"
    if previous != head:
        return "the tag of the event before does not fit"
    mac = keyring.chain(key_id)
    if mac is None:
        return "the key it was sealed with is unknown"
    data = body.encode("utf-8", "surrogateescape")
    if not mac.fits(bytes_to_seal(previous, writer, sequence, key_id, data), tag):
        return "the tag does not fit the event"
    event = parse(data)
    named = (event.at_unix_ms, event.type.value, event.principal, event.tool, event.call_id, event.request_id)
    return "" if named == (at, kind, principal, tool, call_id, request_id) else "a column was changed"


class Claims:
    """What checkpoints say each chain must hold, and the faults of the checkpoints themselves."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self.heads: dict[str, dict[int, str]] = {}
        """By writer: the tag of its chain after that many events."""
        self.pruned: dict[str, tuple[int, str]] = {}
        self.faults: list[ChainFault] = []
        self._lines: set[bytes] = set()

    def add(self, writer: str, count: int, head: str) -> None:
        self.heads.setdefault(writer, {}).setdefault(count, head)

    def count(self, writer: str) -> int:
        """Return the highest number of events ever attested; 0 when there were none."""
        return max(self.heads.get(writer, {}), default=0)

    def add_file(self, lines: list[bytes], *, is_whole: bool = True) -> None:
        """Add every genuine line; record where the file itself was tampered with.

        `is_whole` False: the lines are its end, so that nothing is known of what is before the first.
        """
        number, previous = 0, GENESIS
        self._lines = set(lines)
        for line in lines:
            checkpoint = parse_line(line, self._keyring)
            if checkpoint is None:
                self._blame(_claimed_writer(line), f"line {number + 1} of the checkpoint file is not genuine")
                number += 1
                continue
            is_begin = not (is_whole or number)
            if not is_begin and (checkpoint.number, checkpoint.previous) != (number + 1, previous):
                self._blame(checkpoint.writer, f"the checkpoint file was changed before line {checkpoint.number}")
            number, previous = checkpoint.number, checkpoint.mac
            self._take(checkpoint)

    def add_news(self, lines: list[bytes]) -> None:
        """Add chains that were opened, and ends that were pruned, since the file was first read."""
        for line in lines:
            checkpoint = parse_line(line, self._keyring) if line not in self._lines else None
            if checkpoint is not None and checkpoint.kind in {OPEN, PRUNE}:
                self._take(checkpoint)

    def add_witness(self, line: str) -> None:
        checkpoint = parse_line(line, self._keyring)
        if checkpoint is None:
            self._blame("", "a witness is not genuine")
        else:
            self._take(checkpoint)

    def compare_copies(self, copies: list[tuple[Any, Any]], lines: list[bytes]) -> None:
        """Record a fault for each line that is in the database but not in the file."""
        in_file = set(lines)
        for number, line in copies:
            data = line.encode("utf-8", "surrogateescape") if isinstance(line, str) else b""
            checkpoint = parse_line(data, self._keyring)
            if checkpoint is None or checkpoint.number != number:
                self._blame(_claimed_writer(data), f"the copy of checkpoint {number} was changed")
            elif data not in in_file:
                self._blame(
                    checkpoint.writer, f"checkpoint {number} is missing: the checkpoint file was cut or is older"
                )
                self._take(checkpoint)

    def add_foreign(self, lines: list[Any]) -> None:
        """Add what hubs on other machines have attested; only their own files can show that lines were removed."""
        for line in lines:
            data = line.encode("utf-8", "surrogateescape") if isinstance(line, str) else b""
            checkpoint = parse_line(data, self._keyring)
            if checkpoint is None:
                self._blame(_claimed_writer(data), "the copy of another machine's checkpoint was changed")
            else:
                self._take(checkpoint)

    def _take(self, checkpoint: Checkpoint) -> None:
        self.add(checkpoint.writer, checkpoint.count, checkpoint.head)
        if checkpoint.kind == PRUNE and checkpoint.count > self.pruned.get(checkpoint.writer, (0, ""))[0]:
            self.pruned[checkpoint.writer] = (checkpoint.count, checkpoint.head)

    def _blame(self, writer: str, reason: str) -> None:
        self.faults.append(ChainFault(writer, self.count(writer) + 1, reason))


class _Chains:
    """Checks all events, one writer after the other."""

    def __init__(self, keyring: Keyring, claims: Claims) -> None:
        self._keyring = keyring
        self._claims = claims
        self.faults: list[ChainFault] = []
        self.seen: dict[Any, int] = {}
        """The last good sequence by writer."""
        self.events = 0
        self._head = ""
        self._writer: Any = None
        self._agreed = 0
        self._faulty: set[Any] = set()

    def check(self, row: tuple[Any, ...]) -> None:
        self.events += 1
        writer, sequence = row[0], row[1]
        if writer not in self.seen:
            self._begin(writer, row)
        if writer in self._faulty:
            return
        expected = self.seen[writer] + 1
        reason = fault_of(row, expected, self._head, self._keyring)
        if not reason:
            claim = self._claims.heads.get(writer, {}).get(sequence)
            if claim is not None and claim != row[10]:
                expected, reason = self._agreed + 1, f"checkpoint at {sequence} attests another event"
            elif claim is not None:
                self._agreed = sequence
        if reason:
            self._blame(writer, min(expected, sequence) if isinstance(sequence, int) else expected, reason)
        else:
            self.seen[writer], self._head = sequence, row[10]

    def _begin(self, writer: Any, row: tuple[Any, ...]) -> None:
        """Start a chain.

        It begins at 1 (also when a prune was attested but did not finish), or anywhere up to one past the end of what
        was pruned.
        """
        pruned, head = self._claims.pruned.get(writer, (0, GENESIS))
        sequence, previous = row[1], row[9]
        if sequence == 1:
            self.seen[writer], self._head = 0, GENESIS
        elif isinstance(sequence, int) and 1 < sequence <= pruned:
            self.seen[writer], self._head = sequence - 1, previous  # the event's own tag covers it, so it is trusted
        else:
            self.seen[writer], self._head = pruned, head
        self._agreed = self.seen[writer]

    def unreadable(self, reason: str) -> None:
        """Record that SQLite cannot continue, or found its structure damaged."""
        writer = next(reversed(self.seen), "")
        self._blame(writer, self.seen.get(writer, 0) + 1, f"the database is damaged: {excerpt(reason, 200)}")

    def finish(self) -> None:
        """Compare the ends of all chains with what was attested."""
        for writer in list(self.seen):
            if writer not in self._faulty and writer not in self._claims.heads:
                self._blame(
                    writer, self.seen[writer] + 1, "no checkpoint attests this chain: its end may have been cut"
                )
        for writer in self._claims.heads:
            end = max(self.seen.get(writer, 0), self._claims.pruned.get(writer, (0, ""))[0])
            if writer not in self._faulty and end < self._claims.count(writer):
                self._blame(
                    writer, end + 1, f"events after {end} are missing; {self._claims.count(writer)} were attested"
                )

    def _blame(self, writer: Any, sequence: int, reason: str) -> None:
        self._faulty.add(writer)
        self.faults.append(ChainFault(str(writer), sequence, reason))


def _claimed_writer(line: bytes) -> str:
    """Return the writer that a damaged line seems to name; only for the report."""
    _, _, rest = line.partition(b'"writer":"')
    return rest.partition(b'"')[0].decode("utf-8", "replace")


# Attesting chains whose writers are gone.


def adopt(table: EventTable, path: Path, file: CheckpointFile, keyring: Keyring) -> list[str]:
    """Check and attest the events after each chain's last checkpoint; return the writers that did not close theirs.

    A chain with a fault, or without any checkpoint, is left for `verify` to report: attesting it would legitimise a
    forgery.
    """
    last: dict[str, Checkpoint] = {}
    for line in read_lines(path):
        checkpoint = parse_line(line, keyring)
        if checkpoint is not None and checkpoint.count >= getattr(last.get(checkpoint.writer), "count", 0):
            last[checkpoint.writer] = checkpoint
    for writer, count in table.ends():
        checkpoint = last.get(writer)
        if checkpoint is not None and isinstance(count, int) and count > checkpoint.count:
            _adopt_one(table, file, keyring, checkpoint)
    return [writer for writer, checkpoint in last.items() if checkpoint.kind != CLOSE]


def _adopt_one(table: EventTable, file: CheckpointFile, keyring: Keyring, last: Checkpoint) -> None:
    count, head = last.count, last.head
    for row in table.beyond(last.writer, last.count):
        if fault_of(row, count + 1, head, keyring):
            return
        count, head = row[1], row[10]
    signed = file.append(ADOPT, last.writer, count, head)
    table.keep_copy(signed.number, signed.line())


def attest_events(lines: Iterable[bytes], keyring: Keyring) -> bool:
    """Return whether genuine checkpoint lines attest events that were not pruned."""
    held: dict[str, int] = {}
    pruned: dict[str, int] = {}
    for line in lines:
        if (checkpoint := parse_line(line, keyring)) is not None:
            counts = pruned if checkpoint.kind == PRUNE else held
            counts[checkpoint.writer] = max(checkpoint.count, counts.get(checkpoint.writer, 0))
    return any(count > pruned.get(writer, 0) for writer, count in held.items())
