"""Page tokens and cursors of every list are their caller's: another's, another list's or a changed one is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import pytest
import pytest_asyncio

from tests.hub import CALL_TIMEOUT_S, RunningHub, running_hub
from tests.rpc.principals import BY_KEY, Principals
from tests.rpc.statuses import failed
from toolhub.v1 import (
    approval_service_pb2,
    artifact_service_pb2,
    artifact_service_pb2_grpc,
    audit_service_pb2,
    job_service_pb2,
    registry_service_pb2,
)
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub_service.transport.page_tokens import write_cursor

pytestmark = pytest.mark.asyncio(loop_scope="module")

POLICY: Final = """
extends: none
grants: [{principals: ["*"], capabilities: [read:fs, write:fs]}]
roles: [{principals: ["*"], roles: [agent, operator, approver, auditor]}]
rules: [{id: person, effect: REQUIRE_APPROVAL, tools: [core/fs.writeText], reason: Look first.}]
"""
NAMES: Final = ("ann", "bob")
LISTS: Final = ("ListTools", "ExportTools", "GetSnapshot", "ListJobs", "ListArtifacts", "ListApprovals", "ListEvents")


class ListingHub:
    """Two principals that both see everything, and two entries in each list."""

    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        self.people = Principals(hub, names=NAMES)

    def as_(self, who: str) -> dict[str, Any]:
        return {"metadata": self.people.at(self.hub, who).metadata, "timeout": CALL_TIMEOUT_S}

    async def page(self, rpc: str, who: str, token: str = "", **fields: Any) -> Any:
        channel = self.hub.channel
        artifacts = artifact_service_pb2_grpc.ArtifactServiceStub(channel)
        stub, request = {
            "ListTools": (self.hub.stub, pb.ListToolsRequest),
            "ExportTools": (self.hub.stub, pb.ExportToolsRequest),
            "GetSnapshot": (self.hub.registry, registry_service_pb2.GetSnapshotRequest),
            "ListJobs": (self.hub.jobs, job_service_pb2.ListJobsRequest),
            "ListArtifacts": (artifacts, artifact_service_pb2.ListArtifactsRequest),
            "ListApprovals": (ApprovalServiceStub(channel), approval_service_pb2.ListApprovalsRequest),
            "ListEvents": (self.hub.audit, audit_service_pb2.ListEventsRequest),
        }[rpc]
        if rpc == "ExportTools":
            fields["format"] = pb.EXPORT_FORMAT_OPENAI
        return await getattr(stub, rpc)(request(page_size=1, page_token=token, **fields), **self.as_(who))

    async def fill(self) -> None:
        for number in range(2):
            for who in NAMES:
                client = self.people.at(self.hub, who)
                await client.submit("core/util.time.now", {})
                await client.call("core/fs.writeText", {"path": f"{number}.txt", "text": "a"})
                await self._upload(who)

    async def _upload(self, who: str) -> None:
        async def parts() -> AsyncIterator[Any]:
            header = artifact_service_pb2.ArtifactHeader(name="a.bin", size_bytes=1)
            yield artifact_service_pb2.WriteArtifactRequest(header=header)
            yield artifact_service_pb2.WriteArtifactRequest(chunk=b"a")

        stub = artifact_service_pb2_grpc.ArtifactServiceStub(self.hub.channel)
        await stub.WriteArtifact(parts(), **self.as_(who))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def listing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ListingHub]:
    async with running_hub(tmp_path_factory.mktemp("hub"), policy=POLICY, settings=BY_KEY) as hub:
        found = ListingHub(hub)
        await found.fill()
        yield found


REFUSED: Final = (grpc.StatusCode.INVALID_ARGUMENT, "PAGE_TOKEN_INVALID")


async def refusal_of(listing: ListingHub, rpc: str, who: str, token: str, **fields: Any) -> tuple[grpc.StatusCode, str]:
    refusal = await failed(listing.page(rpc, who, token, **fields))
    return refusal.code, refusal.reason


@pytest.mark.parametrize("rpc", LISTS)
async def test_a_token_continues_the_list_of_its_caller_and_of_nobody_else(listing: ListingHub, rpc: str) -> None:
    first = await listing.page(rpc, "ann")
    token = first.next_page_token
    assert token
    assert await listing.page(rpc, "ann", token) != first
    assert await refusal_of(listing, rpc, "bob", token) == REFUSED
    assert await refusal_of(listing, rpc, "ann", f"{token[:-1]}{'A' if token[-1] != 'A' else 'B'}") == REFUSED
    assert await refusal_of(listing, rpc, "ann", token[22:]) == REFUSED
    other = "ListJobs" if rpc != "ListJobs" else "ListApprovals"
    assert await refusal_of(listing, other, "ann", token) == REFUSED


async def test_a_token_of_another_filter_is_refused(listing: ListingHub) -> None:
    token = (await listing.page("ListJobs", "ann")).next_page_token
    assert await refusal_of(listing, "ListJobs", "ann", token, tool="core/util.time.now") == REFUSED
    assert await refusal_of(listing, "ListJobs", "ann", token, task_id="t") == REFUSED


async def test_a_made_up_place_reaches_no_store(listing: ListingHub) -> None:
    for token in (write_cursor((0, "job_", 0)), "e30", "x" * 1_000, "\u00e9" * 30):
        assert await refusal_of(listing, "ListJobs", "ann", token) == REFUSED


async def test_a_tail_resumes_at_its_own_tokens_and_those_of_a_list_of_the_same_events_only(
    listing: ListingHub,
) -> None:
    async def resumed(who: str, token: str) -> str:
        asked = audit_service_pb2.TailEventsRequest(resume_token=token)
        tail = listing.hub.audit.TailEvents(asked, **listing.as_(who))
        try:
            return str((await tail.read()).resume_token)
        finally:
            tail.cancel()

    token = (await listing.page("ListEvents", "ann")).next_page_token
    own = await resumed("ann", token)
    assert await resumed("ann", own)
    for foreign in (own, token):
        refusal = await failed(resumed("bob", foreign))
        assert refusal.reason == "PAGE_TOKEN_INVALID"
