"""A store that keeps no promise it cannot keep."""

from __future__ import annotations

import pytest

from tests.fakes.clock import ManualClock
from tests.ports.key_store_suite import KEY, a_record
from toolhub_service.domain.errors import ErrorKind, ToolFailure
from toolhub_service.domain.ports import KeyStore
from toolhub_service.stores.no_keys import NoKeys


async def test_claim_is_refused_with_what_to_do_instead() -> None:
    store: KeyStore = NoKeys()
    with pytest.raises(ToolFailure) as refused:
        await store.claim(KEY, a_record(ManualClock()))
    error = refused.value.error
    assert error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert not error.is_retryable
    assert "without a key" in error.message
    assert "server.workers" in error.message
