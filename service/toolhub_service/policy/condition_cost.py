"""The largest possible cost of a condition: computed from its text, once, and from the sizes of a call's values.

The model is the cost limit of Kubernetes' CEL (`PerCallLimit`): an expression is estimated before it runs, in units,
and one that may cost more than `COST_MAX` is not run. A unit is about 20 ns: the interpreter blocks the event loop. The
interpreter copies a value wherever it is named, and a list once for each element that `map` or `filter` adds.

An estimate is a sum of terms, each a factor times the weights of the members that are looped over or copied there:
`args.a.all(x, args.b.exists(y, y == x))` has the term `args.a × args.b`. A loop over the variable of the loop around it
(`args.rows.all(row, row.all(cell, …))`) visits the parts of one value once, and adds no weight.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import msgspec

COST_MAX: Final = 1_000_000
_READ: Final = 8  # to pass a node to the interpreter
_COPY: Final = 2
_STEP: Final = 3
_MATCH: Final = 32  # for 256 bytes: 2.5 ns per byte
_OWN_FUNCTION: Final = 100  # a call back into Python
_BYTES_PER_NODE: Final = 256
_GROWTH_MAX: Final = 1 << 20
_LOOPS: Final = frozenset({"all", "exists", "exists_one", "map", "filter"})
_ROOTS: Final = frozenset({"args", "tool", "principal", "subject", "actor", "delegation", "context", "sql", "call"})
_TOKEN: Final = re.compile(
    r"""//[^\n]*|\s+
    |(?P<text>[bB]?[rR][bB]?(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\n]*"|'[^'\n]*')
        |[bB]?(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<name>[A-Za-z_]\w*)|(?P<mark>\d[\w.]*|&&|\|\||[=!<>]=|.)""",
    re.VERBOSE | re.DOTALL,
)
_REPEATED: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_OPEN: Final = {")": "(", "]": "[", "}": "{"}

Path = tuple[str, str]
"""A root and its member; the member is empty for the whole root."""
Factors = tuple[Path, ...]


class Cost(msgspec.Struct, frozen=True):
    """The cost of one expression."""

    members: tuple[Path, ...]
    """Members that the expression reads."""
    terms: tuple[tuple[int, Factors], ...]

    def is_within(self, variables: Mapping[str, Any]) -> bool:
        """Return whether evaluating the expression over these values stays within `COST_MAX`."""
        # Weighing stops there: passing the values alone would cost more than the whole limit.
        left = COST_MAX // _READ
        weights: dict[Path, int] = {}
        for path in self.members:
            root, member = path
            value = variables.get(root, {})
            # All terms share the weights, so that a value is weighed once however often it is named.
            weights[path] = weight = _weight(
                value.get(member) if member and isinstance(value, Mapping) else value, left
            )
            left -= weight
            if left < 0:
                return False
        total = 0
        for units, factors in self.terms:
            total += units * prod(weights[path] for path in factors)
        return total <= COST_MAX


@dataclass(slots=True, eq=False)
class _Loop:
    """A macro such as `range.all(x, body)`, as positions of tokens."""

    kind: str
    variable: str
    range_begins: int
    range_ends: int
    body_begins: int
    body_ends: int
    range_factors: Factors = ()
    """Factors of the size of its range."""
    visits: Factors = ()
    """Factors of how often its body is evaluated, including all outer loops."""
    is_inside_one: bool = False
    """Whether it loops over parts of what the outer loop visits."""


class _Reading:
    """An expression that the compiler has accepted, as tokens."""

    def __init__(self, text: str, roots: Collection[str]) -> None:
        self._roots = roots
        found = [(str(match.lastgroup), match.group()) for match in _TOKEN.finditer(text) if match.lastgroup]
        self.kinds = [kind for kind, _ in found]
        self.tokens = [token for _, token in found]
        self.closing: dict[int, int] = {}
        self.opening: dict[int, int] = {}
        pending: list[int] = []
        for at, mark in enumerate(self.tokens):
            if self.kinds[at] == "mark" and mark in _OPEN.values():
                pending.append(at)
            elif self.kinds[at] == "mark" and mark in _OPEN and pending:
                self.opening[at] = pending.pop()
                self.closing[self.opening[at]] = at
        self.loops = [loop for at in range(len(self.tokens)) if (loop := self._loop(at))]
        self.declared = {loop.body_begins - 2 for loop in self.loops}

    def at(self, place: int) -> str:
        """Return the token; empty outside of the expression."""
        return self.tokens[place] if 0 <= place < len(self.tokens) else ""

    def is_call_of(self, place: int, names: frozenset[str]) -> bool:
        is_method = self.at(place - 1) == "." and self.at(place + 1) == "("
        return self.kinds[place] == "name" and is_method and self.tokens[place] in names

    def operand_before(self, dot: int) -> int:
        """Return where the operand begins whose member follows the dot."""
        at = dot - 1
        while True:
            if at in self.opening:
                at = self.opening[at]
                if self.at(at) in "([" and self.kinds[at - 1 : at] == ["name"]:
                    at -= 1
                elif self.at(at) == "[" and self.at(at - 1) in {")", "]"}:
                    at -= 1
                    continue
            if self.at(at - 1) != ".":
                return max(at, 0)
            at -= 2

    def around(self, place: int) -> list[_Loop]:
        """Return the loops whose bodies contain the token, innermost first."""
        inside = [loop for loop in self.loops if loop.body_begins <= place < loop.body_ends]
        return sorted(inside, key=lambda loop: loop.body_ends - loop.body_begins)

    def path_at(self, place: int) -> Path | None:
        """Return the member of a variable of the call that a token names; None when it names none."""
        root = self.tokens[place]
        if self.kinds[place] != "name" or root not in self._roots or self.at(place - 1) == ".":
            return None
        if self.at(place + 1) == "." and self.at(place + 3) != "(":
            return root, self.at(place + 2)
        key = self.at(place + 2)
        is_key = self.at(place + 1) == "[" and self.at(place + 3) == "]" and re.fullmatch(r"""(["'])\w*\1""", key)
        return (root, key[1:-1]) if is_key else (root, "")

    def uses(self, begins: int, ends: int) -> Iterator[tuple[int, Path | _Loop]]:
        """Yield each token that names a variable of the call or of an outer loop."""
        for place in range(begins, ends):
            if self.kinds[place] != "name" or self.at(place - 1) == "." or place in self.declared:
                continue
            bound = next((loop for loop in self.around(place) if loop.variable == self.tokens[place]), None)
            path = self.path_at(place)
            if bound is not None:
                yield place, bound
            elif path is not None:
                yield place, path

    def factors(self, begins: int, ends: int) -> Factors:
        """Return the factors of the size of anything that these tokens create."""
        every: list[Path] = []
        for _, used in self.uses(begins, ends):
            every += used.range_factors if isinstance(used, _Loop) else (used,)
        return tuple(every)

    def growth(self) -> int:
        """Return how much larger than its parts a value can become by `+` and by lists, inside of loops."""
        spans = [(loop.range_begins, loop.body_ends) for loop in self.loops]
        marks = [at for at, token in enumerate(self.tokens) if self.kinds[at] == "mark" and token in {"+", "["}]
        growth = 1
        for at in marks:
            # Outside of loops a sum is made once, and its parts are counted as they are read.
            if growth < _GROWTH_MAX and any(begins <= at < ends for begins, ends in spans):
                is_sum = self.tokens[at] == "+"
                growth *= 2 if is_sum else 1 + self.tokens[at : self.closing.get(at, at)].count(",")
        return growth

    def _loop(self, at: int) -> _Loop | None:
        if self.kinds[at] != "name" or not self.is_call_of(at, _LOOPS):
            return None
        ends = self.closing.get(at + 1, len(self.tokens))
        return _Loop(self.tokens[at], self.at(at + 2), self.operand_before(at - 1), at - 1, at + 4, ends)


def cost_of(text: str, roots: Collection[str] = _ROOTS) -> Cost:
    """Return the cost of an expression that compiles; `roots` are its variables. Raises ValueError when nothing bounds
    it."""
    read = _Reading(text, roots)
    for loop in sorted(read.loops, key=lambda each: each.body_begins - each.body_ends):
        set_factors(read, loop)
    terms: Counter[Factors] = Counter()
    members: dict[Path, None] = {}
    for place, used in read.uses(0, len(read.tokens)):
        around = read.around(place)
        visits = around[0].visits if around else ()
        if isinstance(used, _Loop):
            between = around[: around.index(used)]  # loops over parts of the same value count its size twice
            terms[visits + used.range_factors if any(loop.is_inside_one for loop in between) else visits] += _COPY
        else:
            terms[(*visits, used)] += _COPY
            members[used] = None
    for place in range(len(read.tokens)):
        around = read.around(place)
        terms[around[0].visits if around else ()] += _OWN_FUNCTION if read.tokens[place] == "overlaps" else _STEP
        if read.is_call_of(place, frozenset({"matches"})) or _is_plain_matches(read, place):
            _count_match(read, place, around[0].visits if around else (), terms)
    for loop in read.loops:
        if loop.kind in {"map", "filter"}:
            made = read.factors(loop.body_begins, loop.body_ends) if loop.kind == "map" else ()
            terms[loop.visits + loop.range_factors + made] += _COPY
    growth = read.growth()
    counted = [(units * growth, tuple(sorted(factors))) for factors, units in terms.items()]
    if any(units > COST_MAX for units, _ in counted):
        raise ValueError("it may exceed the cost limit of a call: nest fewer loops, sums and lists")
    handed = [(_READ, (path,)) for path in members]
    return Cost(tuple(members), (*counted, *handed))


def set_factors(read: _Reading, loop: _Loop) -> None:
    """Set the loop's factors; those of the outer loops are known."""
    around = read.around(loop.range_begins)
    loop.range_factors = read.factors(loop.range_begins, loop.range_ends)
    uses = [used for _, used in read.uses(loop.range_begins, loop.range_ends)]
    loop.is_inside_one = bool(around) and uses == [around[0]]
    own = () if loop.is_inside_one else loop.range_factors
    loop.visits = (around[0].visits if around else ()) + own


def _is_plain_matches(read: _Reading, place: int) -> bool:
    return read.tokens[place] == "matches" and read.at(place - 1) != "." and read.at(place + 1) == "("


def _count_match(read: _Reading, place: int, visits: Factors, terms: Counter[Factors]) -> None:
    ends = read.closing.get(place + 1, len(read.tokens))
    is_method = read.at(place - 1) == "."
    pattern = ends - 1
    is_literal = read.kinds[pattern] == "text" and read.at(pattern - 1) == ("(" if is_method else ",")
    if not is_literal:
        raise ValueError("`matches` needs a literal pattern: the cost of a computed one has no bound")
    begins = read.operand_before(place - 1) if is_method else place + 2
    searched = read.factors(begins, place - 1 if is_method else pattern - 1)
    terms[visits + searched] += _MATCH * repetition_growth(read.tokens[pattern])


def repetition_growth(pattern: str) -> int:
    """Return how many times larger than its text a pattern is by counted repetition: 81 for `(a{9}){9}`."""
    times = 1
    for least, most in _REPEATED.findall(pattern):
        # Six digits exceed the cap below; reading a longer number would cost time.
        times *= max(1, int((most or least)[:6]))
    return min(times, _GROWTH_MAX)


def _weight(value: object, most: int) -> int:
    """Return the number of nodes plus one per 256 bytes of text; stops with a number above `most` once that is
    exceeded."""
    weight = 0
    pending = [value]
    while pending and weight <= most:
        node = pending.pop()
        weight += 1
        if isinstance(node, str):
            weight += len(node) // _BYTES_PER_NODE
        elif node is None or isinstance(node, int | float):
            continue
        elif isinstance(node, Mapping):
            weight += len(node)
            pending += node.values() if len(node) <= most else ()
        elif isinstance(node, list | tuple):
            # Not queued: a list of millions would be copied only to find that it is too long.
            if len(node) > most:
                return len(node)
            pending += node
    return weight
