"""What every store of idempotency keys must do, for all processes. Inherit `KeyStoreSuite` and give an empty store.

The fixtures `store` (room for CAPACITY keys) and `clock` (the store's own) are the subclass's. `SharedKeysSuite` is for
stores whose keys several processes share, and wants `keys` and `others`: the stores of two such processes.
"""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tests.fakes.clock import ManualClock
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.key import EffectKey, KeyRecord
from toolhub_service.domain.ports import KeyStore
from toolhub_service.domain.result import Evidence, EvidenceType, StepName, ToolResult

CAPACITY = 20
LEASE_S = 60
TTL_S = 3_600
KEY = EffectKey("agent-a", "core/fs.writeText", "k-1")
AT_ONCE = 0.0
LONG_S = 30.0
"""Longer than any wait here takes: a store that does not wake its waiters fails by name."""
RESULT = ToolResult(
    ok=True,
    call_id="call-1",
    tool="core/fs.writeText",
    value={"path": "a.txt", "sizes": [1, 2**63, 1.5, None]},
    evidence=(Evidence(EvidenceType.FILE, "a.txt", "written", 5, "ab", {"mode": "0600"}),),
    tool_version="1.0.0",
    attempts=2,
    defaults_applied=("/overwrite",),
    durations_us={StepName.EXECUTE: 7},
)
ERROR = ToolError(ErrorKind.NETWORK_ERROR, "It broke.", retry_after_s=1.5, details={"host": "a"})


def a_record(clock: ManualClock, owner: str = "owner-1", **changes: object) -> KeyRecord:
    lease_until_unix_ms = clock.unix_ms() + LEASE_S * 1_000
    record = KeyRecord(owner, "call-1", "args", "tool", lease_until_unix_ms, lease_until_unix_ms + TTL_S * 1_000)
    return replace(record, **changes)


def in_ttl(clock: ManualClock) -> int:
    return clock.unix_ms() + TTL_S * 1_000


def by(principal: str, key: str = "k") -> EffectKey:
    return EffectKey(principal, "core/fs.writeText", key)


async def refused(store: KeyStore, key: EffectKey, clock: ManualClock) -> ToolError:
    with pytest.raises(ToolFailure) as raised:
        await store.claim(key, a_record(clock))
    return raised.value.error


async def filled(store: KeyStore, clock: ManualClock, principal: str) -> int:
    """How many keys the principal could claim."""
    for number in range(CAPACITY + 1):
        try:
            assert await store.claim(by(principal, str(number)), a_record(clock)) is None
        except ToolFailure:
            return number
    raise AssertionError("there was no bound")


class KeyStoreSuite:
    async def test_free_key_is_claimed_once(self, store: KeyStore, clock: ManualClock) -> None:
        first = a_record(clock)
        assert await store.claim(KEY, first) is None
        assert await store.claim(KEY, a_record(clock, "owner-2")) == first

    async def test_many_claims_at_once_have_one_winner(self, store: KeyStore, clock: ManualClock) -> None:
        claims = [store.claim(KEY, a_record(clock, f"owner-{number}")) for number in range(50)]
        answers = await asyncio.gather(*claims)
        winner = answers.index(None)
        assert answers.count(None) == 1
        assert {answer.owner for answer in answers if answer is not None} == {f"owner-{winner}"}

    @pytest.mark.parametrize("other", [KEY._replace(principal="agent-b"), KEY._replace(tool="core/fs.move")])
    async def test_same_key_in_another_scope_is_another_key(
        self, store: KeyStore, clock: ManualClock, other: EffectKey
    ) -> None:
        assert await store.claim(KEY, a_record(clock)) is None
        assert await store.claim(other, a_record(clock, "owner-2")) is None

    async def test_parts_of_a_scope_do_not_run_into_one_another(self, store: KeyStore, clock: ManualClock) -> None:
        assert await store.claim(EffectKey("a", "b/c", "d"), a_record(clock)) is None
        assert await store.claim(EffectKey("a/b", "c", "d"), a_record(clock, "owner-2")) is None
        assert await store.claim(EffectKey("a", "b", "c/d"), a_record(clock, "owner-3")) is None

    @pytest.mark.parametrize(
        "result", [RESULT, RESULT._replace(ok=False, value=None, error=ERROR)], ids=["ok", "error"]
    )
    async def test_settled_key_gives_the_whole_answer(
        self, store: KeyStore, clock: ManualClock, result: ToolResult
    ) -> None:
        first = a_record(clock)
        await store.claim(KEY, first)
        assert await store.settle(KEY, first.owner, result, in_ttl(clock))
        standing = await store.claim(KEY, a_record(clock, "owner-2"))
        assert standing == replace(first, result=result, expires_at_unix_ms=in_ttl(clock))

    async def test_key_is_settled_once(self, store: KeyStore, clock: ManualClock) -> None:
        await store.claim(KEY, a_record(clock))
        assert await store.settle(KEY, "owner-1", RESULT, in_ttl(clock))
        assert not await store.settle(KEY, "owner-1", RESULT._replace(ok=False), in_ttl(clock))
        standing = await store.claim(KEY, a_record(clock, "owner-2"))
        assert standing is not None
        assert standing.result == RESULT

    async def test_another_owner_neither_settles_nor_releases(self, store: KeyStore, clock: ManualClock) -> None:
        first = a_record(clock)
        await store.claim(KEY, first)
        assert not await store.settle(KEY, "owner-2", RESULT, in_ttl(clock))
        assert not await store.release(KEY, "owner-2")
        assert await store.claim(KEY, a_record(clock, "owner-2")) == first

    async def test_released_key_is_free(self, store: KeyStore, clock: ManualClock) -> None:
        await store.claim(KEY, a_record(clock))
        assert await store.release(KEY, "owner-1")
        assert not await store.release(KEY, "owner-1")
        assert await store.claim(KEY, a_record(clock, "owner-2")) is None

    async def test_settled_key_cannot_be_released(self, store: KeyStore, clock: ManualClock) -> None:
        await store.claim(KEY, a_record(clock))
        await store.settle(KEY, "owner-1", RESULT, in_ttl(clock))
        assert not await store.release(KEY, "owner-1")
        assert await store.claim(KEY, a_record(clock, "owner-2")) is not None

    async def test_owner_is_replaced_only_by_who_names_it(self, store: KeyStore, clock: ManualClock) -> None:
        await store.claim(KEY, a_record(clock))
        assert await store.claim(KEY, a_record(clock, "owner-3"), replacing="owner-2") is not None
        assert await store.claim(KEY, a_record(clock, "owner-2"), replacing="owner-1") is None
        assert await store.claim(KEY, a_record(clock, "owner-3"), replacing="owner-1") is not None
        assert not await store.settle(KEY, "owner-1", RESULT, in_ttl(clock))

    async def test_owner_that_settled_meanwhile_is_not_replaced(self, store: KeyStore, clock: ManualClock) -> None:
        await store.claim(KEY, a_record(clock))
        await store.settle(KEY, "owner-1", RESULT, in_ttl(clock))
        standing = await store.claim(KEY, a_record(clock, "owner-2"), replacing="owner-1")
        assert standing is not None
        assert standing.result == RESULT

    async def test_lease_that_is_over_frees_nothing(self, store: KeyStore, clock: ManualClock) -> None:
        first = a_record(clock)
        await store.claim(KEY, first)
        clock.advance(LEASE_S + 1)
        assert await store.claim(KEY, a_record(clock, "owner-2")) == first
        assert await store.settle(KEY, "owner-1", RESULT, in_ttl(clock)), "late, but still the owner"

    async def test_answer_is_forgotten_when_it_expires(self, store: KeyStore, clock: ManualClock) -> None:
        await store.claim(KEY, a_record(clock))
        await store.settle(KEY, "owner-1", RESULT, in_ttl(clock))
        clock.advance(TTL_S - 1)
        assert await store.claim(KEY, a_record(clock, "owner-2")) is not None
        clock.advance(1)
        assert await store.claim(KEY, a_record(clock, "owner-2")) is None

    async def test_an_abandoned_claim_is_forgotten_when_it_expires(self, store: KeyStore, clock: ManualClock) -> None:
        await store.claim(KEY, a_record(clock))
        clock.advance(LEASE_S + TTL_S)
        assert not await store.settle(KEY, "owner-1", RESULT, in_ttl(clock))
        assert not await store.release(KEY, "owner-1")
        assert await store.claim(KEY, a_record(clock, "owner-2")) is None

    async def test_waiter_wakes_when_the_owner_settles(self, store: KeyStore, clock: ManualClock) -> None:
        await store.claim(KEY, a_record(clock))
        waiting = [asyncio.create_task(store.wait_for_end(KEY, "owner-1", LONG_S)) for _ in range(3)]
        await asyncio.sleep(0)
        await store.settle(KEY, "owner-1", RESULT, in_ttl(clock))
        assert await asyncio.gather(*waiting) == [True] * 3

    async def test_waiter_wakes_when_the_owner_releases(self, store: KeyStore, clock: ManualClock) -> None:
        await store.claim(KEY, a_record(clock))
        waiting = asyncio.create_task(store.wait_for_end(KEY, "owner-1", LONG_S))
        await asyncio.sleep(0)
        await store.release(KEY, "owner-1")
        assert await waiting

    async def test_waiter_wakes_when_the_owner_is_replaced(self, store: KeyStore, clock: ManualClock) -> None:
        await store.claim(KEY, a_record(clock))
        waiting = asyncio.create_task(store.wait_for_end(KEY, "owner-1", LONG_S))
        await asyncio.sleep(0)
        await store.claim(KEY, a_record(clock, "owner-2"), replacing="owner-1")
        assert await waiting

    async def test_waiter_of_an_owner_that_has_ended_does_not_wait(self, store: KeyStore, clock: ManualClock) -> None:
        assert await store.wait_for_end(KEY, "owner-1", LONG_S), "never claimed"
        await store.claim(KEY, a_record(clock, "owner-2"))
        assert await store.wait_for_end(KEY, "owner-1", LONG_S), "another's now"
        await store.settle(KEY, "owner-2", RESULT, in_ttl(clock))
        assert await store.wait_for_end(KEY, "owner-2", LONG_S), "settled"

    async def test_waiter_gives_up_when_its_time_is_over(self, store: KeyStore, clock: ManualClock) -> None:
        await store.claim(KEY, a_record(clock))
        assert not await store.wait_for_end(KEY, "owner-1", AT_ONCE)

    async def test_full_store_refuses_new_keys_and_forgets_none(self, store: KeyStore, clock: ManualClock) -> None:
        keys = [by(f"agent-{number}") for number in range(CAPACITY)]
        for key in keys:
            assert await store.claim(key, a_record(clock)) is None
            await store.settle(key, "owner-1", RESULT, in_ttl(clock))
        error = await refused(store, by("one-more"), clock)
        assert (error.kind, error.retry_after_s) == (ErrorKind.RATE_LIMITED, TTL_S)
        assert error.details["whose"] == "all"
        assert "without a key" in error.message
        for key in keys:
            standing = await store.claim(key, a_record(clock, "owner-2"))
            assert standing is not None
            assert standing.result == RESULT

    async def test_full_store_has_room_again_when_keys_expire(self, store: KeyStore, clock: ManualClock) -> None:
        for number in range(CAPACITY):
            await store.claim(by(f"agent-{number}"), a_record(clock))
            await store.settle(by(f"agent-{number}"), "owner-1", RESULT, in_ttl(clock))
        clock.advance(TTL_S)
        assert await store.claim(by("one-more"), a_record(clock)) is None

    async def test_full_store_still_lets_a_dead_owner_be_replaced(self, store: KeyStore, clock: ManualClock) -> None:
        for number in range(CAPACITY):
            await store.claim(by(f"agent-{number}"), a_record(clock))
        assert await store.claim(by("agent-7"), a_record(clock, "owner-2"), replacing="owner-1") is None

    async def test_one_principal_fills_half_and_the_rest_stays_for_others(
        self, store: KeyStore, clock: ManualClock
    ) -> None:
        assert await filled(store, clock, "greedy") == CAPACITY // 2
        error = await refused(store, by("greedy", "one-more"), clock)
        assert (error.kind, error.details["whose"]) == (ErrorKind.RATE_LIMITED, "yours")
        assert (error.retry_after_s, error.details["limit"]) == (LEASE_S + TTL_S, "idempotency")
        assert "left to others" in error.message
        standing = await store.claim(by("greedy", "0"), a_record(clock, "owner-2"))
        assert standing is not None, "what it holds it keeps"

    async def test_each_who_takes_all_it_can_leaves_half_of_what_was_left(
        self, store: KeyStore, clock: ManualClock
    ) -> None:
        assert [await filled(store, clock, f"greedy-{number}") for number in range(3)] == [10, 5, 3]
        assert await store.claim(by("modest"), a_record(clock)) is None

    async def test_share_is_free_again_when_keys_end_or_expire(self, store: KeyStore, clock: ManualClock) -> None:
        await filled(store, clock, "greedy")
        await store.release(by("greedy", "0"), "owner-1")
        assert await store.claim(by("greedy", "again"), a_record(clock)) is None
        await refused(store, by("greedy", "one-more"), clock)
        clock.advance(LEASE_S + TTL_S)
        assert await filled(store, clock, "greedy") == CAPACITY // 2

    async def test_settled_and_replaced_keys_count_once(self, store: KeyStore, clock: ManualClock) -> None:
        for number in range(CAPACITY // 2):
            key = by("greedy", str(number))
            assert await store.claim(key, a_record(clock)) is None
            assert await store.claim(key, a_record(clock, "owner-2"), replacing="owner-1") is None
            assert await store.settle(key, "owner-2", RESULT, in_ttl(clock))
        await refused(store, by("greedy", "one-more"), clock)


class SharedKeysSuite:
    @pytest.mark.promise("idempotency.shared")
    async def test_processes_share_claims_and_answers(
        self, keys: KeyStore, others: KeyStore, clock: ManualClock
    ) -> None:
        claims = [(keys, others)[n % 2].claim(KEY, a_record(clock, f"owner-{n}")) for n in range(50)]
        answers = await asyncio.gather(*claims)
        assert answers.count(None) == 1
        owner = f"owner-{answers.index(None)}"
        assert await others.settle(KEY, owner, RESULT, in_ttl(clock))
        standing = await keys.claim(KEY, a_record(clock, "late"))
        assert standing is not None
        assert standing.result == RESULT

    @pytest.mark.parametrize("how", ["settle", "release", "replace"])
    @pytest.mark.promise("idempotency.shared")
    async def test_waiter_wakes_when_another_process_ends_the_claim(
        self, keys: KeyStore, others: KeyStore, clock: ManualClock, how: str
    ) -> None:
        await keys.claim(KEY, a_record(clock))
        waiting = [asyncio.create_task(keys.wait_for_end(KEY, "owner-1", LONG_S)) for _ in range(3)]
        assert not await keys.wait_for_end(KEY, "owner-1", AT_ONCE)
        if how == "settle":
            assert await others.settle(KEY, "owner-1", RESULT, in_ttl(clock))
        elif how == "release":
            assert await others.release(KEY, "owner-1")
        else:
            assert await others.claim(KEY, a_record(clock, "owner-2"), replacing="owner-1") is None
        assert await asyncio.gather(*waiting) == [True] * 3
