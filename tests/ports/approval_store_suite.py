"""What every store of approvals must do, for all processes. Inherit `ApprovalStoreSuite` and give an empty store.

Fixtures of the subclass: `store` (not started), `other` (a second instance on the same storage, as another process has
it, not started either; None where nothing is shared).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.ports.recording_listener import ApprovalListener
from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState, ApprovalStore, Binding
from toolhub_service.domain.call import Question
from toolhub_service.domain.json import JsonObject

T0 = 1_700_000_000_000
MINUTE_MS = 60_000
BINDING = Binding("agent-a", "core/fs.writeText", "d" * 64, "a" * 64, "rev-1")
OPEN = [ApprovalState.PENDING, ApprovalState.APPROVED]
ENDED = [state for state in ApprovalState if state not in OPEN]


def an_approval(approval_id: str = "apr-1", **changes: Any) -> Approval:
    """PENDING. `changes` are of the binding where it has such a field, else of the approval."""
    bound = {name: value for name, value in changes.items() if name in Binding.__struct_fields__}
    approval = Approval(
        approval_id=approval_id,
        binding=replace(BINDING, **bound),
        state=ApprovalState.PENDING,
        tool_version="1.0.0",
        args_summary_json='{"path":"a.txt"}',
        rule_id="writes",
        reason="Writes are looked at.",
        purpose="tidying up",
        call_id="call-1",
        request_id="r-1",
        requested_at_unix_ms=T0,
        expires_at_unix_ms=T0 + MINUTE_MS,
        approvers=("lead-*",),
    )
    return replace(approval, **{name: value for name, value in changes.items() if name not in bound})


def then(approval: Approval, state: ApprovalState, **changes: Any) -> Approval:
    return replace(approval, state=state, version=approval.version + 1, **changes)


class ApprovalStoreSuite:
    @pytest.fixture
    def listener(self) -> ApprovalListener:
        return ApprovalListener()

    @pytest.fixture
    async def started(self, store: ApprovalStore, listener: ApprovalListener) -> AsyncIterator[ApprovalStore]:
        store.listen(listener)
        await store.start()
        yield store
        await store.close()

    @pytest.fixture
    async def another(self, other: ApprovalStore | None, started: ApprovalStore) -> AsyncIterator[ApprovalStore]:
        """The second instance, or the first once more where nothing is shared."""
        if other is None:
            yield started
        else:
            await other.start()
            yield other
            await other.close()

    async def test_created_approval_is_read_whole_by_everyone(
        self, started: ApprovalStore, another: ApprovalStore
    ) -> None:
        approval = an_approval(job_id="job-1", purpose="é😀\x00", approvers=("a", "b*"))
        assert await started.create(approval) is None
        assert await another.get("apr-1") == approval
        assert await started.get("apr-2") is None

    async def test_question_its_answer_and_what_only_the_tool_understands_survive(
        self, started: ApprovalStore, another: ApprovalStore, listener: ApprovalListener
    ) -> None:
        schema: JsonObject = {
            "type": "object",
            "properties": {"n": {"type": "integer", "maximum": 2**70}},
            "required": ["n"],
        }
        asked = an_approval(
            question_digest="q" * 64,
            question=Question("é😀?", schema, "state\x00" * 8_000),
            round=8,
            covers_rule_id="writes",
        )
        assert await started.create(an_approval("apr-2")) is None
        assert await started.create(asked) is None
        assert await another.get("apr-1") == asked
        assert await another.create(replace(asked, approval_id="apr-3")) == asked
        answered = then(asked, ApprovalState.APPROVED, answer={"n": 2**69})
        assert await another.put(answered)
        assert await started.get("apr-1") == answered
        await listener.until(lambda: listener.versions() == [1, 2])
        assert [each for each in listener.news if each is not None and each.approval_id == "apr-1"][-1] == answered

    @pytest.mark.parametrize("state", OPEN)
    async def test_open_approval_of_the_same_binding_stands(
        self, started: ApprovalStore, another: ApprovalStore, state: ApprovalState
    ) -> None:
        standing = an_approval()
        await started.create(standing)
        if state is not standing.state:
            standing = then(standing, state)
            await started.put(standing)
        assert await another.create(an_approval("apr-2")) == standing
        assert await started.get("apr-2") is None

    @pytest.mark.parametrize("state", ENDED)
    async def test_ended_approval_makes_room_for_another(self, started: ApprovalStore, state: ApprovalState) -> None:
        await started.create(an_approval())
        assert await started.put(then(an_approval(), state))
        assert await started.create(an_approval("apr-2")) is None
        assert await started.create(an_approval("apr-3")) == an_approval("apr-2")

    @pytest.mark.parametrize("field", Binding.__struct_fields__)
    async def test_any_other_binding_needs_another_approval(self, started: ApprovalStore, field: str) -> None:
        await started.create(an_approval())
        other = an_approval("apr-2", **{field: "another"})
        assert await started.create(other) is None
        assert await started.get("apr-2") == other

    async def test_parts_of_a_binding_do_not_run_into_one_another(self, started: ApprovalStore) -> None:
        assert await started.create(an_approval("apr-1", principal="a", tool='b","c')) is None
        assert await started.create(an_approval("apr-2", principal='a","b', tool="c")) is None
        assert await started.create(an_approval("apr-3", principal="a:b", tool="c")) is None
        assert await started.create(an_approval("apr-4", principal="a", tool="b:c")) is None

    async def test_many_creations_at_once_make_one(self, started: ApprovalStore, another: ApprovalStore) -> None:
        wanted = [an_approval(f"apr-{number}") for number in range(50)]
        answers = await asyncio.gather(*((started, another)[n % 2].create(each) for n, each in enumerate(wanted)))
        assert answers.count(None) == 1
        winner = wanted[answers.index(None)]
        assert all(answer in (None, winner) for answer in answers)

    async def test_put_replaces_the_record(self, started: ApprovalStore, another: ApprovalStore) -> None:
        approval = an_approval()
        await started.create(approval)
        decided = then(approval, ApprovalState.APPROVED, decided_at_unix_ms=T0 + 1, decided_by="lead-b", comment="fine")
        assert await another.put(decided)
        used = then(decided, ApprovalState.USED, used_at_unix_ms=T0 + 2, used_by_call_id="call-2")
        assert await started.put(used)
        assert await another.get("apr-1") == used

    async def test_stale_or_unknown_record_is_refused(self, started: ApprovalStore, another: ApprovalStore) -> None:
        approval = an_approval()
        assert not await started.put(then(approval, ApprovalState.APPROVED))
        await started.create(approval)
        decided = then(approval, ApprovalState.APPROVED)
        assert await started.put(decided)
        assert not await another.put(then(approval, ApprovalState.REJECTED))
        assert not await another.put(replace(decided, version=5))
        assert await started.get("apr-1") == decided

    @pytest.mark.promise("approval.single-use")
    async def test_one_of_many_concurrent_uses_wins(self, started: ApprovalStore, another: ApprovalStore) -> None:
        approval = then(an_approval(), ApprovalState.APPROVED)
        await started.create(an_approval())
        await started.put(approval)
        uses = [then(approval, ApprovalState.USED, used_by_call_id=f"call-{number}") for number in range(50)]
        answers = await asyncio.gather(*((started, another)[n % 2].put(each) for n, each in enumerate(uses)))
        assert answers.count(True) == 1
        assert await started.get("apr-1") == uses[answers.index(True)]

    async def test_pages_go_from_the_newest_to_the_oldest(self, started: ApprovalStore) -> None:
        approvals = [
            an_approval(f"apr-{number}", args_digest=str(number), requested_at_unix_ms=T0 + number // 2)
            for number in range(9)
        ]
        for approval in approvals:
            await started.create(approval)
        newest_first = sorted(approvals, key=lambda each: (each.requested_at_unix_ms, each.approval_id), reverse=True)
        after: tuple[int, str] | None = None
        read: list[Approval] = []
        while True:
            page, count = await started.page(ApprovalFilter(), after=after, limit=2)
            assert count == 9
            if not page:
                break
            read += page
            after = (page[-1].requested_at_unix_ms, page[-1].approval_id)
        assert read == newest_first

    @pytest.mark.parametrize(
        ("where", "found"),
        [
            (ApprovalFilter(), {"a", "b", "c"}),
            (ApprovalFilter(states=frozenset({ApprovalState.PENDING})), {"a", "b"}),
            (ApprovalFilter(states=frozenset({ApprovalState.APPROVED, ApprovalState.USED})), {"c"}),
            (ApprovalFilter(principal="agent-b"), {"b"}),
            (ApprovalFilter(owners="agent-b".__eq__), {"b"}),
            (ApprovalFilter(tool="core/fs.writeText"), {"a", "b"}),
            (ApprovalFilter(tool="core/*"), {"a", "b"}),
            (ApprovalFilter(tool="[!c]*"), {"c"}),
            (ApprovalFilter(tool="CORE/*"), set()),
            (ApprovalFilter(principal="agent-a", tool="x/*", states=frozenset({ApprovalState.APPROVED})), {"c"}),
        ],
    )
    async def test_filters_join_by_and(self, started: ApprovalStore, where: ApprovalFilter, found: set[str]) -> None:
        await started.create(an_approval("a"))
        await started.create(an_approval("b", principal="agent-b"))
        await started.create(third := an_approval("c", tool="x/n8n.flow"))
        await started.put(then(third, ApprovalState.APPROVED))
        page, count = await started.page(where, after=None, limit=10)
        assert {each.approval_id for each in page} == found
        assert count == len(found)

    async def test_open_approvals_lapse_when_their_time_is_over_oldest_first(self, started: ApprovalStore) -> None:
        for number, state in enumerate(ApprovalState):
            approval = an_approval(f"apr-{number}", args_digest=str(number), expires_at_unix_ms=T0 + 100 - number)
            await started.create(approval)
            if state is not ApprovalState.PENDING:
                await started.put(then(approval, state))
        assert list(await started.read_expired(T0 + 98, 10)) == []
        assert [each.state for each in await started.read_expired(T0 + 99, 10)] == [ApprovalState.APPROVED]
        over = await started.read_expired(T0 + 100, 10)
        assert [each.state for each in over] == [ApprovalState.APPROVED, ApprovalState.PENDING]
        assert len(await started.read_expired(T0 + 100, 1)) == 1

    async def test_ended_ones_are_forgotten_after_they_expired(self, started: ApprovalStore) -> None:
        for number, state in enumerate(ApprovalState):
            approval = an_approval(f"apr-{number}", args_digest=str(number))
            await started.create(approval)
            if state is not ApprovalState.PENDING:
                await started.put(then(approval, state))
        assert await started.forget(T0 + MINUTE_MS, 10) == 0
        assert await started.forget(T0 + MINUTE_MS + 1, 2) == 2
        assert await started.forget(T0 + MINUTE_MS + 1, 10) == 1
        page, count = await started.page(ApprovalFilter(), after=None, limit=10)
        assert {each.state for each in page} == {ApprovalState.PENDING, ApprovalState.APPROVED}
        assert count == 2

    async def test_a_listener_receives_every_change_of_every_process_in_order(
        self, started: ApprovalStore, another: ApprovalStore, listener: ApprovalListener
    ) -> None:
        approval = an_approval()
        await another.create(approval)
        decided = then(approval, ApprovalState.APPROVED)
        await started.put(decided)
        used = then(decided, ApprovalState.USED)
        await another.put(used)
        await listener.until(lambda: listener.versions() == [1, 2, 3])
        assert [each for each in listener.news if each is not None][-1] == used

    async def test_a_listener_does_not_receive_refused_changes(
        self, started: ApprovalStore, listener: ApprovalListener
    ) -> None:
        await started.create(an_approval())
        await started.create(an_approval("apr-2"))
        await started.put(replace(an_approval(), version=7))
        await started.put(then(an_approval(), ApprovalState.REJECTED))
        await listener.until(lambda: listener.versions() == [1, 2])
        assert listener.versions("apr-2") == []

    async def test_a_listener_receives_only_what_comes_after_the_start(
        self, store: ApprovalStore, other: ApprovalStore | None
    ) -> None:
        listener, writer = ApprovalListener(), other or store
        if other is not None:
            await other.start()
        await writer.create(an_approval("before"))
        store.listen(listener)
        await store.start()
        await writer.create(an_approval("after", principal="agent-b"))
        await listener.until(lambda: listener.versions("after") == [1])
        assert listener.versions("before") == []
        for each in {store, writer}:
            await each.close()
