"""Two hubs with one store: what is submitted, followed, stopped, decided and kept at one is so at the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from shutil import copy2
from typing import Any

import grpc
import pytest

from tests.hub import RunningHub, request
from tests.rpc.principals import (
    IMPATIENT,
    POLICY,
    WAIT,
    WRITE,
    Client,
    CountedWaits,
    CountedWrites,
    Principals,
    hubs_of,
    is_gapless,
    merged,
    state,
    states,
)
from tests.rpc.sample_tools import Echo
from tests.rpc.statuses import failed, failed_stream
from toolhub.v1 import artifact_service_pb2, call_pb2, error_pb2
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.app.config_files.editing import read_or_make_key
from toolhub_service.domain.event import EventType
from toolhub_service.domain.tool import ToolLimits

FILE = "core/fs.writeText"
NOTE = {"path": "note.txt", "text": "hello"}
KINDS = ["redis", "redis and docket", "postgres", "postgres alone", "sqlite"]


class LongOutput(Echo):
    name = "test/text.long"
    limits = ToolLimits(max_result_bytes=1_000)


class TwoHubs:
    """Two hubs: tools of their own, clients of the same principals."""

    def __init__(self) -> None:
        self.waits = (CountedWaits(), CountedWaits())
        self.writes = (CountedWrites(), CountedWrites())
        self.hubs: list[RunningHub]
        self.people: Principals

    def tools(self, number: int) -> list[Any]:
        return [self.waits[number], self.writes[number], Echo(), LongOutput()]

    def open(self, hubs: list[RunningHub]) -> TwoHubs:
        self.hubs, self.people = hubs, Principals(*hubs)
        return self

    def at(self, number: int, name: str = "robot") -> Client:
        return self.people.at(self.hubs[number], name)

    def let_go(self) -> None:
        for tool in (*self.waits, *self.writes):
            tool.let_go.set()


def settings_for(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Mapping[str, Any]:
    together = {
        "artifacts": {"folder": str(tmp_path / "artifacts")},
        "workspace": {"root": str(tmp_path / "workspaces")},
    }
    if kind.startswith(
        "postgres"
    ):  # hubs with logs of their own have keys of their own: a key without its log is a log lost
        together["audit"] = {"key_file": str(tmp_path / "audit.key")}
    engine = {"jobs": {"engine": "docket" if "docket" in kind else "inprocess"}}
    stores = {"file": str(tmp_path / "hub.db")}
    if kind.startswith("redis"):
        stores = {"redis_url": request.getfixturevalue("redis_url")}
    elif kind == "postgres":
        stores["postgres_url"] = request.getfixturevalue("postgres_url")
    elif kind == "postgres alone":
        stores = {"kind": "postgres", "postgres_url": request.getfixturevalue("postgres_url")}
    return merged(IMPATIENT, together, engine, {"stores": stores})


@pytest.fixture(params=KINDS)
async def hubs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TwoHubs]:
    pair = TwoHubs()
    settings = settings_for(request.param, tmp_path, request)
    async with hubs_of(tmp_path, settings, pair.tools(0), pair.tools(1)) as running:
        yield pair.open(running)


@pytest.mark.promise("watch.gapless")
async def test_job_is_followed_listed_resumed_and_stopped_at_the_other_hub(hubs: TwoHubs) -> None:
    here, there = hubs.at(0), hubs.at(1)
    job = await here.submit(WAIT, {"text": "made"})
    assert (await there.job(job.job_id)).job_id == job.job_id
    first = await there.seen(job.job_id, lambda entry: entry.progress.message == "half way")
    assert is_gapless(first)
    both = [asyncio.create_task(each.ended(job.job_id, first[-1].sequence)) for each in (here, there)]
    stopped = await here.submit(WAIT)
    await there.reached(stopped.job_id, "RUNNING")
    assert (await there.page()).total_size == 2
    assert await there.cancel(stopped.job_id, "enough") == "CANCELLING"
    assert states(await here.ended(stopped.job_id))[-1] == "CANCELLED"
    hubs.let_go()
    rest, same = await asyncio.gather(*both)
    assert rest == same
    assert is_gapless(first[-1:] + rest)
    assert json.loads(rest[-1].result.result_json) == {"text": "made"}
    stranger = hubs.at(1, "other")
    assert (await failed(stranger.job(job.job_id))).code is grpc.StatusCode.NOT_FOUND
    assert (await failed_stream(stranger.watch(job.job_id))).code is grpc.StatusCode.NOT_FOUND


@pytest.mark.promise("approval.not-by-the-requester")
async def test_approval_is_decided_at_either_hub_and_never_by_who_asked(hubs: TwoHubs) -> None:
    for number, other in ((0, 1), (1, 0)):
        args = {**NOTE, "path": f"note-{number}.txt"}
        job = await hubs.at(number).submit(FILE, args, request_id="work")
        assert state(job.status) == "AWAITING_APPROVAL"
        following = asyncio.create_task(hubs.at(number).ended(job.job_id, 1))
        refused = await failed(hubs.at(other).decide(job.approval_id))
        assert refused.code is grpc.StatusCode.PERMISSION_DENIED
        decided = await hubs.at(other, "judge").decide(job.approval_id)
        assert decided.job_id == job.job_id
        history = await following
        assert states(history) == ["QUEUED", "RUNNING", "SUCCEEDED"], history[-1].error.message
        assert is_gapless(history)
    call = await hubs.at(0).call(FILE, {**NOTE, "path": "call.txt"}, request_id="work")
    approval_id = str(call.error.details["approval_id"])
    await hubs.at(1, "judge").decide(approval_id)
    asked = request(FILE, {**NOTE, "path": "call.txt"}, request_id="work")
    asked.approval_id = approval_id
    answers = await asyncio.gather(
        *(hub.stub.Invoke(asked, metadata=hubs.at(0).metadata, timeout=60) for hub in hubs.hubs * 5)
    )
    assert [answer.result.ok for answer in answers].count(True) == 1


@pytest.mark.promise("idempotency.shared")
async def test_key_stands_for_one_effect_at_both_hubs(hubs: TwoHubs) -> None:
    here, there = hubs.at(0), hubs.at(1)
    first = asyncio.create_task(here.call(WRITE, {"text": "a"}, idempotency_key="k-1", request_id="work"))
    await hubs.writes[0].started.wait()
    again = asyncio.create_task(there.call(WRITE, {"text": "a"}, idempotency_key="k-1", request_id="work"))
    conflict = await there.call(WRITE, {"text": "b"}, idempotency_key="k-1", request_id="work")
    assert conflict.error.kind == error_pb2.ERROR_KIND_IDEMPOTENCY_CONFLICT
    assert not again.done()
    hubs.let_go()
    ran, replayed = await asyncio.gather(first, again)
    assert (ran.ok, ran.replayed, replayed.ok, replayed.replayed) == (True, False, True, True)
    assert replayed.result_json == ran.result_json
    calls = [client.call(WRITE, {"text": "c"}, idempotency_key="k-2") for client in (here, there) * 10]
    answers = await asyncio.gather(*calls)
    assert [answer.replayed for answer in answers].count(False) == 1
    assert sum(write.runs for write in hubs.writes) == 2


@pytest.mark.promise("jobs.same-key-same-job")
async def test_key_stands_for_one_job_at_both_hubs(hubs: TwoHubs) -> None:
    here, there = hubs.at(0), hubs.at(1)
    jobs = [client.submit(WRITE, {"text": "a"}, idempotency_key="k-1") for client in (here, there) * 10]
    (job_id,) = {job.job_id for job in await asyncio.gather(*jobs)}
    conflict = await failed(there.submit(WRITE, {"text": "b"}, idempotency_key="k-1"))
    assert (conflict.code, conflict.reason) == (grpc.StatusCode.ABORTED, "IDEMPOTENCY_CONFLICT")
    hubs.let_go()
    assert states(await there.ended(job_id))[-1] == "SUCCEEDED"
    assert sum(write.runs for write in hubs.writes) == 1
    called = await there.call(WRITE, {"text": "a"}, idempotency_key="k-1")
    assert (called.ok, called.replayed) == (True, True)


async def test_artifact_of_one_hub_is_read_at_the_other_and_the_audit_of_both_verifies(hubs: TwoHubs) -> None:
    text = "x" * 5_000
    jobs = [await hubs.at(number).submit("test/text.long", {"text": text}) for number in (0, 1)]
    for job, reader in zip(jobs, (hubs.at(1), hubs.at(0)), strict=True):
        (artifact,) = (await reader.ended(job.job_id))[-1].artifacts
        assert json.loads(await _read(reader, artifact.artifact_id)) == {"text": text}
        echoed = await reader.call("test/text.echo", {"text": {"$artifact": artifact.artifact_id}})
        assert echoed.ok, echoed.error.message
    for running, job in zip(hubs.hubs, jobs, strict=True):
        report = await running.hub.audit.verify()
        assert report.ok, report
        assert {chained.event.type for chained in await running.events(call_id=job.call_id)} >= {
            EventType.TOOL_CALLED,
            EventType.JOB_SUBMITTED,
        }


async def _read(client: Client, artifact_id: str) -> bytes:
    stub: Any = ArtifactServiceStub(client.running.channel)
    asked = artifact_service_pb2.ReadArtifactRequest(artifact_id=artifact_id)
    return b"".join([part.chunk async for part in stub.ReadArtifact(asked, metadata=client.metadata, timeout=60)])


@pytest.mark.parametrize("kind", ["redis", "postgres alone"])
async def test_plans_and_page_tokens_of_one_hub_are_taken_by_another_of_its_store(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings, policy = settings_for(kind, tmp_path, request), POLICY.replace("REQUIRE_APPROVAL", "REQUIRE_PLAN")
    async with hubs_of(tmp_path, settings, [Echo()], [Echo()], policy=policy) as hubs:
        people = Principals(*hubs)
        for here, there in ((0, 1), (1, 0)):
            note = {**NOTE, "path": f"note-{here}.txt"}
            digest = await _planned(hubs[here], people.at(hubs[here]), note)
            job = await people.at(hubs[there]).submit(FILE, note, request_id="work", plan_digest=digest)
            last = (await people.at(hubs[here]).ended(job.job_id))[-1]
            assert (state(last), last.error.message) == ("SUCCEEDED", "")
        first = await people.at(hubs[0]).page(page_size=1)
        second = await people.at(hubs[1]).page(page_size=1, page_token=first.next_page_token)
        assert {job.job_id for job in (*first.jobs, *second.jobs)} == {
            each.job_id for each in (await people.at(hubs[0]).page()).jobs
        }
        assert not any(hub.hub.deps.paths.plan_key.exists() for hub in hubs)


async def test_a_plan_key_of_the_first_hub_becomes_the_stores_and_another_one_is_reported(
    tmp_path: Path, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = merged(settings_for("redis", tmp_path, request), {"logs": {"level": "warning", "format": "json"}})
    keys = {}
    for number in (0, 2):
        (tmp_path / f"hub-{number}" / "hub").mkdir(parents=True)
        keys[number] = read_or_make_key(tmp_path / f"hub-{number}" / "hub" / "plan.key")
    policy = POLICY.replace("REQUIRE_APPROVAL", "REQUIRE_PLAN")
    async with hubs_of(tmp_path, settings, [], [], [], policy=policy) as hubs:
        people = Principals(*hubs)
        digest = await _planned(hubs[2], people.at(hubs[2]))
        job = await people.at(hubs[1]).submit(FILE, NOTE, request_id="work", plan_digest=digest)
        assert state((await people.at(hubs[0]).ended(job.job_id))[-1]) == "SUCCEEDED"
        shared = hubs[1].hub.stores.shared_keys
        assert shared is not None
        assert await shared.agree("plan", keys[2]) == keys[0]
    reports = [line for line in capfd.readouterr().err.splitlines() if "plan_key_differs" in line]
    assert len(reports) == 1, reports
    assert str(tmp_path / "hub-2" / "hub" / "plan.key") in reports[0]


async def _planned(hub: RunningHub, client: Client, note: Mapping[str, Any] = NOTE) -> str:
    """Return the digest of the plan to write the note."""
    asked = request(FILE, note, mode=call_pb2.INVOKE_MODE_DRY_RUN, request_id="work")
    answer = await hub.stub.Invoke(asked, metadata=client.metadata, timeout=60)
    return str(answer.plan.plan_digest)


async def test_plan_of_one_hub_is_committed_at_the_other_that_has_its_key(tmp_path: Path) -> None:
    policy = POLICY.replace("REQUIRE_APPROVAL", "REQUIRE_PLAN")
    settings = {"stores": {"file": str(tmp_path / "hub.db")}, "workspace": {"root": str(tmp_path / "workspaces")}}
    read_or_make_key(tmp_path / "plan.key")
    for number in (0, 1):
        folder = tmp_path / f"hub-{number}" / "hub"
        folder.mkdir(parents=True)
        copy2(tmp_path / "plan.key", folder)
    async with hubs_of(tmp_path, settings, [], [], policy=policy) as hubs:
        people = Principals(*hubs)
        here, there = people.at(hubs[0]), people.at(hubs[1])
        digest = await _planned(hubs[0], here)
        job = await there.submit(FILE, NOTE, request_id="work", plan_digest=digest)
        last = (await here.ended(job.job_id))[-1]
        assert (state(last), last.error.message) == ("SUCCEEDED", "")
