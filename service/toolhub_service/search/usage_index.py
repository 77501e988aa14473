"""The past uses of one tenant's tools, as a field of the index that only this tenant's searches see.

A small inverted index over the purposes, ranked by BM25 of its own and added to the score by words: score = share x n /
(n + 2) x sum of idf x tf x (k1 + 1) / (tf + k1 x (1 - b + b x length / mean)), where each use counts half as much a
half-life later, n is how many uses of the tool count, and idf is the lower of the purposes' and the catalog's, so that
a word that occurs everywhere lifts nothing. `share` is small while there are unused tools, so that these can still be
found, and grows to one only as all tools are used.

Against flooding: at most `KEEP` uses of one tool count, at most the `KEEP_OF_AGENT` newest of one agent, and a purpose
once however often it is repeated; an agent that has used up its share is counted again when its oldest use is a day
old, and when there are too many uses, those of the agent with most are dropped. All weights are relative to one moment
(2 ^ (age / half-life)), so that nothing has to be updated as time passes.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from toolhub_service.search.arrays import np
from toolhub_service.search.index import InvertedIndex, Scores, Slots
from toolhub_service.search.query import QueryTerm

if TYPE_CHECKING:
    import numpy.typing as npt

# Maps a list of keys to the index's slots, recomputed only when the index has changed.


class SlotMap:
    """The slots of one owner's keys, in its order; -1 for a key that the index does not have."""

    def __init__(self) -> None:
        self._slots: Slots | None = None
        self._made_for: tuple[InvertedIndex, int, Hashable] | None = None

    def slots(self, index: InvertedIndex, keys: Iterable[str], version: Hashable) -> Slots:
        """`version` differs whenever `keys` do."""
        made_for = (index, index.generation, version)
        if self._slots is None or self._made_for != made_for:
            slots = (index.slot(key) for key in keys)
            self._slots = np.fromiter((-1 if slot is None else slot for slot in slots), np.int64)
            self._made_for = made_for
        return self._slots


KEEP: Final = 30
KEEP_OF_AGENT: Final = 10
K1: Final = 1.0
B: Final = 0.75
REFILL_MS: Final = 24 * 3600 * 1000
CONFIDENT_USES: Final = 2.0
"""With so many uses a tool has half the weight of one with infinitely many."""
PRIOR_TOOLS: Final = 20
"""Tools that are assumed to have had other uses, so that the first real use already counts."""
SHARE_MIN: Final = 0.4

_Column: TypeAlias = "npt.NDArray[np.float64]"


class IndexedUse(NamedTuple):
    agent: str
    terms: tuple[str, ...]
    """Distinct."""
    at_unix_ms: int


class _Counts:
    """The tools used with one term: parallel arrays, numbers of tools ascending."""

    __slots__ = ("tools", "uses", "weights")

    def __init__(self) -> None:
        self.tools = array("q")
        self.weights = array("d")
        self.uses = array("l")

    def add(self, tool: int, weight: float) -> None:
        at = bisect_left(self.tools, tool)
        if at < len(self.tools) and self.tools[at] == tool:
            self.weights[at] += weight
            self.uses[at] += 1
        else:
            self.tools.insert(at, tool)
            self.weights.insert(at, weight)
            self.uses.insert(at, 1)

    def take(self, tool: int, weight: float) -> None:
        at = bisect_left(self.tools, tool)
        self.weights[at] -= weight
        self.uses[at] -= 1
        if not self.uses[at]:
            for column in (self.tools, self.weights, self.uses):
                del column[at]


class _TermUse(NamedTuple):
    """One term of a query that also occurs in uses."""

    wanted: QueryTerm
    counts: _Counts
    factor: float
    """Weight x idf x (k1 + 1)."""


class UsageLookup(NamedTuple):
    """The effect of a tenant's uses on one query. Arrays have an entry for each tool, by its number."""

    term_uses: Sequence[_TermUse]
    faded: float
    """The weight now of a use at the epoch."""
    norms: _Column
    says: _Column
    """How much a tool's uses count in total."""
    numbers: Mapping[str, int]
    slots: Slots
    """The slot in the index; -1: the tool is not in the catalog now."""

    def gains(self) -> tuple[Slots, Scores]:
        """Return the slots of the index that uses affect, each once, and the scores they add."""
        found = np.zeros(len(self.norms), np.float64)
        for use in self.term_uses:
            tools = np.frombuffer(use.counts.tools, np.int64)
            tf = np.frombuffer(use.counts.weights, np.float64) * self.faded
            found[tools] += tf * use.factor / (tf + self.norms[tools])
        found *= self.says
        (spoken,) = np.nonzero((found > 0) & (self.slots >= 0))
        return self.slots[spoken], found[spoken].astype(np.float32)

    def explain(self, tool: str) -> list[tuple[QueryTerm, float]]:
        """Return what each term adds to a tool's score, without terms that add nothing."""
        number = self.numbers.get(tool)
        if number is None:
            return []
        norm, says = float(self.norms[number]), float(self.says[number])
        found = []
        for use in self.term_uses:
            at = bisect_left(use.counts.tools, number)
            if at < len(use.counts.tools) and use.counts.tools[at] == number:
                tf = use.counts.weights[at] * self.faded
                found.append((use.wanted, says * use.factor * tf / (tf + norm)))
        return found


class TenantUsage:
    """The uses of one tenant. `half_life_ms` is when a use counts half; uses older than `forget_ms` are dropped."""

    def __init__(self, now_unix_ms: int, half_life_ms: int, forget_ms: int) -> None:
        self._epoch_ms = now_unix_ms
        self._half_life_ms = half_life_ms
        self._forget_ms = forget_ms
        self._uses: OrderedDict[str, list[IndexedUse]] = OrderedDict()
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._free: list[int] = []
        self._counts: dict[str, _Counts] = {}
        self._weights = array("d")
        self._lengths = array("d")
        self._slot_map = SlotMap()
        self._version = 0
        self.size = 0
        """Number of uses kept."""

    def accepts(self, tool: str, agent: str, at_unix_ms: int) -> bool:
        """Return False when the agent has used up its share for the tool, so that a use need not be analysed."""
        of_agent = [known.at_unix_ms for known in self._uses.get(tool, ()) if known.agent == agent]
        return len(of_agent) < KEEP_OF_AGENT or at_unix_ms - min(of_agent) >= REFILL_MS

    def put(self, tool: str, use: IndexedUse, now_unix_ms: int) -> bool:
        """Learn one use; return False when it does not count: too old, without words, or beyond the agent's share.

        The same terms for the same tool count once, as of the newest time.
        """
        if use.at_unix_ms <= now_unix_ms - self._forget_ms or not use.terms:
            return False
        uses = self._uses.get(tool, [])
        same = next((known for known in uses if known.terms == use.terms), None)
        if same is not None:
            use = use._replace(agent=same.agent, at_unix_ms=max(same.at_unix_ms, use.at_unix_ms))
            self._take(tool, uses, same)
        elif not self._evict_for(tool, uses, use):
            return False
        self._add(tool, use._replace(at_unix_ms=min(use.at_unix_ms, now_unix_ms)))
        return True

    def forget(self, before_unix_ms: int) -> None:
        """Drop the uses that are older."""
        for tool, uses in list(self._uses.items()):
            for known in [known for known in uses if known.at_unix_ms < before_unix_ms]:
                self._take(tool, uses, known)
            if not uses:
                self._drop(tool)

    def forget_oldest_tool(self) -> None:
        """Drop the uses of the tool that was used longest ago."""
        tool, uses = next(iter(self._uses.items()))
        for known in list(uses):
            self._take(tool, uses, known)
        self._drop(tool)

    def lookup(self, query: Sequence[QueryTerm], index: InvertedIndex, now_unix_ms: int) -> UsageLookup:
        """Return the effect of uses on a query; valid until the next use or change of the index."""
        faded = math.exp2((self._epoch_ms - now_unix_ms) / self._half_life_ms)
        lengths = np.frombuffer(self._lengths, np.float64)
        counted = np.frombuffer(self._weights, np.float64) * faded
        norms = K1 * (1.0 - B) + lengths * (K1 * B / (lengths.sum() / max(1, len(self._uses)) or 1.0))
        return UsageLookup(
            term_uses=[
                _TermUse(wanted, counts, self._idf(wanted, counts, index) * (K1 + 1))
                for wanted in query
                if (counts := self._counts.get(wanted.term)) is not None
            ],
            faded=faded,
            norms=norms,
            says=counted / (counted + CONFIDENT_USES) * self._share(index),
            numbers=self._numbers,
            slots=self._slot_map.slots(index, self._names, self._version),
        )

    def _evict_for(self, tool: str, uses: list[IndexedUse], use: IndexedUse) -> bool:
        of_agent = [known for known in uses if known.agent == use.agent]
        if len(of_agent) >= KEEP_OF_AGENT:
            oldest = min(of_agent, key=_age)
            if use.at_unix_ms - oldest.at_unix_ms < REFILL_MS:
                return False
            self._take(tool, uses, oldest)
        elif len(uses) >= KEEP:
            # The agent with the most uses loses one, so that no agent can displace all others.
            ((loudest, _),) = Counter(known.agent for known in uses).most_common(1)
            self._take(tool, uses, min((known for known in uses if known.agent == loudest), key=_age))
        return True

    def _add(self, tool: str, use: IndexedUse) -> None:
        self._uses.setdefault(tool, []).append(use)
        self._uses.move_to_end(tool)
        self.size += 1
        number, weight = self._number(tool), self._weight(use)
        self._weights[number] += weight
        self._lengths[number] += weight * len(use.terms)
        for term in use.terms:
            counts = self._counts.get(term)
            if counts is None:
                counts = self._counts[term] = _Counts()
            counts.add(number, weight)

    def _take(self, tool: str, uses: list[IndexedUse], use: IndexedUse) -> None:
        uses.remove(use)
        self.size -= 1
        number, weight = self._numbers[tool], self._weight(use)
        self._weights[number] -= weight
        self._lengths[number] -= weight * len(use.terms)
        for term in use.terms:
            counts = self._counts[term]
            counts.take(number, weight)
            if not counts.tools:
                del self._counts[term]

    def _number(self, tool: str) -> int:
        number = self._numbers.get(tool)
        if number is None:
            self._version += 1
            if self._free:
                number = self._free.pop()
                self._names[number] = tool
            else:
                number = len(self._names)
                self._names.append(tool)
                self._weights.append(0.0)
                self._lengths.append(0.0)
            self._numbers[tool] = number
        return number

    def _drop(self, tool: str) -> None:
        del self._uses[tool]
        number = self._numbers.pop(tool)
        # Its number is reused for the next tool: otherwise the arrays would grow with each rename of a source.
        self._names[number] = ""
        self._weights[number] = self._lengths[number] = 0.0
        self._free.append(number)
        self._version += 1

    def _weight(self, use: IndexedUse) -> float:
        return math.exp2((use.at_unix_ms - self._epoch_ms) / self._half_life_ms)

    def _share(self, index: InvertedIndex) -> float:
        used = min(1.0, len(self._uses) / max(1, len(index)))
        return float(SHARE_MIN + (1.0 - SHARE_MIN) * used**4)

    def _idf(self, wanted: QueryTerm, counts: _Counts, index: InvertedIndex) -> float:
        tools, used = len(counts.tools), len(self._uses) + PRIOR_TOOLS
        idf = math.log(1.0 + (used - tools + 0.5) / (tools + 0.5))
        # A word in many tools' descriptions says little, however rare it is among purposes.
        return wanted.weight * min(idf, index.idf(wanted.term))


def _age(use: IndexedUse) -> int:
    return use.at_unix_ms
