"""What every keeper of shared counts must do. Inherit `CountsSuite` and give the fixtures of the subclass.

`clock` is the keeper's own; `counts` and `others` are two processes' views of the same counts (one object twice where
nothing is shared).
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.fakes.clock import ManualClock
from toolhub_service.budget.limits import Counter
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.verdict import ExhaustedLimit, Limit, Refused, SharedCounts, Taken

RATE = Limit("rate", rate_per_s=10.0, burst=5)
QUOTA = Limit("quota", quota=7, quota_window_s=60.0)


def is_refused(answer: Taken | Refused, limit: Limit, scarce: ExhaustedLimit, wait_s: float) -> bool:
    assert isinstance(answer, Refused)
    return answer[:2] == (limit, scarce) and answer.wait_s == pytest.approx(wait_s, abs=0.002)


class CountsSuite:
    async def test_burst_passes_and_then_the_rate(self, counts: SharedCounts, clock: ManualClock) -> None:
        for _ in range(5):
            assert isinstance(await counts.take([RATE]), Taken)
        assert is_refused(await counts.take([RATE]), RATE, ExhaustedLimit.RATE, 0.1)
        clock.advance(0.1)
        assert isinstance(await counts.take([RATE]), Taken)
        assert isinstance(await counts.take([RATE]), Refused)

    async def test_processes_spend_one_quota(
        self, counts: SharedCounts, others: SharedCounts, clock: ManualClock
    ) -> None:
        answers = await asyncio.gather(*(each.take([QUOTA]) for _ in range(20) for each in (counts, others)))
        assert sum(isinstance(answer, Taken) for answer in answers) == 7
        clock.advance(59)
        assert is_refused(await others.take([QUOTA]), QUOTA, ExhaustedLimit.QUOTA, 1.0)
        clock.advance(1)
        assert isinstance(await others.take([QUOTA]), Taken)

    async def test_refused_call_has_taken_nothing_of_any_limit(self, counts: SharedCounts) -> None:
        scarce = Limit("scarce", quota=1)
        assert isinstance(await counts.take([RATE, QUOTA, scarce]), Taken)
        for _ in range(10):
            refused = await counts.take([RATE, QUOTA, scarce])
            assert isinstance(refused, Refused)
            assert refused.limit == scarce
        answers = [await counts.take([RATE, QUOTA]) for _ in range(5)]
        assert [isinstance(answer, Taken) for answer in answers] == [True] * 4 + [False]

    async def test_looking_takes_nothing_and_sees_what_is_gone(self, counts: SharedCounts) -> None:
        both = [Limit("rate", rate_per_s=1.0, burst=1), Limit("quota", quota=1)]
        for _ in range(5):
            assert await counts.take(both, spend=False) == Taken()
        assert isinstance(await counts.take(both), Taken)
        assert isinstance(await counts.take(both, spend=False), Refused)

    async def test_a_returned_token_can_be_taken_again(self, counts: SharedCounts, others: SharedCounts) -> None:
        both = [Limit("rate", rate_per_s=1.0, burst=1), Limit("quota", quota=1)]
        for _ in range(5):
            taken = await counts.take(both)
            assert isinstance(taken, Taken)
            assert isinstance(await others.take(both), Refused)
            await counts.give_back(taken)
        assert isinstance(await others.take(both), Taken)

    async def test_giving_back_into_a_window_that_has_closed_changes_nothing(
        self, counts: SharedCounts, clock: ManualClock
    ) -> None:
        limit = Limit("quota", quota=1, quota_window_s=10.0)
        early = await counts.take([limit])
        assert isinstance(early, Taken)
        clock.advance(10)
        assert isinstance(await counts.take([limit]), Taken)
        await counts.give_back(early)
        assert isinstance(await counts.take([limit]), Refused)

    async def test_quota_of_none_lets_none_pass(self, counts: SharedCounts) -> None:
        closed = Limit("closed", quota=0, quota_window_s=30.0)
        assert is_refused(await counts.take([closed]), closed, ExhaustedLimit.QUOTA, 30.0)

    @pytest.mark.parametrize("seed", range(5))
    async def test_random_calls_are_decided_as_one_counter_would(
        self, counts: SharedCounts, clock: ManualClock, seed: int
    ) -> None:
        chance = random.Random(seed)
        limit = Limit("both", rate_per_s=chance.choice([2.0, 8.0]), burst=3, quota=12, quota_window_s=5.0)
        oracle = Counter(limit)
        for _ in range(150):
            clock.advance(chance.choice([0.0, 0.0, 0.125, 0.5]))
            now_s = clock.unix_ms() / 1_000
            answer = await counts.take([limit])
            if isinstance(answer, Refused):
                with pytest.raises(ToolFailure) as refused:
                    oracle.check(now_s)
                assert answer.wait_s == pytest.approx(refused.value.error.retry_after_s, abs=0.002)
                continue
            oracle.check(now_s)
            opened_at_s = oracle.take(now_s)
            if chance.random() < 0.2:
                await counts.give_back(answer)
                oracle.give_back(opened_at_s)
