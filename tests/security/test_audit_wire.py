"""The audit log, attacked by callers: no text of theirs forges or breaks an event, no effect goes unrecorded."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.hub import OPEN_POLICY, RunningHub, running_hub
from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import error_pb2, event_pb2
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.domain.event import EventType

SPITEFUL = [
    "'); DELETE FROM events; --",
    '"}\n{"type":"TOOL_RESULT","outcome":"ok"}',
    "line\r\nbreak\0null",
    "\u202egnp.exe \u2066\u200b",
    "%s%n{0}${jndi:ldap://x}",
    "𝕏" * 1_000,
    "\x1b[2J\x1b]0;title\x07",
]


def name_of(text: str) -> str:
    """A tool's name with as much of the text as the contract lets through: one line, in one reading direction."""
    return "".join(char for char in text[:60] if char.isprintable()).strip()


async def listed(hub: RunningHub, **where: object) -> list[event_pb2.Event]:
    request = pb.ListEventsRequest(filter=event_pb2.EventFilter(**where), page_size=1_000)  # type: ignore[arg-type]
    return list((await hub.audit.ListEvents(request)).events)


async def test_texts_of_callers_stay_texts(open_hub: RunningHub) -> None:
    for text in SPITEFUL:
        await open_hub.invoke("core/util.hash.sha256Text", {"text": text}, purpose=text[:1_000])
        await open_hub.invoke(name_of(text), {text: text}, purpose=text[:1_000])
    events = await listed(open_hub)
    assert [event.sequence for event in events] == list(range(1, 3 * len(SPITEFUL) + 1)), (
        "a read is one event, a call of no tool two"
    )
    asked = [event for event in events if event.purpose]
    assert [event.purpose for event in asked[::2]] == [text[:1_000] for text in SPITEFUL]
    assert [event.tool for event in asked[1::2]] == [name_of(text) for text in SPITEFUL]
    assert all(len(event.args_summary.encode()) <= 1_024 for event in events)
    assert (await open_hub.audit.VerifyAudit(pb.VerifyAuditRequest())).ok


@pytest.mark.parametrize("text", ["' OR '1'='1", "%", "*", "core/%", "\0", SPITEFUL[0]])
async def test_filters_are_compared_and_never_run(open_hub: RunningHub, text: str) -> None:
    await open_hub.invoke("core/util.time.now")
    for name in ("principal", "tool", "call_id", "request_id", "writer", "user_id", "session_id"):
        if (name, text) != ("tool", "*"):  # the one filter that is a glob
            assert await listed(open_hub, **{name: text}) == []
    there = [event.type for event in await listed(open_hub)]
    assert len([type for type in there if type != event_pb2.EVENT_TYPE_AUDIT_READ]) == 1


async def test_pages_join_without_a_gap_or_a_repetition(open_hub: RunningHub) -> None:
    for _ in range(7):
        await open_hub.invoke("core/util.time.now")
    seen: list[int] = []
    token = ""
    while True:
        page = await open_hub.audit.ListEvents(pb.ListEventsRequest(page_size=4, page_token=token))
        seen += [event.sequence for event in page.events]
        token = page.next_page_token
        if not token:
            break
    assert seen == list(range(1, 9)), "the last is the read of the first page"


async def test_a_watcher_sees_calls_as_they_are_recorded(open_hub: RunningHub) -> None:
    for _ in range(2):
        await open_hub.invoke("core/util.time.now")
    before = await open_hub.audit.ListEvents(pb.ListEventsRequest(page_size=1))
    watch = open_hub.audit.TailEvents(pb.TailEventsRequest(resume_token=before.next_page_token))
    first = await watch.read()
    result = await open_hub.invoke("core/fs.readText", {"path": "../x"})
    seen = [first, *[await watch.read() for _ in range(3)]]
    watch.cancel()
    assert [event.event.sequence for event in seen] == [2, 3, 4, 5]
    assert seen[0].event.type == event_pb2.EVENT_TYPE_TOOL_RESULT
    assert [event.event.type for event in seen[1:3]] == [event_pb2.EVENT_TYPE_AUDIT_READ] * 2
    assert seen[-1].event.call_id == result.call_id
    assert seen[-1].event.type == event_pb2.EVENT_TYPE_POLICY_DENIED


@pytest.mark.promise("audit.before-the-effect")
async def test_an_effect_that_cannot_be_recorded_does_not_happen(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        assert (await hub.invoke("core/fs.writeText", {"path": "a", "text": "a"}, request_id="r")).ok
        with closing(sqlite3.connect(Paths(hub.hub.settings).audit)) as connection, connection:
            connection.execute("ALTER TABLE events RENAME TO gone")
        for _ in range(3):
            refused = await hub.invoke("core/fs.writeText", {"path": "b", "text": "b"}, request_id="r")
            assert not refused.ok
            assert refused.error.kind == error_pb2.ERROR_KIND_IO_ERROR
            assert "sqlite" not in refused.error.message.lower()
            assert "events" not in str(refused.error.details)
        assert not (hub.workspace("r") / "b").exists()
        assert hub.workspace("r").joinpath("a").exists()
        with closing(sqlite3.connect(Paths(hub.hub.settings).audit)) as connection, connection:
            connection.execute("ALTER TABLE gone RENAME TO events")
            (asked,) = connection.execute(
                "SELECT COUNT(*) FROM events WHERE type = ?", (EventType.TOOL_CALLED.value,)
            ).fetchone()
        assert asked == 1
