"""docs/original-names.md, from tests/original_names.yaml: what each name of the older designs is called here."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import hub_names
from tables import NOTICE, code, table

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.originals import Design, Row, designs, is_test

_HEAD = f"""# Names of the older designs

This hub takes the place of five older designs of tools. Each tool, parameter, default, bound, error code, permission
and setting that they name stands here beside what it is called now and the tests that hold it.
{NOTICE.format(source="`tests/original_names.yaml`")} Each name of the hub is looked up where it is declared when
the page is made, and a default or bound that the table states is compared with it: a row that is no longer true fails
`make docs`.
"""
_HEADINGS = ("originally", "here", "default and bounds here", "tests")
MISSING = "not yet"


def page() -> str:
    told = designs()
    wrong = [f"{row.design}, {row.section}, {row.name}: {fault}" for row in _rows(told) for fault in faults(row)]
    if wrong:
        raise SystemExit("original_names_page:\n" + "\n".join(wrong))
    return "\n".join([_HEAD, *_counts(told), *itertools.chain.from_iterable(map(_design, told))]) + "\n"


def faults(row: Row) -> list[str]:
    """Why the row is not true; empty when it is."""
    if not row.here and not row.tests:
        return [] if row.note else ["neither a name nor a reason"]
    wrong = hub_names.faults(row.here, row.declared)
    wrong += [] if row.here else ["it has no name here"]
    wrong += [] if row.tests else ["no test holds it"]
    return wrong + [f"there is no test {test}" for test in row.tests if not is_test(test)]


def _rows(told: Iterable[Design]) -> Iterator[Row]:
    return itertools.chain.from_iterable(design.rows for design in told)


def _counts(told: tuple[Design, ...]) -> Iterator[str]:
    rows = [(f"[{each.name}](#{each.name.lower().replace(' ', '-')})", *_numbers(each.rows)) for each in told]
    yield from table(("design", "names", "held here", "not yet"), [*rows, ("all", *_numbers(list(_rows(told))))])


def _numbers(rows: Iterable[Row]) -> tuple[str, str, str]:
    total, missing = len(list(rows)), sum(not row.here for row in rows)
    return f"{total:,}", f"{total - missing:,}", f"{missing:,}"


def _design(design: Design) -> Iterator[str]:
    yield from ("", f"## {design.name}", "", design.about)
    for section, rows in itertools.groupby(design.rows, key=lambda row: row.section):
        yield from ("", f"### {section}", "", *table(_HEADINGS, map(_cells, rows)))


def _cells(row: Row) -> tuple[str, str, str, str]:
    found = [hub_names.look_up(reference) for reference in row.here]
    here = "; ".join(dict.fromkeys(each.told for each in found)) if found else MISSING
    note = f"{'.' if found else ':'} {row.note}" if row.note else ""
    facts = found[0] if found else hub_names.Found("")
    declared = "; ".join(part for part in (facts.default, facts.bounds) if part)
    return row.name, here + note, declared, ", ".join(map(code, row.tests))
