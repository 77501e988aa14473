"""Samples of corpora: the same for one seed, others for another, and whole where that is asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import corpora

LINES = [str(number) for number in range(1_000)]
ROOT = Path(__file__).parents[2]


def test_a_seed_gives_the_same_sample_at_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "WHOLE", False)
    monkeypatch.setattr(corpora, "SEED", "7")
    first = corpora.sample(LINES, 5)
    assert corpora.sample([*reversed(LINES), "", "1"], 5) == first
    assert corpora.report_header() == "corpora: samples by TEST_CORPORA_SEED=7"
    monkeypatch.setattr(corpora, "SEED", "8")
    assert corpora.sample(LINES, 5) != first


def test_make_corpora_takes_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "WHOLE", True)
    assert corpora.sample(["b", "a", "b", ""], 1) == ["a", "b"]


def test_make_corpora_runs_every_test_that_takes_a_sample() -> None:
    """Read from their imports."""
    (names,) = re.findall(r"^CORPORA_TESTS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    sampling = re.compile(r"^from tests\.corpora import .*\bsample\b", re.MULTILINE)
    found = {file for file in (ROOT / "tests").rglob("test_*.py") if sampling.search(file.read_text())}
    assert found == {ROOT / name for name in names.split()}
