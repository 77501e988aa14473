"""Reciprocal rank fusion: one ranking of several, from places alone.

score = sum of weight / (RANK_OFFSET + place), places from 1 (Cormack, Clarke and Buettcher, SIGIR 2009, who take 60 for
long lists). Scores of different rankings cannot be compared, places can. Words count double: on public tool corpora
2 : 1 with an offset of 20 never ranks worse than words alone, while a small embedder alone, or an even mix, sometimes
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from toolhub_service.registry.index import Scores, Slots

RANK_OFFSET: Final = 20.0
WORDS_WEIGHT: Final = 2.0
MEANING_WEIGHT: Final = 1.0


def fused(rankings: Sequence[tuple[Slots, float]]) -> tuple[Slots, Scores]:
    """Every slot of any ranking (slots best first, and its weight) with its fused score, in order of slots."""
    gains = [weight / (RANK_OFFSET + 1.0 + np.arange(len(slots))) for slots, weight in rankings]
    slots, places = np.unique(np.concatenate([slots for slots, _ in rankings]), return_inverse=True)
    return slots, np.bincount(places, np.concatenate(gains), len(slots)).astype(np.float32)
