"""Verification of events that left the log: lines of an archive (`audit.archive_folder`) or of `audit.export`.

Each line holds the exact text that its tag covers, so that anyone with the key can verify it without the log. Files
come in any order, and lines may be repeated; only the ends of a chain's pieces are kept, so that memory does not grow
with the lines. Checkpoints, or the log that continues where the files end, show a cut end.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from toolhub_service.domain.event import ChainFault, Verification
from toolhub_service.stores.audit.chain import GENESIS, bytes_to_seal, canonical, parse
from toolhub_service.stores.audit.keyring import Keyring
from toolhub_service.stores.audit.verify import Claims

LINE_MAX_BYTES: Final = 4 * 1024 * 1024
_PIECES_MAX: Final = 100_000
"""Limit for the pieces of all chains together; files given in their order make one a chain."""
_FAULTS_MAX: Final = 1_000


class Live(NamedTuple):
    """Where a writer's chain in the log begins now."""

    first: int
    previous_mac: str


@dataclass(frozen=True, slots=True)
class LinesVerified:
    verification: Verification
    repeated: int
    """Lines whose events had been read before."""


class _Line(msgspec.Struct, frozen=True, gc=False):
    writer: str
    sequence: int
    previous_mac: str
    mac: str
    key_id: str
    event: msgspec.Raw


@dataclass(slots=True)
class _Piece:
    """Consecutive events of a chain."""

    first: int
    before: str
    """The tag of the event before the first."""
    last: int
    head: str


class LineChains:
    """Call `take` for every line, then `finish`."""

    def __init__(self, keyring: Keyring, claims: Claims, live: Mapping[str, Live] | None) -> None:
        """`claims` are of checkpoints, possibly none. `live` is the log that continues where the lines end, or None."""
        self._keyring = keyring
        self._claims = claims
        self._live = live
        self._pieces: dict[str, list[_Piece]] = {}
        self._count = 0
        self._events = 0
        self._repeated = 0
        self._faults: dict[str, ChainFault] = {}
        for writer, begins in (live or {}).items():
            claims.add(writer, begins.first - 1, begins.previous_mac)

    def take(self, line: bytes, place: str) -> None:
        """Verify a line; `place` identifies it in messages."""
        try:
            found = msgspec.json.decode(line, type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._blame(
                "", 0, f"{place} is no line of an archive, of audit.export or of `toolhub audit export --as lines`"
            )
            return
        if found.writer in self._faults:
            return
        if reason := self._fault_of(found, line):
            self._blame(found.writer, found.sequence, f"{reason} ({place})")
            return
        self._events += 1
        claim = self._claims.heads.get(found.writer, {}).get(found.sequence)
        if claim is not None and claim != found.mac:
            self._blame(
                found.writer, found.sequence, f"another event stands here in the log or its checkpoints ({place})"
            )
        elif reason := self._place(found):
            self._blame(found.writer, found.sequence, f"{reason} ({place})")

    def too_long(self, place: str) -> None:
        self._blame("", 0, f"{place} is longer than {LINE_MAX_BYTES} bytes")

    def finish(self, *, is_part: bool) -> LinesVerified:
        """Return the result. `is_part`: chains may begin and end elsewhere, but have no gap."""
        for writer, pieces in self._pieces.items():
            self._check_gaps(writer, pieces)
        if not is_part:
            for writer in {*self._pieces, *self._claims.heads, *self._claims.pruned}:
                self._check_ends(writer)
        for fault in self._claims.faults:
            self._blame(fault.writer, fault.sequence, fault.reason)
        faults = tuple(self._faults[writer] for writer in sorted(self._faults))
        chains = Verification(self._events - self._repeated, len(self._pieces), faults)
        return LinesVerified(chains, self._repeated)

    def _fault_of(self, line: _Line, text: bytes) -> str:
        if line.sequence < 1:
            return "there is no such sequence"
        mac = self._keyring.chain(line.key_id)
        if mac is None:
            return "the key it was sealed with is unknown"
        for body in _spellings(line.event):
            if mac.fits(bytes_to_seal(line.previous_mac, line.writer, line.sequence, line.key_id, body), line.mac):
                # Of two members with one name only one is verified, and a reader may show the other.
                is_as_written = body == bytes(line.event) and msgspec.json.encode(line) == text.strip()
                return "" if is_as_written or _names_once(text) else "it has a name twice: readers may show either"
        return "the tag does not fit the event"

    def _place(self, line: _Line) -> str:
        """Add the line to its piece; return why it does not fit, or an empty text."""
        pieces = self._pieces.setdefault(line.writer, [])
        at = bisect_right(pieces, line.sequence, key=lambda piece: piece.first) - 1
        if at >= 0 and line.sequence <= pieces[at].last:
            self._repeated += 1
            is_other = line.sequence == pieces[at].last and line.mac != pieces[at].head
            return "another event stands here, too" if is_other else ""
        if at >= 0 and line.sequence == pieces[at].last + 1:
            piece = pieces[at]
            if line.previous_mac != piece.head:
                return "the tag of the event before does not fit"
            piece.last, piece.head = line.sequence, line.mac
        else:
            at += 1
            pieces.insert(at, _Piece(line.sequence, line.previous_mac, line.sequence, line.mac))
            self._count += 1
            if self._count > _PIECES_MAX:
                return "the files have more gaps than can be remembered: give them in their order"
        return self._merge_adjacent(pieces, at)

    def _merge_adjacent(self, pieces: list[_Piece], at: int) -> str:
        """Merge two adjacent pieces."""
        piece, after = pieces[at], pieces[at + 1] if at + 1 < len(pieces) else None
        if after is None or after.first != piece.last + 1:
            return ""
        if after.before != piece.head:
            return "the tag of the event before does not fit the one after"
        piece.last, piece.head = after.last, after.head
        del pieces[at + 1]
        self._count -= 1
        return ""

    def _check_gaps(self, writer: str, pieces: list[_Piece]) -> None:
        first = pieces[0]
        if first.first == 1 and first.before != GENESIS:
            self._blame(writer, 1, "the chain does not begin here")
        for piece, after in pairwise(pieces):
            missing = f"events {piece.last + 1} to {after.first - 1}"
            self._blame(writer, piece.last + 1, f"{missing} are in none of the files")

    def _check_ends(self, writer: str) -> None:
        """Compare begin and end with what was attested, and with the log that continues."""
        pieces = self._pieces.get(writer)
        begins, ends = (pieces[0].first, pieces[-1].last) if pieces else (0, 0)
        live = (self._live or {}).get(writer)
        needed = live.first - 1 if live is not None else self._claims.count(writer)
        if begins > 1:
            self._blame(writer, 1, f"events 1 to {begins - 1} are in none of the files")
        elif ends < needed:
            where = "in none of the files" + (", nor in the log" if self._live is not None else "")
            self._blame(writer, ends + 1, f"events {ends + 1} to {needed} are {where}")

    def _blame(self, writer: str, sequence: int, reason: str) -> None:
        """Record a fault; only the first of each chain counts."""
        if writer not in self._faults and len(self._faults) < _FAULTS_MAX:
            self._faults[writer] = ChainFault(writer, sequence, reason)


def _names_once(line: bytes) -> bool:
    """Return whether no object of the line has two members with the same name."""

    def check(members: list[tuple[str, object]]) -> None:
        if len({name for name, _ in members}) < len(members):
            raise ValueError

    try:
        json.loads(line, object_pairs_hook=check)
    except (ValueError, RecursionError):
        return False
    return True


def _spellings(event: msgspec.Raw) -> Iterable[bytes]:
    """Yield the text as received and, because JSON may have been re-encoded on the way, its canonical form."""
    yield bytes(event)
    try:
        yield canonical(parse(bytes(event)))
    except (ValueError, TypeError, KeyError, AttributeError):
        return
