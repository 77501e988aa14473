"""Makes statements of SQL at random, by a seed: valid and nearly valid ones, in which names mean several things."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

NAMES: Final = ("ok", "hidden", "c", "d")
"""Of tables and of WITH queries; `ok` and `hidden` are tables, with the columns a and b."""
_SPACES: Final = (" ", " ", " ", " ", "\n", "\t", "\r\n", "/**/", " -- x\n", " /* ' */ ")
_UNCLEAR: Final = ("\ufeff", "\u00a0", "\v", "\f", "\r", "\u200b", "\u3000", "\x1c", "\u2028", "\u0085")


class Statements:
    """Of one dialect. The same seed makes the same statements."""

    def __init__(self, dialect: str, seed: int) -> None:
        self._dialect = dialect
        self._random = random.Random(seed)

    def next(self) -> str:
        """Return one more statement."""
        words = self._with(2) if self._random.random() < 0.6 else ""
        make = self._random.choice((self._query, self._query, self._update, self._insert, self._delete, self._merge))
        return self._spaced(f"{words} {make(3)}")

    def _spaced(self, text: str) -> str:
        pieces = [self._cased(piece) for piece in text.split()]
        spaces = _UNCLEAR if self._random.random() < 0.05 else _SPACES
        at = self._random.randrange(len(pieces))
        return "".join(
            piece + (self._random.choice(spaces if number == at else _SPACES)) for number, piece in enumerate(pieces)
        )

    def _cased(self, piece: str) -> str:
        if self._random.random() < 0.15 and not set(piece) & set("'\"`"):
            return piece.upper() if self._random.random() < 0.5 else piece.title()
        return piece

    def _name(self) -> str:
        return self._random.choice(NAMES)

    def _table(self) -> str:
        """Return the name of a table or WITH query, in one of its spellings."""
        name, draw = self._name(), self._random.random()
        if draw < 0.6:
            return name
        if draw < 0.75:
            return f'"{name}"'
        if draw < 0.9 or self._dialect == "postgres":
            return f"{'public' if self._dialect == 'postgres' else 'main'}.{name}"
        return self._random.choice((f"[{name}]", f"`{name}`", f"'{name}'"))

    def _with(self, depth: int) -> str:
        count = self._random.randint(1, 2)
        names = self._random.sample(NAMES, count)
        queries = ", ".join(f"{name} ( a, b ) as ( {self._two(depth)} )" for name in names)
        return f"with {'recursive ' if self._random.random() < 0.3 else ''}{queries}"

    def _two(self, depth: int) -> str:
        """Return a query of two columns."""
        draw = self._random.random()
        if depth <= 0 or draw < 0.4:
            return "select 1 , 'x'"
        if draw < 0.6:
            return f"select a , b from {self._table()}"
        if draw < 0.7:
            return "values ( 1 , 'x' )"
        if draw < 0.8:
            return f"{self._with(depth - 1)} {self._two(depth - 1)}"
        if draw < 0.9:
            return f"select 1 , 'x' from {self._source(depth - 1)}"
        return f"select 1 , 'x' union all {self._two(depth - 1)}"

    def _query(self, depth: int) -> str:
        draw = self._random.random()
        if draw < 0.1:
            return self._two(depth)
        item = self._random.choice(("*", "1", "count ( * )", "( select max ( a ) from " + self._table() + " )"))
        return f"select {item} from {self._source(depth)} {self._where(depth)}"

    def _source(self, depth: int) -> str:
        draw = self._random.random()
        if depth <= 0 or draw < 0.5:
            return self._table()
        alias = self._random.choice(("s", "t", *NAMES))
        if draw < 0.7:
            return f"( {self._two(depth - 1)} ) as {alias}"
        if draw < 0.8:
            return f"( {self._with(depth - 1)} {self._two(depth - 1)} ) as {alias}"
        join = self._random.choice((",", "cross join", "natural join", "join"))
        on = self._random.choice(("on true", "using ( a )")) if join == "join" else ""
        return f"{self._source(depth - 1)} {join} {self._table()} as x {on}"

    def _where(self, depth: int) -> str:
        draw = self._random.random()
        if draw < 0.4 or depth <= 0:
            return ""
        if draw < 0.6:
            return f"where exists ( {self._two(depth - 1)} )"
        if draw < 0.75:
            return f"where 1 in ( select a from {self._table()} )"
        if draw < 0.85 and self._dialect == "sqlite":
            return f"where ( 1 , 'x' ) in {self._table()}"
        if draw < 0.9:
            return f"where {self._table()} . a = 1"
        return f"where ( select count ( * ) from {self._source(depth - 1)} ) > 0"

    def _update(self, depth: int) -> str:
        value = self._random.choice(("'x'", "( select b from " + self._table() + " limit 1 )"))
        more = f"from {self._table()} as y" if self._random.random() < 0.2 else ""
        return f"update {self._table()} set b = {value} {more} {self._where(depth)}"

    def _insert(self, depth: int) -> str:
        conflict = self._random.choice(("", "", "on conflict ( a ) do update set b = 'y'", "on conflict do nothing"))
        rows = self._random.choice((self._two(depth), "values ( 2 , 'y' )"))
        how = self._random.choice(("insert", "insert", "insert or replace" if self._dialect == "sqlite" else "insert"))
        return f"{how} into {self._table()} ( a , b ) {rows} {conflict}"

    def _delete(self, depth: int) -> str:
        return f"delete from {self._table()} {self._where(depth)}"

    def _merge(self, depth: int) -> str:
        if self._dialect == "sqlite":
            return self._query(depth)
        branches: Sequence[str] = (
            "when matched then delete",
            "when matched then update set b = 'z'",
            "when not matched then insert ( a , b ) values ( 3 , 'z' )",
        )
        chosen = " ".join(self._random.sample(branches, self._random.randint(1, 2)))
        return f"merge into {self._table()} as m using {self._source(depth)} on true {chosen}"
