"""Puts what a run found into docs/acceptance.md: between `<!-- name: begin -->` and `<!-- name: end -->`.

`python -m tests.acceptance.page n8n_suite REPORT.xml` takes pytest's JUnit report of the suite.
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.bench.page import markdown

PAGE: Final = Path(__file__).parents[2] / "docs" / "acceptance.md"


def put(name: str, text: str) -> None:
    """Replace what stands between the markers. Raises ValueError where the page has no such place."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}")


def suite_table(report: Path) -> str:
    """What each test says, and how it ended; those of one parameter each are counted."""
    found: dict[str, list[tuple[str, float]]] = {}
    for case in ET.parse(report).iter("testcase"):
        sentence = case.get("name", "").partition("[")[0].removeprefix("test_").replace("_", " ")
        found.setdefault(sentence, []).append((_outcome(case), float(case.get("time", 0))))
    rows = [("what holds", "result", "seconds"), *_rows(found)]
    cases = [outcome for each in found.values() for outcome, _ in each]
    return f"{markdown(rows)}\n\n{cases.count('passed')} of {len(cases)} passed."


def _rows(found: dict[str, list[tuple[str, float]]]) -> Iterator[tuple[str, str, str]]:
    for sentence, cases in found.items():
        outcomes = {outcome for outcome, _ in cases}
        times = f"{sum(seconds for _, seconds in cases):.1f}"
        yield sentence if len(cases) == 1 else f"{sentence} (× {len(cases)})", " and ".join(sorted(outcomes)), times


def _outcome(case: ET.Element) -> str:
    for name, word in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if case.find(name) is not None:
            return word
    return "passed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the place in the page")
    parser.add_argument("report", type=Path)
    options = parser.parse_args()
    put(options.name, suite_table(options.report))


if __name__ == "__main__":
    main()
