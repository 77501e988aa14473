"""Failed identity leaves a trace, and so does reading the audit log; neither can be used to flood it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from tests.hub import RunningHub, request, running_hub
from tests.rpc.statuses import FailedRpc, failed
from toolhub.v1 import audit_service_pb2 as pb
from toolhub.v1 import event_pb2
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys
from toolhub_service.domain.event import Event, EventType

TOOL = "core/util.time.now"
BAD_KEYS = 500
POLICY = """
grants: [{principals: [robot], capabilities: [read:fs]}]
roles: [{principals: [boss], roles: [auditor]}]
"""
FAILED, REFUSED, READ = EventType.AUTH_FAILED, EventType.ROLE_REFUSED, EventType.AUDIT_READ

Metadata = tuple[tuple[str, str], ...]


class KeyedHub:
    """A hub that wants keys, and has given one to an agent and one to an auditor."""

    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        file = Paths(hub.hub.settings).key_file()
        self.robot, self.boss = file.create("robot"), file.create("boss")
        reload_keys(hub.hub, file)

    async def minute(self, *types: EventType) -> list[Event]:
        """What the audit log has of these types when a minute has ended."""
        self.hub.hub.access.flush()
        return [chained.event for chained in await self.hub.events(types=frozenset(types))]

    async def invoke(self, key: str) -> FailedRpc:
        return await failed(self.hub.stub.Invoke(request(TOOL), metadata=bearer(key)))

    def counted(self, reason: str) -> float:
        lines = self.hub.hub.observing.metrics.exposition().decode().splitlines()
        sample = f'toolhub_access_refused_total{{reason="{reason}"}} '
        return sum(float(line.removeprefix(sample)) for line in lines if line.startswith(sample))


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[KeyedHub]:
    async with running_hub(tmp_path, policy=POLICY, settings={"auth": {"modes": ["api-key"]}}) as hub:
        yield KeyedHub(hub)


def bearer(key: str) -> Metadata:
    return (("authorization", f"Bearer {key}"),)


async def test_bad_keys_of_one_peer_are_one_event_a_minute_that_counts_them(watched: KeyedHub) -> None:
    """Fails at befa727: the audit log has nothing of them."""
    wrong = f"{watched.robot[:-4]}0000"
    failures = await asyncio.gather(*(watched.invoke(wrong) for _ in range(BAD_KEYS)))
    assert {failure.reason for failure in failures} == {"CREDENTIAL_REFUSED"}
    (event,) = await watched.minute(FAILED)
    attributes = dict(event.attributes)
    assert int(attributes.pop("first_unix_ms")) <= event.at_unix_ms
    assert (event.principal, event.outcome) == ("", "refused")
    assert attributes == {
        "peer": "127.0.0.1",
        "reason": "CREDENTIAL_REFUSED",
        "method": "/toolhub.v1.ToolService/Invoke",
        "key_id": watched.robot[:12],
        "count": str(BAD_KEYS),
    }
    assert watched.counted("CREDENTIAL_REFUSED") == BAD_KEYS
    await watched.invoke(wrong)
    assert [each.attributes["count"] for each in await watched.minute(FAILED)] == [str(BAD_KEYS), "1"]


async def test_good_key_passes_beside_a_flood_of_bad_ones_from_its_address(watched: KeyedHub) -> None:
    flood = [asyncio.create_task(watched.invoke("thk_00000000_bad")) for _ in range(200)]
    served = await asyncio.gather(*(watched.hub.invoke(TOOL, metadata=bearer(watched.robot)) for _ in range(20)))
    assert all(result.ok for result in served)
    assert {failure.code for failure in await asyncio.gather(*flood)} == {grpc.StatusCode.UNAUTHENTICATED}


async def test_a_peer_that_is_refused_repeatedly_has_to_wait(watched: KeyedHub) -> None:
    """Fails at befa727: nothing slows down a client in a loop."""
    waits = [(await watched.invoke("thk_00000000_bad")).retry_after_s for _ in range(21)]
    assert waits == [None] * 20 + [60.0]


async def test_refused_role_is_one_event_with_its_principal(watched: KeyedHub) -> None:
    """Fails at befa727: the audit log has nothing of it."""
    for _ in range(3):
        refused = await failed(watched.hub.audit.VerifyAudit(pb.VerifyAuditRequest(), metadata=bearer(watched.robot)))
        assert refused.reason == "ROLE_MISSING"
    (event,) = await watched.minute(REFUSED)
    assert event.principal == "robot"
    assert event.attributes["method"] == "/toolhub.v1.AuditService/VerifyAudit"
    assert (event.attributes["reason"], event.attributes["count"]) == ("ROLE_MISSING", "3")


async def test_missing_key_and_two_keys_are_distinguished(watched: KeyedHub) -> None:
    await failed(watched.hub.stub.Invoke(request(TOOL)))
    both: Metadata = (*bearer(watched.robot), ("x-api-key", watched.boss))
    assert (await failed(watched.hub.stub.Invoke(request(TOOL), metadata=both))).reason == "CREDENTIAL_REFUSED"
    events = await watched.minute(FAILED)
    assert {event.attributes["reason"] for event in events} == {"CREDENTIAL_MISSING", "CREDENTIAL_REFUSED"}


@pytest.mark.parametrize(
    "pasted", ["hunter2-hunter2-hunter2", "thk_hunter2_x", "thk_" + "ab" * 40 + "_x", "Basic hunter2"]
)
async def test_only_the_public_id_of_a_bad_key_is_kept(watched: KeyedHub, pasted: str) -> None:
    await watched.invoke(pasted)
    (event,) = await watched.minute(FAILED)
    assert "key_id" not in event.attributes
    assert "hunter2" not in str(event)


async def test_revoked_key_of_an_open_stream_leaves_its_principal(watched: KeyedHub) -> None:
    """Fails at befa727: the stream ends and the audit log has nothing of it."""
    tail = watched.hub.audit.TailEvents(pb.TailEventsRequest(), metadata=bearer(watched.boss))
    await tail.initial_metadata()
    file = Paths(watched.hub.hub.settings).key_file()
    assert file.revoke(watched.boss[:12])
    reload_keys(watched.hub.hub, file)
    assert (await watched.hub.invoke(TOOL, metadata=bearer(watched.robot))).ok
    assert await tail.code() is grpc.StatusCode.UNAUTHENTICATED
    (event,) = await watched.minute(FAILED)
    assert (event.principal, event.attributes["key_id"]) == ("boss", watched.boss[:12])


async def test_refusals_that_were_not_written_yet_are_when_the_hub_ends(tmp_path: Path) -> None:
    """Fails at befa727: the audit log has nothing of them."""
    settings = {"auth": {"modes": ["api-key"]}}
    async with running_hub(tmp_path, policy=POLICY, settings=settings) as hub:
        await failed(hub.stub.Invoke(request(TOOL)))
    async with running_hub(tmp_path, settings=settings) as hub:
        (chained,) = await hub.events(types=frozenset({FAILED}))
    assert chained.event.attributes["count"] == "1"


async def read_all(watched: KeyedHub, page_size: int) -> Sequence[Any]:
    """Every event, as an auditor sees it, a page at a time."""
    shown: list[Any] = []
    token = ""
    while True:
        asked = pb.ListEventsRequest(page_size=page_size, page_token=token)
        page = await watched.hub.audit.ListEvents(asked, metadata=bearer(watched.boss))
        shown += page.events
        token = page.next_page_token
        if not token:
            return shown


async def test_reads_of_the_audit_log_are_in_it_before_they_are_answered(watched: KeyedHub) -> None:
    """Fails at befa727: who reads the log leaves no trace in it."""
    boss = bearer(watched.boss)
    await watched.hub.invoke(TOOL, metadata=bearer(watched.robot))
    where = event_pb2.EventFilter(principal="robot")
    await watched.hub.audit.ListEvents(pb.ListEventsRequest(filter=where), metadata=boss)
    reads = [chained.event for chained in await watched.hub.events(types=frozenset({READ}))]
    assert [(each.principal, each.attributes["method"], each.attributes["events"]) for each in reads] == [
        ("boss", "ListEvents", "1")
    ]
    assert json.loads(reads[0].attributes["filter"]) == {"principal": "robot"}
    await watched.hub.audit.VerifyAudit(pb.VerifyAuditRequest(), metadata=boss)
    tail = watched.hub.audit.TailEvents(pb.TailEventsRequest(), metadata=boss)
    await tail.initial_metadata()
    reads = [chained.event for chained in await watched.hub.events(types=frozenset({READ}))]
    assert [each.attributes["method"] for each in reads] == ["ListEvents", "VerifyAudit", "TailEvents"]
    tail.cancel()


async def test_pages_of_one_query_come_to_an_end_and_are_counted(watched: KeyedHub) -> None:
    """Were each page an event, pages of one event would never end."""
    for _ in range(3):
        await watched.hub.invoke(TOOL, metadata=bearer(watched.robot))
    shown = await read_all(watched, page_size=1)
    assert [event.type for event in shown].count(event_pb2.EVENT_TYPE_AUDIT_READ) == 1
    reads = await watched.minute(READ)
    assert [each.attributes["count"] for each in reads] == ["1", str(len(shown) - 1)]
    assert sum(int(each.attributes["events"]) for each in reads) == len(shown) == 4


async def test_one_audit_tail_is_one_read_however_far_it_looks_back(watched: KeyedHub) -> None:
    """The command line looks back in ever longer spans until it has enough events."""
    await watched.hub.invoke(TOOL, metadata=bearer(watched.robot))
    first, longest = 1_700_000_000, 1_600_000_000
    for since in (first, longest, 1_650_000_000):
        where = event_pb2.EventFilter(principal="robot", since=Timestamp(seconds=since))
        await watched.hub.audit.ListEvents(pb.ListEventsRequest(filter=where), metadata=bearer(watched.boss))
    (read,) = [chained.event for chained in await watched.hub.events(types=frozenset({READ}))]
    assert json.loads(read.attributes["filter"]) == {"principal": "robot"}
    assert (read.attributes["from_unix_ms"], read.attributes["count"]) == (f"{first}000", "1")
    _, again = await watched.minute(READ)
    assert (again.attributes["from_unix_ms"], again.attributes["count"]) == (f"{longest}000", "2")
    assert "to_unix_ms" not in again.attributes
