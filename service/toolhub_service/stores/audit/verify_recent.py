"""Verification of the end of a log in bounded time, for commands that may not take as long as the whole log is.

A log with few events is verified whole. Of a longer one the newest events are: each with its tag and its place in its
chain, which begins within the log and so is trusted from there on; then the ends of all chains against the newest
checkpoints, and those against their copies in the database. Changes to older events are not found: `RecentVerified`
says how far it looked, and whoever shows it must say so, too.
"""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from toolhub_service.domain.event import ChainFault, Verification
from toolhub_service.stores.audit.keyring import Keyring
from toolhub_service.stores.audit.sqlite import SqliteEvents
from toolhub_service.stores.audit.verify import Claims, fault_of, verify_events

EVENTS: Final = 10_000
"""A quarter of a second on one core."""
_LINES_BYTES: Final = 2 * 1024 * 1024
"""Some 5,000 checkpoints."""


class RecentVerified(NamedTuple):
    verification: Verification
    are_all: bool
    """Whether every event and checkpoint was verified, as `toolhub audit verify` does."""


def verify_recent(
    events: SqliteEvents, checkpoints: Path, keyring: Keyring, *, limit: int = EVENTS, lines_bytes: int = _LINES_BYTES
) -> RecentVerified:
    """Verify a log that others may write meanwhile. Raises `events.errors` when it cannot be read.

    `limit`: of events; `lines_bytes`: of the checkpoint file that is read.
    """
    lines, are_all_lines = _last_lines(checkpoints, lines_bytes)
    if are_all_lines and not events.has_more_than(limit):
        return RecentVerified(verify_events(events, checkpoints, keyring), are_all=True)
    claims = Claims(keyring)
    claims.add_file(lines, is_whole=are_all_lines)
    faults: dict[str, ChainFault] = {}
    with events.snapshot() as log:
        later, _ = _last_lines(checkpoints, lines_bytes)  # again: it may have grown before the snapshot was taken
        claims.add_news(later)
        claims.compare_copies(log.last_copies(len(lines)), [*lines, *later])
        rows = log.last_rows(limit)
        ends: dict[Any, tuple[int, str]] = {}
        for writer, chain in groupby(rows, key=lambda row: row[0]):
            ends[writer] = _check_chain(list(chain), claims, keyring, faults)
        for writer, sequence, tag in log.ends():
            ends.setdefault(writer, (sequence, tag))
        for writer in ends if are_all_lines else ():
            if writer not in claims.heads:
                reason = "no checkpoint attests this chain: its end may have been cut"
                faults.setdefault(str(writer), ChainFault(str(writer), ends[writer][0] + 1, reason))
        for writer in claims.heads:
            _compare_end(writer, ends.get(writer, (0, "")), claims, log.tag_of, faults)
    for fault in claims.faults:
        faults.setdefault(fault.writer, fault)
    found = tuple(faults[writer] for writer in sorted(faults))
    return RecentVerified(Verification(len(rows), len({row[0] for row in rows}), found), are_all=False)


def _check_chain(
    chain: list[tuple[Any, ...]], claims: Claims, keyring: Keyring, faults: dict[str, ChainFault]
) -> tuple[int, str]:
    """Return the last good sequence and tag of one chain's newest events; note its first fault."""
    writer, first, head = chain[0][0], chain[0][1], chain[0][9]
    if not isinstance(first, int):
        faults[str(writer)] = ChainFault(str(writer), 1, "a column was changed")
        return 0, ""
    sequence = first - 1
    attested = claims.heads.get(writer, {})
    for row in chain:
        reason = fault_of(row, sequence + 1, head, keyring)
        if not reason and attested.get(row[1], row[10]) != row[10]:
            reason = f"checkpoint at {row[1]} attests another event"
        if reason:
            faults[str(writer)] = ChainFault(str(writer), sequence + 1, reason)
            break
        sequence, head = row[1], row[10]
    return sequence, head


def _compare_end(writer: str, end: tuple[int, str], claims: Claims, tag_of: Any, faults: dict[str, ChainFault]) -> None:
    """Note a chain that ends before what was attested of it, or with another event."""
    count, (pruned, _) = claims.count(writer), claims.pruned.get(writer, (0, ""))
    if writer in faults or count <= pruned:
        return
    if end[0] < count:
        reason = f"events after {end[0]} are missing; {count} were attested"
        faults[writer] = ChainFault(writer, end[0] + 1, reason)
    elif tag_of(writer, count) != claims.heads[writer][count]:
        faults[writer] = ChainFault(writer, count, f"checkpoint at {count} attests another event")


def _last_lines(path: Path, limit_bytes: int) -> tuple[list[bytes], bool]:
    """Return the complete lines at the end of the file, and whether they are all; none when it is missing."""
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            begin = max(0, size_bytes - limit_bytes)
            file.seek(begin)
            data = file.read(limit_bytes)
    except FileNotFoundError:
        return [], True
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return (lines, True) if begin == 0 else (lines[1:], False)  # the first of them was cut
