"""What every store of logs of inner calls must do, for all processes. Inherit `InnerLogSuite` and give an empty store.

Fixtures of the subclass: `store` (not started), `other` (a second instance on the same storage, as another process has
it, not started either; None where nothing is shared).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from toolhub_service.domain.inner_log import InnerLogStore, KeptCall, KeptState
from toolhub_service.domain.result import ToolResult

T0 = 1_700_000_000_000
DIGEST = "ab" * 32


def a_call(index: int = 0, job_id: str = "job-1", **changes: Any) -> KeptCall:
    """BEGUN."""
    return replace(KeptCall(job_id, index, "core/util.time.now", DIGEST, KeptState.BEGUN, T0), **changes)


def answered(kept: KeptCall, value: Any = None) -> KeptCall:
    answer = ToolResult(ok=True, call_id=f"call-{kept.index}", tool=kept.tool, value={"n": [1, 2.5, "ü", value]})
    return replace(kept, state=KeptState.ANSWERED, answer=answer, version=kept.version + 1)


class InnerLogSuite:
    @pytest.fixture
    async def started(self, store: InnerLogStore) -> AsyncIterator[InnerLogStore]:
        await store.start()
        yield store
        await store.close()

    @pytest.fixture
    async def beside(self, started: InnerLogStore, other: InnerLogStore | None) -> AsyncIterator[InnerLogStore]:
        """What another process sees; the same where nothing is shared."""
        if other is None:
            yield started
            return
        await other.start()
        yield other
        await other.close()

    async def test_calls_come_back_in_their_order_as_they_were_kept(
        self, started: InnerLogStore, beside: InnerLogStore
    ) -> None:
        calls = [a_call(index) for index in (10, 2, 0, 1)] + [a_call(0, "job-2")]
        for call in calls:
            assert await started.put(call)
        last = answered(a_call(2), 2**70)
        assert await beside.put(last)
        asked = a_call(1, state=KeptState.ASKED, approval_id="apr-1", inner_job_id="job-9", version=2)
        assert await beside.put(asked)
        assert list(await started.of_job("job-1")) == [a_call(0), asked, last, a_call(10)]
        assert (await started.get("job-1", 2), await started.get("job-1", 3)) == (last, None)
        assert list(await started.of_job("job-3")) == []

    async def test_the_first_of_two_writers_of_one_place_wins(
        self, started: InnerLogStore, beside: InnerLogStore
    ) -> None:
        assert await started.put(a_call())
        assert not await beside.put(a_call(tool="core/fs.copy")), "taken"
        assert await beside.put(answered(a_call()))
        assert not await started.put(a_call(state=KeptState.ASKED, version=2))
        assert not await started.put(a_call(1, version=2)), "there is none before it"
        assert [call.state for call in await started.of_job("job-1")] == [KeptState.ANSWERED]

    async def test_a_job_is_forgotten_whole_and_what_is_due_is_found(
        self, started: InnerLogStore, beside: InnerLogStore
    ) -> None:
        for call in (a_call(0), a_call(1, expires_at_unix_ms=T0 + 5), a_call(0, "job-10", expires_at_unix_ms=T0 + 2)):
            assert await started.put(call)
        due = [(call.job_id, call.index) for call in await beside.read_expired(T0 + 2, 10)]
        assert due == [("job-1", 0), ("job-10", 0)]
        assert len(await beside.read_expired(T0 + 9, 1)) == 1
        assert await beside.forget_job("job-1") == 2
        assert await started.forget_job("job-1") == 0
        assert list(await started.of_job("job-1")) == []
        assert [call.job_id for call in await started.read_expired(T0 + 9, 10)] == ["job-10"]
        assert await started.put(a_call()), "the place is free again"
