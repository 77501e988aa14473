from __future__ import annotations

import pytest

from tests.ports.pin_store_suite import PinStoreSuite
from toolhub_service.domain.source import PinStore
from toolhub_service.stores.memory import MemoryPins


class TestMemoryPins(PinStoreSuite):
    @pytest.fixture
    def store(self) -> PinStore:
        return MemoryPins()

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""
