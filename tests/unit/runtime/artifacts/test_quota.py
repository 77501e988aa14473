"""What counts for a quota while uploads begin and end beside one another."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.fakes.storage import with_quota
from toolhub_service.domain.artifact import ArtifactRecords
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.runtime.artifacts.quota import Quota


class SlowRecords:
    """Records of one principal, that take a while to be read once they are held."""

    def __init__(self) -> None:
        self.recorded = 0, 0
        self.asked = asyncio.Event()
        self.let_go = asyncio.Event()
        self.let_go.set()

    async def usage(self, principal: str) -> tuple[int, int]:
        found = self.recorded
        self.asked.set()
        await self.let_go.wait()
        return found


async def test_upload_that_ends_while_the_usage_is_read_counts_for_the_quota() -> None:
    records = SlowRecords()
    quota = Quota(cast(ArtifactRecords, cast(Any, records)), with_quota(artifact=10_000))

    async def claimed(size_bytes: int) -> None:
        async with quota.claim("agent-a") as claim:
            claim.grow(size_bytes)

    async with quota.claim("agent-a") as first:
        first.grow(4_000)
        records.asked.clear()
        records.let_go.clear()
        second = asyncio.create_task(claimed(6_000))
        await records.asked.wait()  # the second has read that nothing is recorded
        records.recorded = 1, 4_000
    records.let_go.set()
    with pytest.raises(ToolFailure) as refused:
        await second
    assert refused.value.error.kind is ErrorKind.BUDGET_EXCEEDED


async def test_upload_goes_on_counting_for_the_quota_when_another_one_ends() -> None:
    quota = Quota(cast(ArtifactRecords, cast(Any, SlowRecords())), with_quota(artifact=10_000))
    async with quota.claim("agent-a") as first:
        first.grow(4_000)
        async with quota.claim("agent-a"):
            pass
        with pytest.raises(ToolFailure):
            async with quota.claim("agent-a") as third:
                third.grow(6_000)
