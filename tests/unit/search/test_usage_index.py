from __future__ import annotations

from itertools import pairwise

import pytest

from toolhub_service.search.fields import Field
from toolhub_service.search.index import InvertedIndex
from toolhub_service.search.query import QueryReader
from toolhub_service.search.usage_index import KEEP, KEEP_OF_AGENT, REFILL_MS, IndexedUse, TenantUsage

DAY_MS = 24 * 3600 * 1000
NOW = 1_700_000_000_000


@pytest.fixture
def index() -> InvertedIndex:
    index = InvertedIndex()
    for key in ("honest", "rogue", "third", *(f"other{number}" for number in range(40))):
        index.put(key, {Field.DESCRIPTION: f"handles data {key}"})
    return index


@pytest.fixture
def usage() -> TenantUsage:
    return TenantUsage(NOW, 30 * DAY_MS, 180 * DAY_MS)


def put(usage: TenantUsage, tool: str, purpose: str, agent: str = "a", at: int = NOW, now: int | None = None) -> bool:
    terms = tuple(dict.fromkeys(InvertedIndex().analyser.terms(purpose)))
    return usage.put(tool, IndexedUse(agent, terms, at), NOW if now is None else now)


def gains(usage: TenantUsage, index: InvertedIndex, query: str, now: int = NOW) -> dict[str, float]:
    slots, found = usage.lookup(QueryReader(index.analyser).read(query), index, now).gains()
    return {index.key(slot): gain for slot, gain in zip(slots.tolist(), found.tolist(), strict=True)}


def test_a_tool_gains_by_the_words_it_was_used_for_and_by_no_others(usage: TenantUsage, index: InvertedIndex) -> None:
    put(usage, "honest", "quarterly revenue report")
    assert set(gains(usage, index, "the revenue of last year")) == {"honest"}
    assert gains(usage, index, "weather in Oslo") == {}


def test_each_further_use_for_the_same_thing_gains_but_less(usage: TenantUsage, index: InvertedIndex) -> None:
    steps = [0.0]
    for number in range(6):
        put(usage, "honest", f"revenue of unit{'abcdef'[number]}x")
        steps.append(gains(usage, index, "revenue")["honest"])
    rises = [after - before for before, after in pairwise(steps)]
    assert all(rise > 0 for rise in rises)
    assert rises[-1] < rises[1]


@pytest.mark.promise("search.not-poisoned")
def test_a_purpose_repeated_counts_once(usage: TenantUsage, index: InvertedIndex) -> None:
    put(usage, "honest", "revenue report")
    once = gains(usage, index, "revenue")
    for agent in ("a", "a", "b"):
        put(usage, "honest", "Revenue report!", agent)
    assert usage.size == 1
    assert gains(usage, index, "revenue") == once


@pytest.mark.promise("search.not-poisoned")
def test_a_flood_of_one_agent_stays_below_what_two_agents_learnt_honestly(
    usage: TenantUsage, index: InvertedIndex
) -> None:
    for agent in ("a", "b"):
        for number in range(8):
            put(usage, "honest", f"revenue report {agent}{'abcdefgh'[number]}x", agent)
    for number in range(500):
        put(usage, "rogue", f"revenue report page{number}y", "flooder")
    found = gains(usage, index, "revenue report")
    assert usage.size == 16 + KEEP_OF_AGENT
    assert found["honest"] > found["rogue"]


def test_a_flood_does_not_push_out_what_others_taught_of_the_same_tool(usage: TenantUsage) -> None:
    put(usage, "honest", "revenue report", "a")
    for flooder in range(5):
        for number in range(50):
            put(usage, "honest", f"casino {flooder}x{number}", f"flooder{flooder}")
    assert usage.size == KEEP
    assert [use.agent for use in usage._uses["honest"]].count("a") == 1


def test_an_agent_at_its_bound_is_learnt_from_again_the_next_day(usage: TenantUsage, index: InvertedIndex) -> None:
    for number in range(KEEP_OF_AGENT):
        assert put(usage, "honest", f"first{'abcdefghij'[number]}q")
    assert not put(usage, "honest", "revenue")
    assert put(usage, "honest", "revenue", at=NOW + REFILL_MS, now=NOW + REFILL_MS)
    assert usage.size == KEEP_OF_AGENT
    assert gains(usage, index, "revenue", NOW + REFILL_MS)


def test_a_word_of_every_tool_lifts_none(usage: TenantUsage, index: InvertedIndex) -> None:
    put(usage, "rogue", "handles data")
    put(usage, "honest", "revenue")
    common, rare = gains(usage, index, "handles data"), gains(usage, index, "revenue")
    assert common["rogue"] < 0.02 * rare["honest"]


def test_uses_fade_by_half_lives_and_are_forgotten(usage: TenantUsage, index: InvertedIndex) -> None:
    for number in range(5):
        put(usage, "honest", f"revenue {'abcde'[number]}x")
    found = [gains(usage, index, "revenue", NOW + days * DAY_MS)["honest"] for days in (0, 30, 60, 150)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.05 * found[0]
    usage.forget(NOW + 1)
    assert usage.size == 0
    assert gains(usage, index, "revenue") == {}
    assert not put(usage, "honest", "revenue", at=NOW - 180 * DAY_MS)


def test_newer_uses_outweigh_older_ones(usage: TenantUsage, index: InvertedIndex) -> None:
    for number in range(4):
        put(usage, "third", f"revenue {'abcd'[number]}x", at=NOW - 90 * DAY_MS)
        put(usage, "honest", f"revenue {'abcd'[number]}x")
    found = gains(usage, index, "revenue")
    assert found["honest"] > 2 * found["third"]


def test_a_use_from_the_future_counts_as_of_now(usage: TenantUsage, index: InvertedIndex) -> None:
    put(usage, "honest", "revenue")
    put(usage, "rogue", "revenue", at=NOW + 3_000 * DAY_MS)
    found = gains(usage, index, "revenue")
    assert found["rogue"] == pytest.approx(found["honest"])


def test_a_tool_that_left_the_catalog_gains_nothing_and_gains_again_when_it_is_back(
    usage: TenantUsage, index: InvertedIndex
) -> None:
    put(usage, "honest", "revenue")
    assert set(gains(usage, index, "revenue")) == {"honest"}
    index.remove("honest")
    assert gains(usage, index, "revenue") == {}
    index.put("honest", {Field.DESCRIPTION: "another text"})
    assert set(gains(usage, index, "revenue")) == {"honest"}


def test_the_parts_of_an_explained_gain_add_up(usage: TenantUsage, index: InvertedIndex) -> None:
    put(usage, "honest", "quarterly revenue")
    put(usage, "honest", "yearly revenue")
    put(usage, "rogue", "quarterly weather")
    query = QueryReader(index.analyser).read("quarterly revenue of the weather bureau")
    lookup = usage.lookup(query, index, NOW)
    for tool, gain in gains(usage, index, "quarterly revenue of the weather bureau").items():
        parts = lookup.explain(tool)
        assert sum(part for _, part in parts) == pytest.approx(gain, rel=1e-5)
    assert lookup.explain("third") == []


def test_uses_that_came_and_went_leave_nothing_behind(usage: TenantUsage, index: InvertedIndex) -> None:
    put(usage, "third", "yearly budget")
    before = gains(usage, index, "yearly budget revenue")
    for tool in ("honest", "rogue"):
        for number in range(8):
            put(usage, tool, f"revenue budget {'abcdefgh'[number]}x", at=NOW - DAY_MS)
    usage.forget(NOW)
    assert gains(usage, index, "yearly budget revenue") == pytest.approx(before)
    usage.forget_oldest_tool()
    assert usage.size == 0
