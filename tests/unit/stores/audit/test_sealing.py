"""Events are looked at for secrets many at a time, and sealed one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.ports.audit_log_suite import EVERYTHING, called
from tests.unit.stores.audit.logs_in import started_log
from toolhub_service.domain.event import Event, EventType
from toolhub_service.guards.secrets import Redactor
from toolhub_service.stores.audit.chain import Chain, canonical, parse
from toolhub_service.stores.audit.keyring import Keyring
from toolhub_service.stores.audit.log import WriterTiming
from toolhub_service.stores.audit.presentation import LABELS_CHARS, SUMMARY_BYTES, are_clean, encodable, presentable

SECRET = '{"password":"hunter22"}'


async def test_one_secret_among_many_events_is_hidden_and_the_others_stay_as_they_are(tmp_path: Path) -> None:
    log = await started_log(tmp_path, timing=WriterTiming(linger_s=1.0))
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


FOR_WHOM = Event(
    EventType.TOOL_RESULT,
    7,
    user_id="u",
    agent_id="a",
    task_id="t",
    session_id="s",
    labels={"b": "2", "a": "1"},
    result_digest="d" * 64,
    result_summary="{}",
)


def test_a_canonical_event_ends_with_the_principal_it_was_for_where_known() -> None:
    body = canonical(FOR_WHOM)
    assert parse(body) == FOR_WHOM
    assert body.endswith(
        b'"attributes":{},"user_id":"u","agent_id":"a","task_id":"t","session_id":"s","labels":{"a":"1","b":"2"},'
        b'"result_digest":"' + b"d" * 64 + b'","result_summary":"{}"}'
    )
    assert canonical(replace(FOR_WHOM, user_id="", labels={})).count(b"user_id") == 0


def test_event_that_an_earlier_version_wrote_is_spelt_as_it_was_and_its_tag_fits() -> None:
    """Body and tag were written at befa727, whose events knew nothing of for whom a call was."""
    body = (
        b'{"type":"TOOL_RESULT","at_unix_ms":1700000000000,"principal":"agent-a","tool":"core/fs.readText",'
        b'"tool_digest":"","call_id":"call-1","request_id":"req-1","args_digest":"","args_summary":"","purpose":"",'
        b'"policy_revision":"","rule_id":"","outcome":"ok","duration_us":7,"attributes":{"attempts":"1"}}'
    )
    chain = Chain("hub-1", Keyring([b"\1" * 32]))
    assert canonical(parse(body)) == body
    assert chain.add(canonical(parse(body)))[2] == "c26bb0ebb886406cfb3911cd7bfb12a302a9a8f80b9e05f1aa7fc22eadd7353b"


@pytest.mark.parametrize(
    "changes",
    [
        {"result_summary": '{"password":"hunter22"}'},
        {"result_summary": '{"argv":["login","--token","hunter22"]}'},
        {"labels": {"password": "hunter22"}},
        {"labels": {"note": "password=hunter22"}},
        *({name: "token:hunter22-hunter22"} for name in ("user_id", "agent_id", "task_id", "session_id")),
    ],
)
def test_secrets_in_the_user_and_in_results_are_hidden(changes: dict[str, Any]) -> None:
    event = called(1, **changes)
    assert not are_clean([event], Redactor())
    assert b"hunter22" not in canonical(presentable(event, Redactor()))


def test_summary_of_a_result_is_cut_like_that_of_arguments() -> None:
    shown = presentable(called(1, result_summary="é" * SUMMARY_BYTES), Redactor())
    assert shown.result_summary.endswith("é…")
    assert len(shown.result_summary.encode()) <= SUMMARY_BYTES


def test_labels_beyond_four_kibibytes_are_left_out_and_counted() -> None:
    fits = {f"{number:02}": "x" * 254 for number in range(LABELS_CHARS // 256)}
    assert presentable(called(1, labels=fits), Redactor()).labels == fits
    cut = presentable(called(1, labels={"zz": "last", "z": "", **fits}), Redactor()).labels
    assert cut == {**fits, "…": "2 labels left out"}


def test_labels_that_utf8_cannot_carry_are_kept_as_well_as_can_be() -> None:
    mended = encodable(called(1, labels={"k\ud800": "v\ud800"}, user_id="\ud800"))
    assert (mended.labels, mended.user_id) == ({"k?": "v?"}, "?")


async def test_log_is_behind_with_more_than_a_group(tmp_path: Path) -> None:
    log = await started_log(tmp_path, timing=WriterTiming(linger_s=60.0, queue_limit=10, group_limit=3))
    seen = []
    for number in range(9):
        log.append(called(number))
        seen.append(log.is_behind())
    assert seen == [False] * 3 + [True] * 6
    await log.flush()
    assert not log.is_behind()
    await log.close()


@pytest.mark.parametrize("character", ["x", "é", "語", "𝄞"])
def test_a_summary_is_cut_at_a_character_and_marked_only_when_it_is_too_long(character: str) -> None:
    size = len(character.encode())
    fits = character * (SUMMARY_BYTES // size)
    assert presentable(called(1, args_summary=fits), Redactor()).args_summary == fits
    cut = presentable(called(1, args_summary=fits + character), Redactor()).args_summary
    assert SUMMARY_BYTES - size - len("…".encode()) < len(cut.encode()) <= SUMMARY_BYTES
    assert cut == character * (len(cut) - 1) + "…"


def test_a_secret_at_the_cut_is_hidden_before_it_is_cut() -> None:
    summary = "x" * (SUMMARY_BYTES - 20) + " password=hunter22hunter22"
    shown = presentable(called(1, args_summary=summary), Redactor()).args_summary
    assert "hunter" not in shown
