"""Events are looked at for secrets many at a time, and sealed one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ports.audit_log_suite import EVERYTHING, called
from tests.unit.telemetry.logs_in import started_log
from toolhub_service.domain.event import Event, EventType
from toolhub_service.guards.secrets import Redactor
from toolhub_service.telemetry.audit import Rhythm
from toolhub_service.telemetry.chain import ARGS_SUMMARY_BYTES, are_clean, canonical, parse, presentable

SECRET = '{"password":"hunter22"}'


async def test_one_secret_among_many_events_is_hidden_and_the_others_stay_as_they_are(tmp_path: Path) -> None:
    log = await started_log(tmp_path, rhythm=Rhythm(linger_s=1.0))
    for number in range(200):
        log.append(called(number, args_summary=SECRET) if number == 150 else called(number))
    events = [chained.event for chained in await log.read(EVERYTHING, after=None, limit=1_000)]
    assert [event.at_unix_ms for event in events] == list(range(200))
    assert "hunter22" not in events[150].args_summary
    assert {event.args_summary for place, event in enumerate(events) if place != 150} == {called(1).args_summary}
    assert (await log.verify()).ok
    await log.close()


async def test_secret_that_only_nul_hides_is_no_reason_to_call_a_group_clean() -> None:
    redactor = Redactor()
    assert are_clean([called(1), called(2)], redactor)
    assert not are_clean([called(1), called(2, purpose="pass\0word=hunter22")], redactor)
    assert not are_clean([called(1, purpose="password=hunter22"), called(2)], redactor)


def test_canonical_event_has_its_fields_in_order_and_its_attributes_sorted() -> None:
    event = Event(EventType.TOOL_RESULT, 7, tool="a/b", outcome="ok", attributes={"b": "2", "a": "1"})
    body = canonical(event)
    assert body.startswith(b'{"type":"TOOL_RESULT","at_unix_ms":7,"principal":"","tool":"a/b","tool_digest":"",')
    assert body.endswith(b'"outcome":"ok","duration_us":0,"attributes":{"a":"1","b":"2"}}')
    assert parse(body) == event
    assert canonical(Event(EventType.TOOL_CALLED, 0)).endswith(b'"attributes":{}}')


async def test_log_is_behind_with_more_than_a_group_and_then_almost_full(tmp_path: Path) -> None:
    log = await started_log(tmp_path, rhythm=Rhythm(linger_s=60.0, queue_limit=10, group_limit=3))
    seen = []
    for number in range(9):
        log.append(called(number))
        seen.append((log.is_behind(), log.is_almost_full()))
    assert seen == [(False, False)] * 3 + [(True, False)] * 5 + [(True, True)]
    await log.flush()
    assert not log.is_behind()
    await log.close()


@pytest.mark.parametrize("character", ["x", "é", "語", "𝄞"])
def test_a_summary_is_cut_at_a_character_and_marked_only_when_it_is_too_long(character: str) -> None:
    size = len(character.encode())
    fits = character * (ARGS_SUMMARY_BYTES // size)
    assert presentable(called(1, args_summary=fits), Redactor()).args_summary == fits
    cut = presentable(called(1, args_summary=fits + character), Redactor()).args_summary
    assert ARGS_SUMMARY_BYTES - size - len("…".encode()) < len(cut.encode()) <= ARGS_SUMMARY_BYTES
    assert cut == character * (len(cut) - 1) + "…"


def test_a_secret_at_the_cut_is_hidden_before_it_is_cut() -> None:
    summary = "x" * (ARGS_SUMMARY_BYTES - 20) + " password=hunter22hunter22"
    shown = presentable(called(1, args_summary=summary), Redactor()).args_summary
    assert "hunter" not in shown
