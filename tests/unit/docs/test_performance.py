"""docs/performance.md has the place where the bench puts its table, and names benches that there are."""

from __future__ import annotations

import re

from tests.bench.governed_call import BEGIN, END, PAGE
from tests.unit.docs.pages_of_docs import DOCS, ROOT

TEXT = (DOCS / "performance.md").read_text()


def test_the_bench_finds_its_place() -> None:
    assert PAGE.resolve() == (DOCS / "performance.md").resolve()
    assert TEXT.count(BEGIN) == TEXT.count(END) == 1
    assert TEXT.index(BEGIN) < TEXT.index(END)


def test_every_bench_named_exists() -> None:
    named = set(re.findall(r"BENCHES=(\w+)", TEXT)) | set(re.findall(r"tests\.bench\.(\w+)", TEXT))
    assert named
    assert all((ROOT / "tests" / "bench" / f"{name}.py").is_file() for name in named)
