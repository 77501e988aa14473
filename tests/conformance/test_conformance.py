"""The official conformance suite against a whole hub: every scenario of both generations passes, but for what is
listed.

Each check counts, warnings too. The suite runs once for the module, in a few processes side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import pytest

from tests.conformance.report import PAGE, table
from tests.conformance.scenarios import NOT_RUN, VERSIONS, expected_failures
from tests.conformance.suite import ROOT, Outcome, Ran, Run, listed, run_all, runs

GENERATIONS: Final = ("2025-11-25", "2026-07-28")
CASES: Final = [
    pytest.param(run, name, id=f"{name}-{run.version}-{run.protocol}") for run in runs() for name in run.scenarios
]

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Run, Ran]:
    return asyncio.run(run_all(tmp_path_factory.mktemp("conformance")))


@pytest.mark.parametrize(("run", "scenario"), CASES)
def test_every_check_of_a_scenario_passes_but_for_those_listed(ran: Mapping[Run, Ran], run: Run, scenario: str) -> None:
    outcome = ran[run].outcomes[scenario]
    assert outcome.played is not None, "the suite did not start its client"
    expected = expected_failures().get(scenario, frozenset())
    failed = outcome.with_status("FAILURE", "WARNING")
    if "" not in expected:
        assert {check: why for check, why in failed.items() if check not in expected} == {}, outcome.played.text
    if not expected:
        assert outcome.with_status("SUCCESS"), outcome.played.text
        assert not outcome.played.trouble, outcome.played.text


@pytest.mark.parametrize(
    "run", [pytest.param(run, id=f"{run.version}-{run.protocol}-{' '.join(run.words[:2])}") for run in runs()]
)
def test_the_suite_itself_finds_no_failure_that_is_not_listed_and_none_that_is_listed_in_vain(
    ran: Mapping[Run, Ran], run: Run
) -> None:
    assert ran[run].exit_code == 0, ran[run].output[-4_000:]
    assert set(ran[run].outcomes) == set(run.scenarios)


@pytest.mark.parametrize("protocol", ["auto", "fixed"])
@pytest.mark.parametrize("version", GENERATIONS)
def test_a_source_speaks_the_era_of_its_server(ran: Mapping[Run, Ran], version: str, protocol: str) -> None:
    (one,) = [
        each for run, each in ran.items() if (run.version, run.protocol) == (version, protocol) and "all" in run.words
    ]
    spoken = {name: _protocol(outcome) for name, outcome in one.outcomes.items()}
    assert {name: versions for name, versions in spoken.items() if versions not in (version, "")} == {}
    assert version in spoken.values()


def test_every_client_scenario_of_the_suite_has_its_place() -> None:
    """One that a newer suite brings must be run, or named with a reason."""
    placed: dict[str, set[str]] = {}
    for version, names in VERSIONS.items():
        for name in names:
            placed.setdefault(name, set()).add(version)
    known = {name: versions for name, versions in listed().items() if name not in NOT_RUN}
    assert set(known) == set(placed)
    for name, versions in known.items():
        if versions != {"extension"}:
            assert placed[name] == versions & set(VERSIONS), name


def test_the_page_shows_what_is_run_and_what_is_known_to_fail() -> None:
    assert table() in (ROOT / PAGE).read_text()


def _protocol(outcome: Outcome) -> str:
    return outcome.played.protocol if outcome.played else ""
