"""AuditService: pages, a tail that goes on where it stopped, and a log that proves itself."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import RunningHub, running_hub
from tests.rpc.statuses import failed
from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import event_pb2
from toolhub_service.app.config_files.paths import Paths

TOOL = "core/util.time.now"


async def calls(hub: RunningHub, count: int) -> list[str]:
    """Ids of that many calls, each of which leaves two events."""
    return [(await hub.invoke(TOOL)).call_id for _ in range(count)]


async def listed(hub: RunningHub, page_size: int, **where: Any) -> list[Any]:
    events: list[Any] = []
    token = ""
    while True:
        asked = pb.ListEventsRequest(filter=event_pb2.EventFilter(**where), page_size=page_size, page_token=token)
        page = await hub.audit.ListEvents(asked)
        events += page.events
        token = page.next_page_token
        if not token:
            return events


@pytest.mark.parametrize("page_size", [1, 2, 3, 0])
async def test_pages_make_one_gapless_list(hub: RunningHub, page_size: int) -> None:
    ids = await calls(hub, 4)
    events = await listed(hub, page_size)
    own = [event for event in events if event.type != event_pb2.EVENT_TYPE_AUDIT_READ]
    assert [event.call_id for event in own] == ids
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert len(events) == (5 if page_size else 4), "later pages show that the first one was read"


async def test_filter_finds_one_call(hub: RunningHub) -> None:
    ids = await calls(hub, 2)
    events = await listed(hub, 0, call_id=ids[1])
    assert [event.type for event in events] == [event_pb2.EVENT_TYPE_TOOL_RESULT]
    assert {event.principal for event in events} == {"local"}


async def test_page_token_of_nobody_is_refused(hub: RunningHub) -> None:
    failure = await failed(hub.audit.ListEvents(pb.ListEventsRequest(page_token="nonsense")))
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PAGE_TOKEN_INVALID")


async def test_tail_shows_events_as_they_happen(hub: RunningHub) -> None:
    tail = hub.audit.TailEvents(pb.TailEventsRequest(), timeout=60)
    await tail.initial_metadata()
    (call_id,) = await calls(hub, 1)
    assert (await tail.read()).event.call_id == call_id
    tail.cancel()


@pytest.mark.promise("audit.resumable-tail")
async def test_tail_goes_on_where_it_stopped_without_gap_or_repetition(hub: RunningHub) -> None:
    tail = hub.audit.TailEvents(pb.TailEventsRequest(), timeout=60)
    await tail.initial_metadata()
    await calls(hub, 1)
    seen = [await tail.read()]
    tail.cancel()
    await calls(hub, 2)  # while nobody listens
    again = hub.audit.TailEvents(pb.TailEventsRequest(resume_token=seen[-1].resume_token), timeout=60)
    seen += [await again.read() for _ in range(2)]
    await calls(hub, 1)
    seen += [await again.read()]
    again.cancel()
    assert [message.event.sequence for message in seen] == [2, 3, 4, 5], "1 says who follows"


@pytest.mark.promise("jobs.handed-over")
async def test_tail_ends_with_a_time_to_come_again_when_the_hub_leaves_and_goes_on_with_the_next(
    tmp_path: Path,
) -> None:
    async with running_hub(tmp_path) as hub:
        tail = hub.audit.TailEvents(pb.TailEventsRequest(), timeout=60)
        await tail.initial_metadata()
        await calls(hub, 1)
        seen = [await tail.read()]
        leaving = asyncio.ensure_future(hub.hub.server.drain(0, 5))
        failure = await failed(tail.read())
        assert (failure.code, failure.reason, failure.retry_after_s) == (grpc.StatusCode.UNAVAILABLE, "DRAINING", 0.5)
        await leaving
    async with running_hub(tmp_path) as hub:
        again = hub.audit.TailEvents(pb.TailEventsRequest(resume_token=seen[-1].resume_token), timeout=60)
        await calls(hub, 1)
        types = [(await again.read()).event.type for _ in range(2)]
        again.cancel()
    types.remove(event_pb2.EVENT_TYPE_AUDIT_READ)
    assert types == [event_pb2.EVENT_TYPE_TOOL_RESULT]


async def test_log_verifies_itself(hub: RunningHub) -> None:
    await calls(hub, 3)
    answer = await hub.audit.VerifyAudit(pb.VerifyAuditRequest())
    assert answer.ok
    assert answer.events_checked == 3
    assert not answer.faults


@pytest.mark.promise("audit.tamper-evident")
async def test_a_tampered_log_is_found_and_the_first_bad_event_named(hub: RunningHub) -> None:
    await calls(hub, 3)
    assert len(await listed(hub, 0)) == 3
    with closing(sqlite3.connect(Paths(hub.hub.settings).audit)) as database, database:
        database.execute("UPDATE events SET body = replace(body, 'local', 'mallory') WHERE sequence = 3")
    answer = await hub.audit.VerifyAudit(pb.VerifyAuditRequest())
    assert not answer.ok
    assert answer.faults[0].sequence == 3
