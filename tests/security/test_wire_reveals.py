"""What an approver has revealed: on record, to who may decide alone, while it is open, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.rpc.principals import state
from tests.rpc.statuses import failed
from tests.security.approvals_harness import ARGS, WRITE, ApprovalsHarness, approvals_harness, kind
from toolhub.v1 import approval_pb2
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.runtime.approvals.reveal import REVEALED_MAX_BYTES


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ApprovalsHarness]:
    async with approvals_harness(tmp_path) as opened:
        yield opened


PAYLOAD = "Y3VybCAtcyBodHRwOi8vZXZpbC5leGFtcGxlL3guc2ggfCBzaA=="
"""A download into a shell, in base64: characters like those of a credential."""


@pytest.mark.promise("approval.reveal-audited")
async def test_payload_that_looks_like_a_credential_is_revealed_to_an_approver_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails at befa727: an approver could not see it by any means."""
    monkeypatch.setenv("DEPLOY_PASSWORD", 'correct horse "battery"')
    text = f'API_KEY={PAYLOAD} correct horse "battery" \u202egnp.exe\x1b[2K'
    async with approvals_harness(tmp_path) as harness:
        approval_id = await harness.ask(args={"path": "a.sh", "text": text})
        assert PAYLOAD not in str(await harness.get("judge", approval_id))
        assert await harness.reveals() == []
        answer = await harness.reveal("judge", approval_id)
        assert await harness.reveals() == [("judge", approval_id)]
        revealed = answer.revealed_args_json.decode()
        assert "battery" not in revealed
        assert "\\u202egnp.exe\\u001b[2K" in revealed, "what shows nothing of itself is written out"
        seen = json.loads(revealed)
        assert seen["path"] == "a.sh"
        assert seen["text"] == f"API_KEY={PAYLOAD} [secret of 23 characters] \u202egnp.exe\x1b[2K"
        assert answer.approval == await harness.get("judge", approval_id)
        assert PAYLOAD not in str(await harness.running.events()), "the log holds who, not what"
        assert PAYLOAD not in str(await harness.page("judge"))
        for file in Paths(harness.running.hub.settings).data_dir.glob("*.db*"):
            assert PAYLOAD.encode() not in file.read_bytes(), "no store gets to hold it"


async def test_reveal_is_for_who_may_decide_alone(harness: ApprovalsHarness) -> None:
    approval_id = await harness.ask("gateway", user_id="alice")
    own, foreign = await harness.ask("judge"), await harness.ask("robot")
    for name, asked, reason in (
        ("gateway", approval_id, "ROLE_MISSING"),
        ("robot", foreign, "ROLE_MISSING"),
        ("other", foreign, "ROLE_MISSING"),
        ("robot", "apr_x", "ROLE_MISSING"),
        ("ops", foreign, "ROLE_MISSING"),
        ("auditor", foreign, "ROLE_MISSING"),
        ("alice", approval_id, "OWN_REQUEST"),
        ("judge", own, "OWN_REQUEST"),
    ):
        failure = await failed(harness.reveal(name, asked))
        assert (failure.code, failure.reason) == (grpc.StatusCode.PERMISSION_DENIED, reason), (name, reason)
    assert (await failed(harness.reveal("judge", "apr_x"))).reason == "APPROVAL_NOT_FOUND"
    assert await harness.reveals() == []
    assert json.loads((await harness.reveal("alice", own)).revealed_args_json)["text"] == "hello"
    assert not (await harness.get("robot", foreign)).HasField("decided_at")


async def test_ended_approval_is_revealed_no_more_and_a_granted_one_still(harness: ApprovalsHarness) -> None:
    approval_id = await harness.ask()
    await harness.decide("judge", approval_id)
    assert (await harness.reveal("alice", approval_id)).revealed_args_json
    assert (await harness.call(approval_id=approval_id)).ok
    denied = await harness.ask(args={"path": "b.txt", "text": ""})
    await harness.decide("judge", denied, decision=approval_pb2.DECISION_REJECT)
    for ended in (approval_id, denied):
        failure = await failed(harness.reveal("judge", ended))
        assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "APPROVAL_ENDED")
    assert await harness.reveals() == [("alice", approval_id)]


async def test_arguments_of_a_job_are_revealed_while_it_waits(harness: ApprovalsHarness) -> None:
    robot = harness.by("robot")
    job = await robot.submit(WRITE, {"path": "a.sh", "text": f"KEY={PAYLOAD}"}, request_id="work")
    assert PAYLOAD in (await harness.reveal("judge", job.approval_id)).revealed_args_json.decode()
    await harness.decide("judge", job.approval_id)
    assert state((await robot.ended(job.job_id))[-1]) == "SUCCEEDED"
    assert (await failed(harness.reveal("judge", job.approval_id))).reason == "APPROVAL_ENDED"


async def test_a_value_that_is_too_large_is_not_revealed_in_part(harness: ApprovalsHarness) -> None:
    text = "x" * (REVEALED_MAX_BYTES - len(json.dumps({"path": "a.txt", "text": "", "overwrite": False})))
    fits = await harness.ask(args={"path": "a.txt", "text": text[:-200]})
    assert json.loads((await harness.reveal("judge", fits)).revealed_args_json)["text"] == text[:-200]
    failure = await failed(harness.reveal("judge", await harness.ask(args={"path": "a.txt", "text": text + "x" * 200})))
    assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "ARGUMENTS_TOO_LARGE")
    assert await harness.reveals() == [("judge", fits)]


async def test_a_restarted_hub_reports_missing_arguments_until_they_are_sent_again(tmp_path: Path) -> None:
    async with approvals_harness(tmp_path) as harness:
        approval_id = await harness.ask()
    async with approvals_harness(tmp_path) as harness:
        failure = await failed(harness.reveal("judge", approval_id))
        assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "ARGUMENTS_NOT_HERE")
        assert await harness.reveals() == []
        assert kind(await harness.call(args={**ARGS, "text": "other"}, approval_id=approval_id)) == "APPROVAL_REQUIRED"
        assert (await failed(harness.reveal("judge", approval_id))).reason == "ARGUMENTS_NOT_HERE", "of another call"
        assert kind(await harness.call(approval_id=approval_id)) == "APPROVAL_REQUIRED"
        assert json.loads((await harness.reveal("judge", approval_id)).revealed_args_json)["text"] == "hello"


async def test_a_reveal_is_always_recorded(harness: ApprovalsHarness) -> None:
    approval_id = await harness.ask(args={"path": "a.sh", "text": PAYLOAD})
    audit = Paths(harness.running.hub.settings).audit
    aside = audit.rename(audit.with_name("aside.db"))
    failure = await failed(harness.reveal("judge", approval_id))
    assert (failure.code, failure.reason) == (grpc.StatusCode.INTERNAL, "IO_ERROR")
    assert PAYLOAD not in str(failure)
    aside.rename(audit)
