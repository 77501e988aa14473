"""Calls that a hub left without an end, as the next one finds them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.unit.stores.audit.logs_in import started_log
from toolhub_service.domain.event import Event, EventFilter, EventType
from toolhub_service.stores.audit.log import SqliteAuditLog
from toolhub_service.stores.audit.unended import UnendedCalls, find_unended

AT = 1_700_000_000_000


def begun(call_id: str, **attributes: str) -> Event:
    return Event(EventType.TOOL_CALLED, AT, call_id=call_id, tool="test/write", purpose="why", attributes=attributes)


def ended(call_id: str, **attributes: str) -> Event:
    return Event(EventType.TOOL_RESULT, AT + 1, call_id=call_id, outcome="ok", attributes=attributes)


async def look(log: SqliteAuditLog) -> list[tuple[str, Exception]]:
    """End what has none; return what failed."""
    failures: list[tuple[str, Exception]] = []
    calls = UnendedCalls(log, lambda: AT + 9, 0.0, lambda what, why: failures.append((what, why)))
    calls.start()
    if calls._task is not None:
        await asyncio.wait({calls._task})
    await calls.close()
    return failures


async def test_only_a_plain_call_without_an_end_gets_one_and_once(tmp_path: Path) -> None:
    first = await started_log(tmp_path)
    inner = {"parent_call_id": "of-a-job", "root_call_id": "of-a-job"}
    for event in (
        *(begun("whole"), ended("whole"), begun("cut")),
        *(begun("of-a-job", job_id="job_1"), ended("of-a-job", job_id="job_1"), begun("within", **inner)),
        begun("runs-for-a-job", job_id="job_2"),
    ):
        first.append(event)
    await first.flush()
    for _ in range(2):
        log = await started_log(tmp_path)
        assert first.writer in log.left_behind
        assert {each.call_id for each in find_unended(log.events, [first.writer])} == {"cut", "within"}
        assert await look(log) == []
        events = [each.event for each in await log.read(EventFilter(call_id="cut"), after=None, limit=9)]
        assert [(each.type.value, each.outcome, each.at_unix_ms) for each in events] == [
            ("TOOL_CALLED", "", AT),
            ("TOOL_RESULT", "OUTCOME_UNKNOWN", AT + 9),
        ]
        assert (events[1].tool, events[1].purpose, events[1].attributes) == ("test/write", "", {"cause": "HUB_DIED"})
        assert len(await log.read(EventFilter(call_id="within"), after=None, limit=9)) == 1
        await log.close()
    await first.close()


async def test_a_log_whose_writers_have_closed_their_chains_is_left_alone(tmp_path: Path) -> None:
    first = await started_log(tmp_path)
    first.append(begun("cut"))
    await first.close()
    log = await started_log(tmp_path)
    assert log.left_behind == []
    await log.close()


async def test_a_log_that_cannot_be_read_is_reported_and_the_hub_goes_on(tmp_path: Path) -> None:
    first, log = await started_log(tmp_path), await started_log(tmp_path)
    await log.close()
    (tmp_path / "audit.db").rename(tmp_path / "gone.db")
    ((what, why),) = await look(log)
    assert what == "unended calls"
    assert str(why)
    (tmp_path / "gone.db").rename(tmp_path / "audit.db")
    await first.close()
