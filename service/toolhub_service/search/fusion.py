"""Reciprocal rank fusion: merges several rankings into one, by rank only.

score = sum of weight / (RANK_OFFSET + place), places from 1 (Cormack, Clarke and Buettcher, SIGIR 2009, who take 60
for long lists). Scores of different rankings cannot be compared, ranks can. Words count double: on public tool
corpora 2 : 1 with an offset of 20 never ranks worse than words alone, while a small embedder alone, or an even mix,
sometimes does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from toolhub_service.search.arrays import np
from toolhub_service.search.index import Scores, Slots

if TYPE_CHECKING:
    pass


RANK_OFFSET: Final = 20.0
WORDS_WEIGHT: Final = 2.0
MEANING_WEIGHT: Final = 1.0


def fuse_rankings(rankings: Sequence[tuple[Slots, float]]) -> tuple[Slots, Scores]:
    """Return every slot of any ranking with its fused score, in order of slots.

    A ranking is its slots, best first, and its weight.
    """
    gains = [weight / (RANK_OFFSET + 1.0 + np.arange(len(slots))) for slots, weight in rankings]
    slots, places = np.unique(np.concatenate([slots for slots, _ in rankings]), return_inverse=True)
    return slots, np.bincount(places, np.concatenate(gains), len(slots)).astype(np.float32)
