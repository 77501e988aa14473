"""A job that waits for an answer, in a process that is killed: the next one has it still, and it goes on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hub import channel_to, request
from tests.rpc.test_approvals import AWAITING
from tests.rpc.test_questions import PAINT, WALL
from toolhub.v1 import approval_pb2, approval_service_pb2, job_pb2, job_state_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub.v1.job_service_pb2_grpc import JobServiceStub

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@dataclass
class KillableHub:
    """A hub in a process of its own, and the keys that it has made for callers."""

    process: asyncio.subprocess.Process
    channel: Any
    keys: Mapping[str, str]

    @property
    def jobs(self) -> Any:
        return JobServiceStub(self.channel)

    async def submit(self, key: str) -> str:
        asked = request(PAINT.name, WALL, request_id="work")
        submitted = pb.SubmitJobRequest(intent=asked.intent, context=asked.context)
        return str((await self.jobs.SubmitJob(submitted, metadata=_by(key), timeout=60)).job.job_id)

    async def get(self, job_id: str, key: str) -> job_pb2.Job:
        asked = pb.GetJobRequest(job_id=job_id)
        return (await self.jobs.GetJob(asked, metadata=_by(key), timeout=60)).job  # type: ignore[no-any-return]

    async def reached(self, job_id: str, key: str, *states: job_state_pb2.JobState.ValueType) -> job_pb2.JobStatus:
        watch = self.jobs.WatchJob(pb.WatchJobRequest(job_id=job_id), metadata=_by(key), timeout=60)
        async for answer in watch:
            if answer.status.state in states:
                watch.cancel()
                return answer.status  # type: ignore[no-any-return]
        raise AssertionError("the job ended otherwise")

    async def answer(self, approval_id: str, key: str, answer: Mapping[str, str]) -> None:
        decision = approval_service_pb2.DecideApprovalRequest(
            approval_id=approval_id, decision=approval_pb2.DECISION_APPROVE, answer_json=json.dumps(answer).encode()
        )
        stub: Any = ApprovalServiceStub(self.channel)
        await stub.DecideApproval(decision, metadata=_by(key), timeout=60)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@pytest.mark.promise("approval.job-goes-on")
async def test_job_that_waits_still_waits_after_kill_9_and_goes_on_with_its_answer(tmp_path: Path) -> None:
    async with a_process(tmp_path, "robot", "judge") as first:
        robot, judge = first.keys["robot"], first.keys["judge"]
        job_id = await first.submit(robot)
        await first.reached(job_id, robot, AWAITING)
        await first.kill()
    async with a_process(tmp_path) as second:
        job = await second.get(job_id, robot)
        assert job.status.state == AWAITING
        await second.answer(job.approval_id, judge, {"colour": "red"})
        last = await second.reached(job_id, robot, job_state_pb2.JOB_STATE_SUCCEEDED, job_state_pb2.JOB_STATE_LOST)
        assert json.loads(last.result.result_json) == {"said": [{"colour": "red", "password": "none"}]}


@asynccontextmanager
async def a_process(folder: Path, *names: str) -> AsyncIterator[KillableHub]:
    """`asking_hub`, with keys for those names."""
    command = [sys.executable, "-m", "tests.rpc.asking_hub", str(folder), *names]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            ready = json.loads(await process.stdout.readline())
        async with channel_to(ready["address"]) as channel:
            yield KillableHub(process, channel, ready["keys"])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _by(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", key),)
