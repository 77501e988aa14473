from __future__ import annotations

from toolhub_service.schema.bounded_cache import BoundedCache


def test_what_was_used_least_recently_is_forgotten() -> None:
    cache: BoundedCache[int] = BoundedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)


def test_a_value_can_be_replaced() -> None:
    cache: BoundedCache[int] = BoundedCache(1)
    cache.put("a", 1)
    cache.put("a", 2)
    assert (cache.get("a"), len(cache)) == (2, 1)


def test_heavy_values_push_others_out_and_weigh_once() -> None:
    cache: BoundedCache[int] = BoundedCache(100, max_weight=10)
    for _ in range(5):
        cache.put("a", 1, 4)
    cache.put("b", 2, 6)
    assert len(cache) == 2
    cache.put("c", 3, 1)
    assert [cache.get(name) for name in "abc"] == [None, 2, 3]
    cache.put("d", 4, 50)
    assert [cache.get(name) for name in "abcd"] == [None, None, None, 4]
    cache.put("e", 5, 1)
    assert [cache.get(name) for name in "de"] == [None, 5]
