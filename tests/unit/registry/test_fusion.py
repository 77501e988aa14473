from __future__ import annotations

import numpy as np
import pytest

from toolhub_service.registry.fusion import RANK_OFFSET, fused
from toolhub_service.registry.index import Slots


def places(*slots: int) -> Slots:
    return np.array(slots, np.int64)


def test_places_are_added_by_weight() -> None:
    slots, scores = fused([(places(7, 3), 2.0), (places(3, 9), 1.0)])
    assert slots.tolist() == [3, 7, 9]
    expected = [2 / (RANK_OFFSET + 2) + 1 / (RANK_OFFSET + 1), 2 / (RANK_OFFSET + 1), 1 / (RANK_OFFSET + 2)]
    assert scores.tolist() == pytest.approx(expected)


def test_one_empty_ranking_leaves_the_other_as_it_is() -> None:
    slots, scores = fused([(places(), 2.0), (places(5, 1), 1.0)])
    assert [slot for _, slot in sorted(zip(-scores, slots.tolist(), strict=True))] == [5, 1]


def test_the_first_by_words_is_beaten_only_by_one_that_both_rank_high() -> None:
    slots, scores = fused([(places(1, 2, 3), 2.0), (places(4, 2), 1.0)])
    assert slots[np.argsort(-scores)].tolist() == [2, 1, 3, 4]
