"""A hub of today on the data of a former version, which was killed in the middle of its work: it goes on with all.

A real process, over the wire, with the embedded stores, a real Redis and a real PostgreSQL.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.upgrade import kept
from tests.upgrade.conftest import KEPT, FormerData, Running
from tests.upgrade.test_stored_records import differences
from tests.upgrade.wire import APPROVE, REJECT

ANSWER = json.dumps(kept.ANSWER).encode()

pytestmark = pytest.mark.slow


OLDEST = pytest.mark.parametrize(
    "former_data", [pair for pair in KEPT if pair[0] == "befa727"], indirect=True, ids=" ".join
)
"""Where the versions between wrote the same bytes."""


@OLDEST
@pytest.mark.promise("upgrade.reads")
async def test_ended_jobs_are_answered_as_before(former_data: FormerData) -> None:
    then, ids = former_data.expected["wire"], former_data.expected
    async with former_data.hub() as hub:
        for name, history in then["histories"].items():
            assert differences(history, await hub.robot.history(ids["jobs"][name])) == []
            assert differences(then["jobs"][name], await hub.robot.job(ids["jobs"][name])) == []
        for name in ("rejected", "used", "expired"):
            assert differences(then["approvals"][name], await hub.judge.approval(ids["approvals"][name])) == []
        for name, artifact in then["artifacts"].items():
            assert differences(artifact, await hub.robot.artifact(ids["artifacts"][name])) == []
            content = await hub.robot.read(ids["artifacts"][name])
            assert hashlib.sha256(content).hexdigest() == artifact["sha256"]
        assert await hub.robot.read(ids["artifacts"]["upload"]) == kept.UPLOAD
        await hub.boss.refresh("papers")
        assert differences(then["pins"], await hub.boss.pins("papers")) == []


@pytest.mark.promise("upgrade.jobs")
async def test_jobs_that_were_under_way_go_on(former_data: FormerData) -> None:
    jobs, approvals = former_data.expected["jobs"], former_data.expected["approvals"]
    async with former_data.hub() as hub:
        for name in ("queued", "running"):
            assert value(await ended(hub, jobs[name], "SUCCEEDED")) == {"text": name}
        lost = await ended(hub, jobs["begun"], "LOST")
        assert lost["error"]["kind"] == "ERROR_KIND_OUTCOME_UNKNOWN"
        await ended(hub, jobs["cancelling"], "CANCELLED")
        await approve(former_data, hub, "awaiting")
        assert value(await ended(hub, jobs["awaiting"], "SUCCEEDED")) == {"text": "written: awaiting"}
        await hub.judge.decide(approvals["awaiting_too"], REJECT)
        await ended(hub, jobs["awaiting_too"], "FAILED")
        await approve(former_data, hub, "asking", answer_json=ANSWER)
        assert value(await ended(hub, jobs["asking"], "SUCCEEDED")) == {"text": "asking, Ada"}
        again = await hub.robot.submit(
            "kept/text.echo", text=kept.TEXT, key="job-key", request_id="request-1", user_id="ada"
        )
        assert again["job_id"] == jobs["succeeded"]


@pytest.mark.promise("upgrade.keys-and-approvals")
async def test_keys_replay_and_approvals_are_decided_and_used(former_data: FormerData) -> None:
    then, approvals = former_data.expected["wire"]["answers"], former_data.expected["approvals"]
    async with former_data.hub() as hub:
        robot = hub.robot
        replayed = await robot.invoke("kept/text.write", text="once", key="key-ended")
        assert replayed.pop("replayed")
        assert (value(replayed), replayed["call_id"]) == (value(then["key-ended"]), then["key-ended"]["call_id"])
        refused = await robot.invoke("kept/text.refuse", text="bad", key="key-refused")
        assert refused["replayed"]
        assert refused["error"] == then["key-refused"]["error"]
        conflict = await robot.invoke("kept/text.write", text="twice", key="key-ended")
        assert conflict["error"]["kind"] == "ERROR_KIND_IDEMPOTENCY_CONFLICT"
        unknown = await robot.invoke("kept/text.holdEffect", text="open", key="key-open")
        assert unknown["error"]["kind"] == "ERROR_KIND_OUTCOME_UNKNOWN"
        await hub.judge.decide(approvals["pending"], APPROVE)
        for name in ("pending", "approved"):
            approval_id = approvals[name]
            if not former_data.binds_workspaces:
                approval_id = await required(hub, "kept/text.sign", name, approval_id)
                await hub.judge.decide(approval_id, APPROVE)
            assert value(await repeats(hub, "kept/text.sign", name, approval_id)) == {"text": f"written: {name}"}
            assert await required(hub, "kept/text.sign", name, approval_id) != approval_id
        question = approvals["question"]
        await hub.judge.decide(question, APPROVE, answer_json=ANSWER)
        if not former_data.binds_workspaces:
            refused = await repeats(hub, "kept/text.ask", "question", question)
            assert refused["error"]["kind"] == "ERROR_KIND_APPROVAL_REQUIRED"
            question = await required(hub, "kept/text.ask", "question", "")
            await hub.judge.decide(question, APPROVE, answer_json=ANSWER)
        assert value(await repeats(hub, "kept/text.ask", "question", question)) == {"text": "question, Ada"}


@OLDEST
@pytest.mark.promise("upgrade.pins-and-use")
async def test_pins_still_hold_and_use_still_ranks(former_data: FormerData) -> None:
    async with former_data.hub() as hub:
        status = await hub.boss.refresh("papers")
        assert (status["tools"], status["quarantined"]) == (4, 2)
        hub.papers.pages[:] = [[kept.definition("steady", "Read a paper, and whatever else there is.")]]
        await hub.boss.refresh("papers")
        held = await hub.robot.invoke("papers/steady", text="")
        assert held["error"]["kind"] == "ERROR_KIND_TOOL_QUARANTINED"
        while not (hits := await hub.robot.found("otters river")):  # read from the store within seconds
            pass
        assert hits[0]["tool"]["name"] == "kept/text.write"


@OLDEST
@pytest.mark.promise("upgrade.audit")
async def test_audit_log_goes_on_and_is_verified_over_the_seam(former_data: FormerData) -> None:
    async with former_data.hub() as hub:
        await hub.robot.invoke("kept/text.write", text="after the upgrade")
        verified = await hub.boss.verified()
        events = await hub.boss.events()
        assert await hub.process.stop() == 0
    assert verified["ok"], verified
    before = [key(event) for event in former_data.expected["wire"]["events"]]
    by_place = {key(event): event for event in events}
    assert differences(former_data.expected["wire"]["events"], [by_place[each] for each in before]) == []
    assert any("after the upgrade" in event.get("args_summary", "") for event in events)
    if (former_data.data / "audit.db").exists():
        completed = await in_thread(
            [sys.executable, "-m", "toolhub_service", "audit", "verify", "--data-dir", str(former_data.data), "--json"]
        )
        assert json.loads(completed.stdout)["ok"], completed.stdout + completed.stderr


async def ended(hub: Running, job_id: str, state: str) -> dict[str, Any]:
    """The result of a job that ends so."""
    last = (await hub.robot.reached(job_id, state))[-1]
    return dict(last["result"])


async def approve(former_data: FormerData, hub: Running, name: str, **fields: Any) -> None:
    """What the job waits for; and again when the first approval, which names no workspace, is not taken for it."""
    job_id, approval_id = former_data.expected["jobs"][name], former_data.expected["approvals"][name]
    await hub.judge.decide(approval_id, APPROVE, **fields)
    if former_data.binds_workspaces:
        return
    while (job := await hub.robot.job(job_id)).get("approval_id", approval_id) == approval_id:
        seen = int(job["status"]["sequence"])
        await hub.robot.history(job_id, later_than(seen))
    await hub.judge.decide(job["approval_id"], APPROVE, **fields)


def later_than(sequence: int) -> Callable[[dict[str, Any]], bool]:
    return lambda status: int(status["sequence"]) > sequence


async def repeats(hub: Running, tool: str, text: str, approval_id: str) -> dict[str, Any]:
    """The call that the approval was asked for, with that approval."""
    return await hub.robot.invoke(tool, text=text, request_id="request-2", approval_id=approval_id)


async def required(hub: Running, tool: str, text: str, approval_id: str) -> str:
    """The approval that the same call needs instead."""
    refused = await repeats(hub, tool, text, approval_id)
    assert refused["error"]["kind"] == "ERROR_KIND_APPROVAL_REQUIRED", refused
    return str(refused["error"]["details"]["approval_id"])


def value(result: dict[str, Any]) -> Any:
    assert result.get("ok"), result
    return json.loads(base64.b64decode(result["result_json"]))


async def in_thread(command: list[str]) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(subprocess.run, command, check=False, capture_output=True, text=True)


def key(event: dict[str, Any]) -> tuple[str, str]:
    return event["writer"], event["sequence"]
