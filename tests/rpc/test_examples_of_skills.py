"""The three skills of examples/skills, over its sources.yaml and policy.yaml: a script, a plan and a program."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.hub import RunningHub, running_hub
from tests.rpc import real_servers as real
from tests.rpc.job_client import state
from toolhub.v1 import approval_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub.v1 import job_service_pb2 as job_pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys

EXAMPLE = Path(__file__).parents[2] / "examples" / "skills"
WORK = "notes"


@asynccontextmanager
async def example_hub(home: Path, **settings: Any) -> AsyncIterator[RunningHub]:
    settings |= {"sources": {"file": str(EXAMPLE / "sources.yaml")}, "loose_files": "warn"}
    roles = "roles: [{principals: [ann], roles: [approver]}]\n"
    async with running_hub(home, policy=(EXAMPLE / "policy.yaml").read_text() + roles, settings=settings) as hub:
        sources = hub.hub.sourcing.sources
        assert await sources.wait_until_tried(timeout_s=real.WITHIN_S)
        assert [status.reason for status in sources.statuses() if status.name == "skill"] == [""]
        yield hub


async def test_the_script_sums_up_a_table_and_leaves_it_as_an_artifact(tmp_path: Path) -> None:
    table = "region,total\nnorth,3\nsouth,4.5\nnorth,4\nsouth,many\n"
    async with example_hub(tmp_path) as hub:
        result = await hub.invoke("skill/table-report", {"csv": table, "by": "region", "sum": "total"})
        assert result.ok, result.error
        assert json.loads(result.result_json) == {"totals": {"north": 7.0, "south": 4.5}, "skipped": 1}
        assert [artifact.name for artifact in result.artifacts] == ["totals.csv"]
        wrong = await hub.invoke("skill/table-report", {"csv": table, "by": "region", "sum": "none"})
        assert "the table has no column" in str(dict(wrong.error.details))


async def test_the_plan_branches_and_waits_for_a_person_before_it_publishes(tmp_path: Path) -> None:
    long = "A long note. " * 40
    async with example_hub(tmp_path, auth={"modes": ["api-key"]}) as hub:
        file = Paths(hub.hub.settings).key_file()
        robot, ann = ((("authorization", f"Bearer {file.create(name)}"),) for name in ("robot", "ann"))
        reload_keys(hub.hub, file)
        job = await hub.submit("skill/publish-note", {"text": long}, request_id=WORK, metadata=robot)
        approvals = ApprovalServiceStub(hub.channel)
        watch = hub.jobs.WatchJob(job_pb.WatchJobRequest(job_id=job.job_id), timeout=60, metadata=robot)
        async for answer in watch:
            if state(answer.status) == "AWAITING_APPROVAL":
                break
        (asked,) = (await approvals.ListApprovals(pb.ListApprovalsRequest(), metadata=ann)).approvals
        work = hub.workspace(WORK, "robot")
        assert (work / "drafts/note.md").read_text() == long
        assert not (work / "published").exists()
        decision = pb.DecideApprovalRequest(approval_id=asked.approval_id, decision=approval_pb2.DECISION_APPROVE)
        await approvals.DecideApproval(decision, timeout=60, metadata=ann)
        end = (await hub.watched(job.job_id, metadata=robot))[-1]
        assert end.result.ok, end.result.error
        value = json.loads(end.result.result_json)
        assert value["sha256"] == hashlib.sha256(long.encode()).hexdigest()
        assert len((work / "published/note.md").read_text()) == 200
        assert (work / "journal.txt").exists()


async def test_the_program_reads_forty_notes_in_one_call(tmp_path: Path) -> None:
    async with example_hub(tmp_path) as hub:
        for number in range(40):
            path, text = f"notes/{number:02}.md", f"# Note {number}\n\nthree more words\n"
            assert (await hub.invoke("core/fs.writeText", {"path": path, "text": text}, request_id=WORK)).ok
        result = await hub.invoke("skill/note-index", {"folder": "notes"}, request_id=WORK)
        assert result.ok, result.error
        assert json.loads(result.result_json) == {"notes": 40, "words": 240}
        index = hub.workspace(WORK).joinpath("notes/INDEX.md").read_text()
        assert index.startswith("- [Note 0](notes/00.md), 6 words\n")
