"""Counts of Python calls, functions and files of one call, held to tests/bench/work_budgets.yaml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.bench.work_counts import Counted, count_all

BUDGETS: dict[str, dict[str, int]] = yaml.safe_load(
    (Path(__file__).parents[1] / "bench" / "work_budgets.yaml").read_text()
)


@pytest.fixture(scope="module")
def counted() -> dict[str, Counted]:
    return count_all()


@pytest.mark.parametrize(("call", "what"), [(call, what) for call, limits in BUDGETS.items() for what in limits])
def test_call_is_no_more_work_than_its_budget(call: str, what: str, counted: dict[str, Counted]) -> None:
    one = counted[call]
    assert getattr(one, what) <= BUDGETS[call][what], (
        f"see what is new: python -m tests.bench.work_counts --functions\n{one}"
    )


def test_echo_runs_nothing_of_the_hub(counted: dict[str, Counted]) -> None:
    """Else the counter counts something else than the server's work."""
    assert counted["echo"].own_calls == 0
    assert counted["echo"].calls > 0


def test_documented_walk_is_the_walk_of_a_call(counted: dict[str, Counted]) -> None:
    """docs/architecture.md names what a call visits, in the order in which it does."""
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    documented = [
        f"{file}:{function}" for file, function in re.findall(r"^\d+\. `([^`]+\.py)` `([^`]+)`", page, re.MULTILINE)
    ]
    seen = [function for function in counted["unary"].by_function if function in set(documented)]
    assert len(documented) > 20
    assert documented == seen
