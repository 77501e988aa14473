"""What every audit log must do."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.kinds import ErrorKind
from toolhub_service.domain.event import ChainedEvent, Event, EventFilter, EventType
from toolhub_service.guards.secrets import Redactor
from toolhub_service.stores.audit.events import matches
from toolhub_service.stores.audit.log import ChainedAuditLog

KNOWN_SECRET = "suite-canary-5f3a91"
REDACTOR = Redactor([KNOWN_SECRET])
TAIL_LIMIT = 50
EVERYTHING = EventFilter()


def called(number: int, **changes: Any) -> Event:
    """A TOOL_CALLED event at `number` milliseconds."""
    event = Event(
        EventType.TOOL_CALLED,
        at_unix_ms=number,
        principal="agent-a",
        tool="core/fs.readText",
        call_id=f"call-{number}",
        request_id=f"req-{number // 10}",
        args_summary='{"path":"notes.md"}',
        attributes={"mode": "EXECUTE"},
    )
    return replace(event, **changes)


class AuditLogSuite:
    """Subclass it, and give it a `log` fixture: started, empty, redacting KNOWN_SECRET, TAIL_LIMIT events a watcher."""

    async def test_appended_events_are_read_in_order_with_their_place_in_the_chain(self, log: ChainedAuditLog) -> None:
        for number in range(1, 6):
            log.append(called(number))
        events = await log.read(EVERYTHING, after=None, limit=10)
        assert [event.event for event in events] == [called(number) for number in range(1, 6)]
        assert [event.sequence for event in events] == [1, 2, 3, 4, 5]
        assert events[0].previous_mac == "0" * 64
        assert [event.previous_mac for event in events[1:]] == [event.mac for event in events[:-1]]
        assert len({event.writer for event in events}) == 1

    async def test_a_durable_append_returns_and_is_there(self, log: ChainedAuditLog) -> None:
        log.append(called(1))
        await log.append_durably(called(2))
        assert len(await log.read(EVERYTHING, after=None, limit=10)) == 2

    async def test_many_durable_appends_at_once_all_return(self, log: ChainedAuditLog) -> None:
        await asyncio.gather(*(log.append_durably(called(number)) for number in range(1, 201)))
        assert (await log.verify()).events_checked == 200

    async def test_pages_follow_the_cursor_without_gap_or_repetition(self, log: ChainedAuditLog) -> None:
        for number in (3, 1, 2, 2, 2, 5, 4):
            log.append(called(number))
        seen: list[ChainedEvent] = []
        after: tuple[int, str, int] | None = None
        while page := await log.read(EVERYTHING, after=after, limit=2):
            seen += page
            after = (page[-1].event.at_unix_ms, page[-1].writer, page[-1].sequence)
        assert [event.event.at_unix_ms for event in seen] == [1, 2, 2, 2, 3, 4, 5]
        assert len({event.sequence for event in seen}) == 7

    async def test_every_field_of_the_filter_selects(self, log: ChainedAuditLog) -> None:
        log.append(called(10, principal="agent-b"))
        log.append(called(20, tool="core/http.get"))
        log.append(called(30, type=EventType.POLICY_DENIED))
        log.append(called(40, call_id="the-call"))
        log.append(called(50, request_id="the-request"))
        writer = (await log.read(EVERYTHING, after=None, limit=1))[0].writer

        async def times(where: EventFilter) -> list[int]:
            return [event.event.at_unix_ms for event in await log.read(where, after=None, limit=10)]

        assert await times(EventFilter(principal="agent-b")) == [10]
        assert await times(EventFilter(tool="core/http.get")) == [20]
        assert await times(EventFilter(types=frozenset({EventType.POLICY_DENIED, EventType.RETRY}))) == [30]
        assert await times(EventFilter(call_id="the-call")) == [40]
        assert await times(EventFilter(request_id="the-request")) == [50]
        assert await times(EventFilter(tool="core/http.*")) == [20]
        assert await times(EventFilter(tool="*.get", to_unix_ms=20)) == []
        assert await times(EventFilter(writer=writer)) == [10, 20, 30, 40, 50]
        assert await times(EventFilter(writer="another")) == []
        assert await times(EventFilter(from_unix_ms=20, to_unix_ms=40)) == [20, 30]

    async def test_events_are_found_by_outcome_kind_rule_and_label(self, log: ChainedAuditLog) -> None:
        log.append(called(1, attributes={"outcome": "ok", "rule_id": "r"}, labels={"rule_id": "r", "outcome": "ok"}))
        log.append(called(2, outcome="ok", rule_id="r"))
        log.append(called(3, outcome="TOOL_NOT_FOUND", labels={"team": "ops", "why": 'a "b"'}))
        log.append(called(4, outcome="POLICY_DENIED", rule_id="r2", labels={"team": "dev"}))

        async def times(where: EventFilter) -> list[int]:
            assert [
                e.event.at_unix_ms for e in await log.read(EVERYTHING, after=None, limit=9) if matches(where, e)
            ] == [found.event.at_unix_ms for found in await log.read(where, after=None, limit=9)]
            return [event.event.at_unix_ms for event in await log.read(where, after=None, limit=1)]

        kinds = frozenset({ErrorKind.POLICY_DENIED, ErrorKind.RATE_LIMITED})
        assert await times(EventFilter(outcome="ok")) == [2]
        assert await times(EventFilter(rule_id="r")) == [2]
        assert await times(EventFilter(error_kinds=kinds)) == [4]
        assert await times(EventFilter(error_kinds=kinds, outcome="ok")) == []
        assert await times(EventFilter(labels={"team": "dev"})) == [4]
        assert await times(EventFilter(labels={"team": "ops", "why": 'a "b"'})) == [3]
        assert await times(EventFilter(labels={"team": "dev", "why": 'a "b"'})) == []

    @pytest.mark.parametrize("name", ["user_id", "agent_id", "task_id", "session_id"])
    async def test_events_are_found_by_user_and_not_by_a_label_of_that_name(
        self, log: ChainedAuditLog, name: str
    ) -> None:
        for number in range(1, 9):
            log.append(called(number, labels={name: "alice"}, attributes={name: "alice"}, **{name: "ali_e"}))
        log.append(called(9, **{name: "alice"}))
        log.append(called(10, **{name: "alice"}, purpose=f'"{name}":"ali_e"'))
        found = await log.read(EventFilter(**{name: "alice"}), after=None, limit=2)  # type: ignore[arg-type]
        assert [event.event.at_unix_ms for event in found] == [9, 10]
        odd = EventFilter(**{name: 'x" OR \0 %'})  # type: ignore[arg-type]
        assert not await log.read(odd, after=None, limit=2)
        async with aclosing(log.tail(EventFilter(**{name: "alice"}))) as tail:  # type: ignore[arg-type]
            log.append(called(11, labels={name: "alice"}))
            log.append(called(12, **{name: "alice"}))
            assert (await anext(tail)).event.at_unix_ms == 12

    async def test_events_for_a_user_come_once_each_between_others(self, log: ChainedAuditLog) -> None:
        for number in range(1, 9):
            whom = {"user_id": "alice"} if number % 2 == 0 else {"labels": {"user_id": "alice"}}
            log.append(called(number, **whom))
        found = await log.read(EventFilter(user_id="alice"), after=None, limit=2)
        assert [event.event.at_unix_ms for event in found] == [2, 4]

    async def test_events_of_those_who_are_meant_are_found_between_those_of_others(self, log: ChainedAuditLog) -> None:
        names = ("a-1", "b-1", "", "a-2", "b-2", "a-1", "a-3")
        for number, principal in enumerate(names, start=1):
            log.append(called(number, principal=principal))
        where = EventFilter(owners=lambda owner: owner.startswith("a-"), from_unix_ms=2)
        seen: list[int] = []
        after: tuple[int, str, int] | None = None
        while page := await log.read(where, after=after, limit=2):
            seen += [each.event.at_unix_ms for each in page]
            after = (page[-1].event.at_unix_ms, page[-1].writer, page[-1].sequence)
        assert seen == [4, 6, 7]
        assert not await log.read(EventFilter(owners=lambda _: False), after=None, limit=2)

    async def test_events_of_those_who_are_meant_are_found_where_principals_are_too_many_to_be_asked_for_one_by_one(
        self, log: ChainedAuditLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("toolhub_service.stores.audit.by_principal._KNOWN_MAX", 2)
        for number, principal in enumerate(("a-1", "b-1", "a-2", "b-2"), start=1):
            log.append(called(number, principal=principal))
        found = await log.read(EventFilter(owners=lambda owner: owner.startswith("a-")), after=None, limit=9)
        assert [each.event.at_unix_ms for each in found] == [1, 3]

    async def test_an_event_keeps_its_user_and_the_result_as_appended(self, log: ChainedAuditLog) -> None:
        whom = {"user_id": "u", "agent_id": "a", "task_id": "t", "session_id": "s", "labels": {"b": "2", "a": "1"}}
        event = called(1, **whom, result_digest="d" * 64, result_summary='{"text":"x"}')
        await log.append_durably(event)
        assert [each.event for each in await log.read(EVERYTHING, after=None, limit=2)] == [event]
        assert (await log.verify()).ok

    async def test_a_watcher_sees_what_comes_after_it_and_passes_its_filter(self, log: ChainedAuditLog) -> None:
        await log.append_durably(called(1))
        async with aclosing(log.tail(EventFilter(principal="agent-b"))) as tail:
            log.append(called(2))
            log.append(called(3, principal="agent-b"))
            log.append(called(4, principal="agent-b"))
            assert (await anext(tail)).event.at_unix_ms == 3
            assert (await anext(tail)).event.at_unix_ms == 4

    async def test_a_slow_watcher_is_ended_as_lagging_and_delays_nobody(self, log: ChainedAuditLog) -> None:
        async with aclosing(log.tail(EVERYTHING)) as slow, aclosing(log.tail(EVERYTHING)) as quick:
            for number in range(1, TAIL_LIMIT + 2):
                await log.append_durably(called(number))
                assert (await anext(quick)).event.at_unix_ms == number
            taken = [(await anext(slow)).event.at_unix_ms for _ in range(TAIL_LIMIT)]
            assert taken == list(range(1, TAIL_LIMIT + 1))
            with pytest.raises(HubFailure) as caught:
                await anext(slow)
            assert caught.value.reason.name == "TAIL_LAGGED"

    async def test_a_closed_watcher_ends(self, log: ChainedAuditLog) -> None:
        tail = log.tail(EVERYTHING)
        await tail.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(tail)

    async def test_an_untouched_log_verifies(self, log: ChainedAuditLog) -> None:
        assert (await log.verify()).ok
        for number in range(1, 30):
            log.append(called(number))
        verification = await log.verify()
        assert (verification.ok, verification.events_checked, verification.writers) == (True, 29, 1)

    async def test_a_secret_is_hidden_before_it_is_chained(self, log: ChainedAuditLog) -> None:
        await log.append_durably(
            called(
                1,
                principal=KNOWN_SECRET,
                purpose=f"because {KNOWN_SECRET}",
                args_summary='{"headers":{"Authorization":"Bearer abcdefgh1"},"token":"t0psecret","x":"' + KNOWN_SECRET,
                attributes={"password": "hunter2", "note": KNOWN_SECRET, "url": "https://u:pw123@host/"},
            )
        )
        shown = repr(await log.read(EVERYTHING, after=None, limit=1))
        for secret in (KNOWN_SECRET, "abcdefgh1", "t0psecret", "hunter2", "pw123"):
            assert secret not in shown
        assert (await log.verify()).ok

    async def test_arguments_that_only_their_names_and_flags_announce_as_secret_are_hidden(
        self, log: ChainedAuditLog
    ) -> None:
        summary = '{"argv":["login","--token","zq7t0p"],"headers":[{"name":"Authorization","value":"zq8t0p"}],"n":1}'
        log.append(called(1, args_summary=summary))
        (event,) = await log.read(EVERYTHING, after=None, limit=1)
        assert "t0p" not in event.event.args_summary
        assert event.event.args_summary.startswith('{"argv":["login","--token",')

    async def test_a_long_summary_is_cut_to_a_kibibyte_after_it_was_redacted(self, log: ChainedAuditLog) -> None:
        log.append(called(1, args_summary="ü" * 500 + f'{{"password":"{"s3cret" * 40}"}}' + "x" * 2000))
        (event,) = await log.read(EVERYTHING, after=None, limit=1)
        summary = event.event.args_summary
        assert len(summary.encode()) <= 1024
        assert summary.endswith("…")
        assert "s3cret" not in summary

    async def test_text_that_utf8_cannot_carry_is_kept_as_well_as_can_be(self, log: ChainedAuditLog) -> None:
        await log.append_durably(called(1, principal="a\ud800b", purpose="x\udfff", attributes={"k\ud800": "v\ud800"}))
        (event,) = await log.read(EVERYTHING, after=None, limit=1)
        assert event.event.principal == "a?b"
        assert (await log.verify()).ok
