"""What every `RecordStore` must do, for all processes. Inherit `RecordStoreSuite` and give empty stores.

Fixtures of the subclass: `approvals`, `artifacts` and `pins` (stores of those tables, not started), and `other_pins`: a
second instance on the same storage, as another process has it; the same once more where nothing is shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from tests.ports.approval_store_suite import an_approval
from tests.ports.approval_store_suite import then as then_approval
from tests.ports.artifact_records_suite import SHA, an_artifact
from tests.ports.pin_store_suite import T0, a_pin, then
from toolhub_service.domain.approval import Approval, ApprovalState
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.pin import Pin
from toolhub_service.stores.record_store import RecordStore, Where

EVERYTHING = Where()


class RecordStoreSuite:
    @pytest.fixture(autouse=True)
    async def opened(
        self,
        approvals: RecordStore[Approval],
        artifacts: RecordStore[Artifact],
        pins: RecordStore[Pin],
        other_pins: RecordStore[Pin],
    ) -> AsyncIterator[None]:
        stores = (approvals, artifacts, pins, other_pins)
        for store in stores:
            await store.start()
        yield
        for store in stores:
            await store.close()

    async def test_unknown_key_has_no_record(self, pins: RecordStore[Pin]) -> None:
        assert await pins.get(("notes", "notes/read", "d")) is None

    async def test_put_record_is_read_by_everyone(self, pins: RecordStore[Pin], other_pins: RecordStore[Pin]) -> None:
        assert await pins.put([a_pin()])
        assert await other_pins.get(a_pin().key) == a_pin()
        assert list(await other_pins.find("source", "notes")) == [a_pin()]
        assert list(await other_pins.find("source", "elsewhere")) == []

    async def test_only_the_next_version_replaces_a_record(self, pins: RecordStore[Pin]) -> None:
        assert not await pins.put([replace(a_pin(), version=2)])
        assert await pins.put([a_pin()])
        assert not await pins.put([a_pin()])
        assert await pins.put([then(a_pin())])
        assert await pins.get(a_pin().key) == then(a_pin())

    async def test_batch_is_kept_whole_or_not_at_all(self, pins: RecordStore[Pin]) -> None:
        before = await pins.revision()
        assert not await pins.put([a_pin(), then(a_pin("notes/write"))])
        assert await pins.page(EVERYTHING, after=None, limit=9) == ([], 0)
        assert await pins.revision() == before

    async def test_one_of_many_racing_changes_wins(self, pins: RecordStore[Pin], other_pins: RecordStore[Pin]) -> None:
        await pins.put([a_pin()])
        racing = [replace(then(a_pin()), comment=str(number)) for number in range(20)]
        done = await asyncio.gather(*((pins, other_pins)[n % 2].put([each]) for n, each in enumerate(racing)))
        assert done.count(True) == 1
        assert await pins.get(a_pin().key) == racing[done.index(True)]

    async def test_revision_rises_with_changes_only(self, pins: RecordStore[Pin], other_pins: RecordStore[Pin]) -> None:
        await pins.put([a_pin()])
        first = await other_pins.revision()
        assert not await pins.put([a_pin()])
        assert await pins.remove_all("source", "elsewhere") == 0
        assert await other_pins.revision() == first
        assert await pins.remove_all("source", "notes") == 1
        assert await other_pins.revision() > first
        assert list(await other_pins.find("source", "notes")) == []

    async def test_pages_are_newest_first_and_count_all_that_match(self, pins: RecordStore[Pin]) -> None:
        kept = [a_pin(f"notes/t{number}", seen_at_unix_ms=T0 + number // 2) for number in range(5)]
        await pins.put(kept)
        newest_first = sorted(kept, key=lambda pin: (pin.seen_at_unix_ms, *pin.key), reverse=True)
        page, count = await pins.page(EVERYTHING, after=None, limit=2)
        assert (list(page), count) == (newest_first[:2], 5)
        last = page[-1]
        page, count = await pins.page(EVERYTHING, after=(last.seen_at_unix_ms, *last.key), limit=9)
        assert (list(page), count) == (newest_first[2:], 5)

    @pytest.mark.parametrize(
        ("where", "found"),
        [
            (Where({"source": "notes"}), {"notes/read", "notes/write"}),
            (Where({"source": ""}, {"state": ()}, {"tool": ""}), {"notes/read", "notes/write", "time/now"}),
            (Where(among={"state": {"APPROVED"}}), {"notes/write"}),
            (Where(like={"tool": "*/r*"}), {"notes/read"}),
            (Where(checked={"source": "notes".__eq__}), {"notes/read", "notes/write"}),
            (Where(among={"state": {"APPROVED"}}, checked={"source": lambda _: False}), set()),
            (Where({"source": "time"}, {"state": {"PENDING"}}, {"tool": "time/now"}), {"time/now"}),
        ],
    )
    async def test_terms_are_joined_by_and(self, pins: RecordStore[Pin], where: Where, found: set[str]) -> None:
        await pins.put([a_pin(), a_pin("notes/write"), a_pin("time/now")])
        await pins.put([then(a_pin("notes/write"))])
        page, count = await pins.page(where, after=None, limit=9)
        assert ({pin.tool for pin in page}, count) == (found, len(found))

    async def test_one_open_record_has_a_unique_value(self, approvals: RecordStore[Approval]) -> None:
        first = an_approval()
        assert await approvals.create(first) is None
        assert await approvals.create(an_approval("apr-2")) == first
        assert await approvals.put([then_approval(first, ApprovalState.REJECTED)])
        assert await approvals.create(an_approval("apr-2")) is None

    async def test_open_records_expire_and_ended_ones_are_forgotten(self, approvals: RecordStore[Approval]) -> None:
        asked = an_approval()
        over = asked.expires_at_unix_ms
        await approvals.create(asked)
        assert list(await approvals.read_expired(over - 1, 9)) == []
        assert list(await approvals.read_expired(over, 9)) == [asked]
        assert await approvals.forget(over + 1, 9) == 0
        await approvals.put([then_approval(asked, ApprovalState.EXPIRED)])
        assert list(await approvals.read_expired(over, 9)) == []
        assert await approvals.forget(over, 9) == 0
        assert await approvals.forget(over + 1, 9) == 1
        assert await approvals.get(("apr-1",)) is None

    async def test_last_of_those_that_share_a_value_is_known(self, artifacts: RecordStore[Artifact]) -> None:
        for number in range(2):
            assert await artifacts.create(an_artifact(f"art-{number}")) is None
        await artifacts.create(an_artifact("art-2", sha256="b" * 64))
        assert [await artifacts.remove((f"art-{number}",)) for number in (0, 0, 1)] == [False, False, True]
        assert await artifacts.get(("art-0",)) is None
        assert await artifacts.get(("art-2",)) == an_artifact("art-2", sha256="b" * 64)

    async def test_records_are_counted_and_summed(self, artifacts: RecordStore[Artifact]) -> None:
        await artifacts.create(an_artifact("art-1", size_bytes=5))
        await artifacts.create(an_artifact("art-2", size_bytes=0))
        await artifacts.create(an_artifact("art-3", size_bytes=7, principal="agent-b", sha256=SHA[::-1]))
        assert await artifacts.totals("agent-a") == (2, 5)
        await artifacts.remove(("art-2",))
        assert await artifacts.totals("agent-a") == (1, 5)
        await artifacts.remove(("art-1",))
        assert await artifacts.totals("agent-a") == (0, 0)


class ListenerSuite:
    """Of tables that notify of changes. `store`: not started."""

    async def test_listener_gets_every_change_in_order_and_no_refused_one(self, store: RecordStore[Approval]) -> None:
        received: list[Approval | None] = []
        more = asyncio.Event()

        def on_event(approval: Approval | None) -> None:
            received.append(approval)
            more.set()

        store.listen(on_event)
        await store.start()
        asked, granted = an_approval(), then_approval(an_approval(), ApprovalState.APPROVED)
        await store.create(asked)
        await store.create(an_approval("apr-2"))
        assert not await store.put([replace(asked, version=7)])
        await store.put([granted])
        async with asyncio.timeout(60):
            while granted not in received:
                more.clear()
                await more.wait()
        assert [each for each in received if each is not None] == [asked, granted]
        await store.close()
