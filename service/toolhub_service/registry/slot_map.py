"""Where the index keeps a list of keys, worked out anew only when the index has moved."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

from toolhub_service.registry.index import InvertedIndex, Slots


class SlotMap:
    """Slots of the keys of one owner, in its order; -1 for a key that the index does not have."""

    def __init__(self) -> None:
        self._slots: Slots = np.zeros(0, np.int64)
        self._made_for: tuple[InvertedIndex, int, Hashable] | None = None

    def slots(self, index: InvertedIndex, keys: Iterable[str], version: Hashable) -> Slots:
        """`version` differs whenever `keys` do."""
        made_for = (index, index.generation, version)
        if self._made_for != made_for:
            slots = (index.slot(key) for key in keys)
            self._slots = np.fromiter((-1 if slot is None else slot for slot in slots), np.int64)
            self._made_for = made_for
        return self._slots
