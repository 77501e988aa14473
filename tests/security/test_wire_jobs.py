"""Jobs, attacked over the wire: other people's jobs, ids that can be computed, filters, cancels, floods."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import CALL_TIMEOUT_S, RunningHub, running_hub
from tests.rpc.principals import BY_KEY, WAIT, Client, Principals, state
from tests.rpc.sample_tools import Echo, Waits
from tests.rpc.statuses import failed, failed_stream
from tests.security.test_wire_access import forged_tokens
from toolhub.v1 import error_pb2, job_service_pb2, job_state_pb2
from toolhub.v1.job_state_pb2 import JobState
from toolhub_service.schema.canonical_json import digest

POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs]}
roles:
  - {principals: [ops], roles: [operator]}
  - {principals: [auditor], roles: [auditor]}
  - {principals: [judge], roles: [approver]}
"""
ECHO = "test/text.echo"
NAMES = ("alice", "bob", "ops", "auditor", "judge")
UNKNOWN = "job_" + "0" * 32


class JobsHarness:
    def __init__(self, running: RunningHub, waits: Waits) -> None:
        self.running, self.waits, self.people = running, waits, Principals(running, names=NAMES)

    def by(self, name: str) -> Client:
        return self.people.at(self.running, name)

    def asks(self, name: str, job_id: str) -> dict[str, Callable[[], Any]]:
        """Every RPC that names a job."""
        jobs, metadata = self.running.jobs, self.by(name).metadata
        pb = job_service_pb2

        async def watch() -> Any:
            call = jobs.WatchJob(pb.WatchJobRequest(job_id=job_id), metadata=metadata, timeout=CALL_TIMEOUT_S)
            answer = await call.read()
            call.cancel()
            if answer is grpc.aio.EOF:
                await call
            return answer

        return {
            "GetJob": lambda: jobs.GetJob(pb.GetJobRequest(job_id=job_id), metadata=metadata, timeout=CALL_TIMEOUT_S),
            "WatchJob": watch,
            "CancelJob": lambda: jobs.CancelJob(
                pb.CancelJobRequest(job_id=job_id, reason="mine"), metadata=metadata, timeout=CALL_TIMEOUT_S
            ),
        }


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[JobsHarness]:
    waits = Waits()
    async with running_hub(tmp_path, policy=POLICY, settings=BY_KEY, tools=[waits, Echo()]) as running:
        yield JobsHarness(running, waits)


# Other people's


async def test_another_s_job_is_not_there_and_is_answered_like_one_that_never_was(harness: JobsHarness) -> None:
    job = await harness.by("alice").submit(WAIT)
    for name, ask in harness.asks("bob", job.job_id).items():
        foreign, unknown = await failed(ask()), await failed(harness.asks("bob", UNKNOWN)[name]())
        assert foreign.code is unknown.code is grpc.StatusCode.NOT_FOUND, name
        assert foreign.message.replace(job.job_id, UNKNOWN) == unknown.message
        assert foreign.reason == unknown.reason
    assert state((await harness.by("alice").job(job.job_id)).status) in ("QUEUED", "RUNNING")
    harness.waits.let_go.set()
    assert state((await harness.by("alice").ended(job.job_id))[-1]) == "SUCCEEDED"


async def test_a_finished_job_and_its_result_are_its_owner_s(harness: JobsHarness) -> None:
    job = await harness.by("alice").submit(ECHO, {"text": "c4nary"})
    await harness.by("alice").ended(job.job_id)
    for name, ask in harness.asks("bob", job.job_id).items():
        refused = await failed(ask())
        assert refused.code is grpc.StatusCode.NOT_FOUND, name
        assert "c4nary" not in str(refused)


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("ops", {"GetJob", "WatchJob", "CancelJob", "ListJobs"}),
        ("auditor", {"GetJob", "WatchJob", "ListJobs"}),
        ("judge", set()),
    ],
)
async def test_roles_without_agent_look_and_operators_alone_stop(
    harness: JobsHarness, name: str, may: set[str]
) -> None:
    job = await harness.by("alice").submit(WAIT)
    asks: dict[str, Callable[[], Any]] = {
        **harness.asks(name, job.job_id),
        "ListJobs": lambda: harness.running.jobs.ListJobs(
            job_service_pb2.ListJobsRequest(), metadata=harness.by(name).metadata
        ),
        "SubmitJob": lambda: harness.by(name).submit(WAIT),
    }
    for rpc, ask in asks.items():
        if rpc in may:
            await ask()
        else:
            assert (await failed(ask())).code is grpc.StatusCode.PERMISSION_DENIED, rpc


# Lists


async def test_no_filter_shows_jobs_of_others(harness: JobsHarness) -> None:
    pb: dict[str, Any] = {"request_id": "r-secret", "task_id": "t-secret"}
    theirs = await harness.by("alice").submit(ECHO, {"text": "x"}, **pb)
    mine = await harness.by("bob").submit(ECHO, {"text": "x"})
    for where in (
        {},
        {"principal": "bob"},
        {"principal": "alice"},
        {"principal": "*"},
        {"request_id": "r-secret"},
        {"task_id": "t-secret"},
        {"principal": "alice", "request_id": "r-secret"},
        {"tool": "*"},
        {"tool": "test/*"},
        {"tool": "[!x]*", "principal": "alice"},
        {"states": list(JobState.values())},
    ):
        page = await harness.by("bob").page(**where)
        assert {job.job_id for job in page.jobs} <= {mine.job_id}, where
        assert page.total_size == len(page.jobs), where
    assert {job.job_id for job in (await harness.by("auditor").page()).jobs} == {theirs.job_id, mine.job_id}
    assert (await harness.by("auditor").page(principal="alice")).total_size == 1


async def test_page_token_of_an_overseer_gives_nobody_what_is_not_theirs(harness: JobsHarness) -> None:
    for _ in range(3):
        await harness.by("alice").submit(ECHO, {"text": "x"})
    await harness.by("bob").submit(ECHO, {"text": "x"})
    token = (await harness.by("auditor").page(page_size=1)).next_page_token
    later = base64.urlsafe_b64encode(json.dumps([2**62, "z", 0]).encode()).decode()
    for sent in (token, later):
        refused = await failed(harness.by("bob").page(page_token=sent, principal=""))
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PAGE_TOKEN_INVALID")


async def test_forged_page_token_of_jobs_is_refused_with_a_message(harness: JobsHarness) -> None:
    for token in forged_tokens():
        assert (await failed(harness.by("bob").page(page_token=token))).code is grpc.StatusCode.INVALID_ARGUMENT


HOSTILE_FILTERS: list[dict[str, Any]] = [
    {"tool": "*a" * 64},
    {"tool": "[" * 128},
    {"tool": "\0"},
    {"request_id": "\0" * 100},
    {"task_id": "' OR 1=1 --"},
    {"principal": "%"},
    {"tool": "\u202e*"},
    {"states": [job_state_pb2.JOB_STATE_RUNNING] * 16},
    {"page_size": 2**31 - 1},
]


async def test_hostile_filters_are_answered_and_find_nothing_foreign(harness: JobsHarness) -> None:
    for where in HOSTILE_FILTERS:
        await harness.by("alice").submit(ECHO, {"text": "x"}, request_id="r")
        assert (await harness.by("bob").page(**where)).total_size == 0


HOSTILE_IDS = [":log", "x:log", "a:b", "job:1:log", "..", "a/../b", "a" * 128]


async def test_hostile_job_ids_are_unknown(harness: JobsHarness) -> None:
    for hostile in HOSTILE_IDS:
        job = await harness.by("alice").submit(ECHO, {"text": "x"})
        for job_id in (hostile, f"{job.job_id}{hostile}"):
            for name, ask in harness.asks("bob", job_id[:128]).items():
                assert (await failed(ask())).code in (
                    grpc.StatusCode.NOT_FOUND,
                    grpc.StatusCode.INVALID_ARGUMENT,
                ), (name, job_id)


async def test_a_watch_from_the_end_of_time_neither_breaks_nor_sends(harness: JobsHarness) -> None:
    job = await harness.by("alice").submit(ECHO, {"text": "x"})
    await harness.by("alice").ended(job.job_id)
    assert await harness.by("alice").ended(job.job_id, 2**63 - 1) == []
    refused = await failed_stream(harness.by("alice").watch(job.job_id, -1))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT


# Keys


async def test_the_id_of_a_keyed_job_can_be_computed_and_opens_nothing(harness: JobsHarness) -> None:
    guessed = f"job_{digest(['alice', WAIT, 'k'])[:32]}"
    squatted = await harness.by("bob").submit(WAIT, idempotency_key="k")
    job = await harness.by("alice").submit(WAIT, idempotency_key="k")
    assert squatted.job_id != job.job_id
    for ask in harness.asks("bob", guessed).values():
        assert (await failed(ask())).code is grpc.StatusCode.NOT_FOUND
    assert (await harness.by("alice").submit(WAIT, idempotency_key="k")).job_id == job.job_id


async def test_one_key_stands_for_one_job_at_any_number_of_submissions(harness: JobsHarness) -> None:
    jobs = await asyncio.gather(*(harness.by("alice").submit(WAIT, idempotency_key="k") for _ in range(50)))
    assert len({job.job_id for job in jobs}) == 1
    assert (await harness.by("auditor").page()).total_size == 1
    refused = await failed(harness.by("alice").submit(WAIT, {"text": "other"}, idempotency_key="k"))
    assert refused.code is not grpc.StatusCode.OK
    assert "idempotency_key" in refused.message


# Floods


async def test_cancels_sent_a_hundredfold_stop_the_job_once(harness: JobsHarness) -> None:
    job = await harness.by("alice").submit(WAIT)
    await asyncio.wait_for(harness.waits.started.wait(), CALL_TIMEOUT_S)
    states = await asyncio.gather(*(harness.by("alice").cancel(job.job_id, "\x1b[2K" * 500) for _ in range(100)))
    assert set(states) <= {"CANCELLING", "CANCELLED"}
    history = await harness.by("alice").ended(job.job_id)
    assert state(history[-1]) == "CANCELLED"
    assert len(history) < 10


async def test_one_principal_s_flood_of_jobs_leaves_room_for_others(tmp_path: Path) -> None:
    waits = Waits()
    settings = {**BY_KEY, "jobs": {"max_open": 20}}
    async with running_hub(tmp_path, policy=POLICY, settings=settings, tools=[waits]) as running:
        harness = JobsHarness(running, waits)
        flood = await asyncio.gather(*(harness.by("bob").submit(WAIT) for _ in range(60)), return_exceptions=True)
        refused = [each for each in flood if isinstance(each, grpc.aio.AioRpcError)]
        assert refused
        assert all(each.code() is grpc.StatusCode.RESOURCE_EXHAUSTED for each in refused)
        job = await harness.by("alice").submit(WAIT)
        assert state(job.status) in ("QUEUED", "RUNNING")
        waits.let_go.set()


async def test_an_unread_watch_delays_neither_its_job_nor_other_watches(harness: JobsHarness) -> None:
    job = await harness.by("alice").submit(WAIT)
    unread = [harness.by("alice").watch(job.job_id) for _ in range(50)]
    await asyncio.wait_for(harness.waits.started.wait(), CALL_TIMEOUT_S)
    harness.waits.let_go.set()
    assert state((await harness.by("alice").ended(job.job_id))[-1]) == "SUCCEEDED"
    for watch in unread:
        watch.cancel()


async def test_a_refused_submission_states_why_and_nothing_of_the_host(harness: JobsHarness) -> None:
    for args in ({"text": 5}, {"text": "x" * 10}, {"nope": {"password": "c4nary"}}):
        job = await harness.by("bob").submit(ECHO, args)
        assert str(harness.running.hub.settings.data_dir) not in str(job)
        if job.status.HasField("error"):
            assert job.status.error.kind != error_pb2.ERROR_KIND_INTERNAL
