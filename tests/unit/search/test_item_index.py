"""How well remembered items are found, in Chinese and in English, on our own labelled set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import bench
from tests.ports.memory_store_suite import ALICE, T0, an_item, write
from toolhub_service.search.analyser import ideographs
from toolhub_service.search.item_index import (
    CHECKED_WORDS,
    CONTENDERS,
    DRIVING_MAX,
    TAGGED_CONTENDERS,
    Question,
    Ranking,
)
from toolhub_service.stores.memory.items import InProcessItems

_SET = yaml.safe_load((Path(bench.__file__).parent / "memory_queries.yaml").read_text("utf-8"))
ITEMS: Mapping[str, str] = _SET["items"]
QUERIES: Sequence[Any] = _SET["queries"]


async def _missed(queries: Sequence[Any], top: int) -> list[str]:
    """Queries none of whose items is among the first."""
    store, missed = InProcessItems(), []
    await write(store, *(an_item(text, item_id=name) for name, text in ITEMS.items()))
    for query, wanted in queries:
        found = await store.search(ALICE, query, tags=(), limit=top, now_unix_ms=T0)
        if not {hit.item.item_id for hit in found} & set(wanted):
            missed.append(query)
    return missed


@pytest.mark.promise("memory.finds")
async def test_chinese_and_english_queries_find_their_item_among_five() -> None:
    chinese = [each for each in QUERIES if ideographs(each[0])]
    english = [each for each in QUERIES if not ideographs(each[0])]
    assert len(ITEMS) >= 60
    assert min(len(chinese), len(english)) >= 20
    for queries in (chinese, english):
        missed = await _missed(queries, 5)
        assert len(missed) <= 0.15 * len(queries), missed
        assert len(first := await _missed(queries, 1)) <= 0.25 * len(queries), first


@pytest.mark.parametrize("count", [1, 2_999, 50_000])
def test_a_search_reads_a_bounded_number_of_postings_for_any_number_of_items(count: int) -> None:
    question = Question(ALICE, " ".join(f"word{n}" for n in range(100)) + "会" * 5_000, ("tag",))
    ranking = Ranking(question, dict.fromkeys(question.all_terms(), count))
    assert sum(min(most, count) for _, most in ranking.driving) <= 2 * DRIVING_MAX
    postings = [(term, number, 1_000) for term, most in ranking.driving for number in range(min(most, count))]
    terms, numbers = ranking.take(postings)
    assert len(terms) * len(numbers) <= max(CHECKED_WORDS * CONTENDERS, (CHECKED_WORDS // 2 + 1) * TAGGED_CONTENDERS)
