from __future__ import annotations

import random

import pytest

from toolhub_service.search.fields import Field
from toolhub_service.search.index import InvertedIndex
from toolhub_service.search.query import QUERY_MAX_TERMS, QueryReader


def scores(index: InvertedIndex, query: str) -> dict[str, float]:
    found = index.scores(index.lookup(QueryReader(index.analyser).read(query)))
    return {index.key(slot): score for slot, score in enumerate(found.tolist()) if score}


def index_of(**texts: str) -> InvertedIndex:
    index = InvertedIndex()
    for key, text in texts.items():
        index.put(key, {Field.DESCRIPTION: text})
    return index


def test_an_index_that_was_changed_ranks_like_one_that_was_built_afresh() -> None:
    chance = random.Random(5)
    words = "alpha beta gamma delta epsilon zeta movie film".split()
    texts = {f"k{number}": " ".join(chance.choices(words, k=6)) for number in range(900)}
    changed = index_of(**dict.fromkeys(texts, "alpha beta something else"))
    for key, text in texts.items():
        changed.put(key, {Field.DESCRIPTION: text})
    for key in chance.sample(sorted(texts), 500):
        changed.remove(key)
        del texts[key]
    fresh = index_of(**texts)
    assert (changed.slot_count, changed.holes) == (1_800, 1_400)
    assert len(changed) == len(fresh) == len(texts)
    for query in ("alpha", "beta theta", "cinema", " ".join(words)):
        found, expected = scores(changed, query), scores(fresh, query)
        assert found == pytest.approx(expected, rel=1e-5)
        assert found.keys() == expected.keys()


def test_the_parts_of_an_explained_score_add_up() -> None:
    index = index_of(a="a movie about films", b="cinema near the hotel", c="hostel and hotel")
    lookup = index.lookup(QueryReader(index.analyser).read("films shown beside a hostel"))
    found = index.scores(lookup)
    for slot in range(3):
        assert sum(match.score for match in index.explain(slot, lookup)) == pytest.approx(float(found[slot]), rel=1e-5)
    assert [(match.written, match.is_related) for match in index.explain(1, lookup)] == [
        ("cinema", True),
        ("hotel", True),
    ]


def test_only_the_best_of_several_related_words_counts() -> None:
    index = index_of(many="movie cinema", one="cinema", far="hotel")
    lookup = index.lookup(QueryReader(index.analyser).read("film"))
    (match,) = index.explain(0, lookup)
    assert match.written == "movie"
    assert scores(index, "film")["many"] == pytest.approx(match.score)


def test_a_query_is_read_to_a_bound_and_each_term_once() -> None:
    reader = QueryReader(InvertedIndex().analyser)
    assert [term.term for term in reader.read("Movies, movie 7 MOVIE!")] == ["movi"]
    assert [term.term for term in reader.read("7 12")] == ["7", "12"]
    assert (
        len(reader.read(" ".join(f"word{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(200)))) == QUERY_MAX_TERMS
    )
    assert reader.read("of the and") == []
