"""What every store of pins must do, for all processes. Inherit `PinStoreSuite` and give an empty store.

Fixtures of the subclass: `store` (not started), `other` (a second instance on the same storage, as another process has
it, not started either; None where nothing is shared).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import Code
from toolhub_service.domain.pin import Pin, PinChange, PinFilter, PinState, pin_digest
from toolhub_service.domain.source import PinStore
from toolhub_service.stores.codec import encode_pin

T0 = 1_700_000_000_000
Damage = Callable[[Pin, bytes], Awaitable[None]]
"""Puts these bytes in the place of the record of a pin."""


def a_pin(tool: str = "notes/read", definition: Any = None, **changes: Any) -> Pin:
    """PENDING; its source is the namespace of the tool."""
    source = tool.partition("/")[0]
    remote = {"name": tool.partition("/")[2]} if definition is None else definition
    pin = Pin(source, tool, pin_digest(source, remote), remote, PinState.PENDING, seen_at_unix_ms=T0)
    return replace(pin, **changes)


def then(pin: Pin, state: PinState = PinState.APPROVED, **changes: Any) -> Pin:
    return replace(pin, state=state, version=pin.version + 1, **changes)


def place(pin: Pin) -> tuple[int, str, str, str]:
    return pin.seen_at_unix_ms, *pin.key


async def kept(store: PinStore, source: str = "notes") -> set[tuple[str, PinState, int]]:
    return {(pin.tool, pin.state, pin.version) for pin in await store.of_source(source)}


async def read_all(store: PinStore, where: PinFilter, limit: int) -> list[Pin]:
    """Page after page."""
    after: tuple[int, str, str, str] | None = None
    read: list[Pin] = []
    while True:
        page, _ = await store.page(where, after=after, limit=limit)
        read += page
        if not page:
            return read
        after = place(page[-1])


class PinStoreSuite:
    @pytest.fixture
    async def started(self, store: PinStore) -> AsyncIterator[PinStore]:
        await store.start()
        yield store
        await store.close()

    @pytest.fixture
    async def another(self, other: PinStore | None, started: PinStore) -> AsyncIterator[PinStore]:
        """The second instance, or the first once more where nothing is shared."""
        if other is None:
            yield started
        else:
            await other.start()
            yield other
            await other.close()

    async def test_pin_is_read_whole_by_everyone(self, started: PinStore, another: PinStore) -> None:
        pin = a_pin(
            state=PinState.REJECTED,
            change=PinChange.RENAMED,
            previous_digest="p" * 64,
            renamed_from="notes/lesen",
            findings=("It hides text.", "é😀\x00"),
            decided_at_unix_ms=T0 + 1,
            decided_by="lead-b",
            comment="no \u202e",
            registered=True,
        )
        assert await started.put([pin])
        assert list(await another.of_source("notes")) == [pin]
        assert list(await another.of_source("note")) == []

    @pytest.mark.parametrize(
        "remote",
        [
            {},
            {"b": 1, "a": [None, True, {"": {}}], "": [[]]},
            {"text": "é😀\x00\u2028\u202e\U000e0041", "é": 'null"\\'},
            {"int": [2**63, -(2**63) - 1, 10**300], "float": [1.0, -0.0, 5e-324, 1e300, 0.1], "one": 1},
            {"description": "x" * 600_000, "inputSchema": {"enum": list(range(1_000))}},
        ],
        ids=["empty", "nested", "unicode", "numbers", "large"],
    )
    async def test_definition_comes_back_exactly(self, started: PinStore, another: PinStore, remote: Any) -> None:
        assert await started.put([pin := a_pin(definition=remote)])
        (back,) = await another.of_source("notes")
        assert repr(back.definition) == repr(remote), "types, digits and the order of members too"
        assert back.digest == pin_digest("notes", back.definition) == pin.digest

    async def test_key_that_is_taken_is_not_taken_again(self, started: PinStore, another: PinStore) -> None:
        assert await started.put([a_pin()])
        assert not await another.put([a_pin(comment="another")])
        assert not await started.put([a_pin("notes/write"), a_pin(comment="another")])
        assert list(await started.of_source("notes")) == [a_pin()]

    async def test_one_tool_has_a_pin_for_each_digest(self, started: PinStore) -> None:
        pins = [a_pin(), a_pin(definition={"name": "read", "description": "Now!"})]
        assert await started.put(pins)
        assert sorted(await started.of_source("notes"), key=place) == sorted(pins, key=place)

    async def test_put_replaces_the_record(self, started: PinStore, another: PinStore) -> None:
        pin = a_pin()
        await started.put([pin])
        approved = then(pin, decided_by="lead-b", decided_at_unix_ms=T0 + 1)
        assert await another.put([approved])
        superseded = then(approved, PinState.SUPERSEDED, comment="é")
        assert await started.put([superseded])
        assert list(await another.of_source("notes")) == [superseded]

    async def test_stale_or_unknown_pin_is_refused(self, started: PinStore, another: PinStore) -> None:
        pin = a_pin()
        assert not await started.put([then(pin)])
        await started.put([pin])
        assert await started.put([then(pin)])
        assert not await another.put([then(pin, PinState.REJECTED)])
        assert not await another.put([replace(pin, version=4)])
        assert not await another.put([replace(pin, version=0)])
        assert list(await started.of_source("notes")) == [then(pin)]

    async def test_put_of_many_is_one_change(self, started: PinStore, another: PinStore) -> None:
        old, new = a_pin("notes/a"), a_pin("notes/a", {"name": "a", "description": "other"})
        others = [a_pin(f"notes/t{number}") for number in range(700)]
        assert await started.put([old, new, *others])
        assert await another.put([then(old, PinState.SUPERSEDED), then(new)])
        assert sorted(await started.of_source("notes"), key=place) == sorted(
            [then(old, PinState.SUPERSEDED), then(new), *others], key=place
        )

    async def test_batch_with_one_stale_pin_leaves_nothing(self, started: PinStore, another: PinStore) -> None:
        first, second = a_pin("notes/a"), a_pin("notes/b")
        await started.put([first, second])
        await another.put([then(second)])
        revision = await started.revision()
        assert not await started.put([then(first), a_pin("notes/c"), then(second, PinState.REJECTED)])
        assert await kept(started) == {("notes/a", PinState.PENDING, 1), ("notes/b", PinState.APPROVED, 2)}
        assert await started.revision() == revision

    async def test_batch_that_changes_one_pin_twice_is_refused(self, started: PinStore) -> None:
        assert not await started.put([a_pin(), a_pin(comment="other")])
        assert not await started.put([a_pin(), then(a_pin())])
        assert await started.put([])
        assert list(await started.of_source("notes")) == []
        assert await started.revision() == 0

    @pytest.mark.promise("pin.all-or-none")
    async def test_one_of_many_racing_batches_wins_and_the_others_leave_nothing(
        self, started: PinStore, another: PinStore
    ) -> None:
        contested = [a_pin(f"notes/{name}") for name in "abc"]
        await started.put(contested)
        batches = [
            [a_pin(f"notes/own{n}"), *(then(pin, comment=f"by {n}") for pin in contested), a_pin(f"other{n}/own")]
            for n in range(30)
        ]
        answers = await asyncio.gather(*((started, another)[n % 2].put(batch) for n, batch in enumerate(batches)))
        assert answers.count(True) == 1
        won = batches[answers.index(True)]
        everything = await read_all(started, PinFilter(), 50)
        assert sorted(everything, key=place) == sorted(won, key=place)

    async def test_pages_go_from_the_newest_to_the_oldest_without_gaps(self, started: PinStore) -> None:
        names = ["a/x", "a/x.y", "a/x-y", "a/x_y", "a/X", "a/xy", "a-/x", "a_/x", "aa/x", "b/x"]
        pins = [a_pin(name, seen_at_unix_ms=T0 + number) for number in range(3) for name in names]
        pins = [replace(pin, digest=f"{pin.seen_at_unix_ms:064x}") for pin in pins]
        pins += [replace(pin, digest="0" * 64) for pin in pins[-10:]]
        await started.put(pins)
        newest_first = sorted(pins, key=place, reverse=True)
        for limit in (1, 7, 100):
            assert await read_all(started, PinFilter(), limit) == newest_first
        of_a = [pin for pin in newest_first if pin.source == "a"]
        assert await read_all(started, PinFilter(source="a"), 5) == of_a
        assert await read_all(started, PinFilter(tool="*/x", states=frozenset(PinState)), 3) == [
            pin for pin in newest_first if pin.tool.endswith("/x")
        ]

    async def test_a_page_states_how_many_match_in_all(self, started: PinStore) -> None:
        await started.put([a_pin(f"notes/t{number}") for number in range(9)])
        for where in (PinFilter(), PinFilter(source="notes"), PinFilter(tool="notes/*")):
            page, count = await started.page(where, after=(T0, "notes", "notes/t4", ""), limit=2)
            assert [pin.tool for pin in page] == ["notes/t3", "notes/t2"]
            assert count == 9
            assert await started.page(where, after=None, limit=0) == ([], 9)
        assert await started.page(PinFilter(source="other"), after=None, limit=2) == ([], 0)

    @pytest.mark.parametrize(
        ("where", "found"),
        [
            (PinFilter(), {"notes/read", "notes/write", "time/now"}),
            (PinFilter(source="notes"), {"notes/read", "notes/write"}),
            (PinFilter(source="note*"), set()),
            (PinFilter(tool="notes/read"), {"notes/read"}),
            (PinFilter(tool="*/[rn]*"), {"notes/read", "time/now"}),
            (PinFilter(tool="NOTES/*"), set()),
            (PinFilter(tool="notes/%"), set()),
            (PinFilter(states=frozenset({PinState.APPROVED})), {"notes/write"}),
            (PinFilter(states=frozenset({PinState.APPROVED, PinState.PENDING})), {"notes/read", "notes/write"}),
            (PinFilter(states=frozenset({PinState.SUPERSEDED})), set()),
            (PinFilter("notes", "*", frozenset({PinState.PENDING, PinState.REJECTED})), {"notes/read"}),
        ],
    )
    async def test_filters_join_by_and(self, started: PinStore, where: PinFilter, found: set[str]) -> None:
        await started.put([a_pin(), a_pin("notes/write"), a_pin("time/now", state=PinState.REJECTED)])
        await started.put([then(a_pin("notes/write"))])
        page, count = await started.page(where, after=None, limit=10)
        assert {pin.tool for pin in page} == found
        assert count == len(found)

    async def test_revision_rises_with_every_change_by_anyone_and_not_otherwise(
        self, started: PinStore, another: PinStore
    ) -> None:
        revisions = [await another.revision()]
        for store, pin in ((started, a_pin()), (another, then(a_pin())), (started, a_pin("time/now"))):
            assert await store.put([pin])
            revisions.append(await another.revision())
            assert await started.revision() == revisions[-1]
        await started.forget_source("time")
        revisions.append(await another.revision())
        assert revisions == sorted(set(revisions))
        assert not await started.put([a_pin()])
        assert await another.forget_source("time") == 0
        await started.page(PinFilter(), after=None, limit=5)
        assert await another.revision() == revisions[-1]

    async def test_pin_is_removed_unless_it_has_changed_since(self, started: PinStore, another: PinStore) -> None:
        first, second = a_pin(), a_pin("notes/write")
        await started.put([first, second])
        await another.put([then(first)])
        revision = await started.revision()
        assert not await started.remove(first)
        assert not await started.remove(a_pin("notes/none"))
        assert await started.revision() == revision
        assert await another.remove(second)
        assert await started.revision() > revision
        assert list(await started.of_source("notes")) == [then(first)]
        assert (await started.page(PinFilter(), after=None, limit=5))[1] == 1
        assert not await started.remove(second)
        assert await started.put([second])

    async def test_forgotten_source_is_new_again_and_others_stay(self, started: PinStore, another: PinStore) -> None:
        pins = [a_pin(f"notes/t{number}") for number in range(5)]
        await started.put([*pins, a_pin("note/x"), a_pin("notes-/x")])
        assert await another.forget_source("notes") == 5
        assert list(await started.of_source("notes")) == []
        page, count = await started.page(PinFilter(), after=None, limit=10)
        assert {pin.tool for pin in page} == {"note/x", "notes-/x"}
        assert count == 2
        assert await started.put([pins[0]])

    async def test_two_thousand_pins_of_a_source_are_read_at_once(self, started: PinStore, another: PinStore) -> None:
        pins = [
            a_pin(f"notes/t{number}", {"name": f"t{number}", "description": "x" * 2_000}) for number in range(2_000)
        ]
        assert await started.put(pins)
        assert sorted(await another.of_source("notes"), key=place) == sorted(pins, key=place)


class WrittenPinsSuite:
    """Of stores that write pins down: `store` is as above; `damage` puts other bytes in the place of a pin's record."""

    @pytest.fixture
    async def spoiled(self, store: PinStore, damage: Damage) -> AsyncIterator[PinStore]:
        """`notes/read` cannot be read; `notes/write` and `time/now` can."""
        await store.start()
        await store.put([a_pin(), a_pin("notes/write"), a_pin("time/now", seen_at_unix_ms=T0 - 1)])
        await damage(a_pin(), b"\x00")
        yield store
        await store.close()

    @pytest.mark.promise("pin.unreadable")
    async def test_pin_that_cannot_be_read_blocks_its_source_and_no_other(self, spoiled: PinStore) -> None:
        with pytest.raises(HubFailure) as refused:
            await spoiled.of_source("notes")
        assert refused.value.reason.code is Code.FAILED_PRECONDITION
        assert refused.value.reason.name == "PIN_UNREADABLE"
        assert refused.value.metadata == {"source": "notes", "tool": "notes/read", "digest": a_pin().digest}
        assert list(await spoiled.of_source("time")) == [a_pin("time/now", seen_at_unix_ms=T0 - 1)]

    async def test_pin_that_cannot_be_read_hides_no_other_from_the_operator(self, spoiled: PinStore) -> None:
        page, count = await spoiled.page(PinFilter(), after=None, limit=10)
        assert [pin.tool for pin in page] == ["notes/write", "time/now"]
        assert count == 3

    async def test_source_whose_pins_were_forgotten_is_free_again(self, spoiled: PinStore) -> None:
        assert await spoiled.forget_source("notes") == 2
        assert list(await spoiled.of_source("notes")) == []
        assert await spoiled.put([a_pin()])
        assert list(await spoiled.of_source("notes")) == [a_pin()]

    async def test_pin_that_cannot_be_read_is_not_taken_for_a_free_key(self, spoiled: PinStore) -> None:
        assert not await spoiled.put([a_pin()])

    async def test_definition_that_is_not_json_is_refused_and_nothing_of_its_batch_is_kept(
        self, store: PinStore
    ) -> None:
        await store.start()
        for wrong in ({"default": float("nan")}, {"description": "\ud800"}):
            with pytest.raises(ValueError, match=r".+"):
                await store.put([a_pin("notes/good"), a_pin("notes/bad", wrong)])
        assert list(await store.of_source("notes")) == []
        assert await store.revision() == 0

    @pytest.mark.parametrize(
        "swapped", [a_pin("notes/write"), a_pin("time/now"), then(a_pin()), a_pin(digest="0" * 64)]
    )
    async def test_record_of_another_pin_is_not_believed(self, store: PinStore, damage: Damage, swapped: Pin) -> None:
        await store.start()
        await store.put([a_pin()])
        await damage(a_pin(), encode_pin(swapped))
        with pytest.raises(HubFailure) as refused:
            await store.of_source("notes")
        assert refused.value.reason.name == "PIN_UNREADABLE"
        assert list((await store.page(PinFilter(), after=None, limit=10))[0]) == []
        await store.close()
