"""What an approver has revealed: on record, to who may decide alone, while it is open, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.rpc.sharing import state
from tests.rpc.statuses import failed
from tests.security.court import ARGS, WRITE, Court, a_court, kind
from toolhub.v1 import approval_pb2
from toolhub_service.app.paths import Paths
from toolhub_service.runtime.approval_reveal import REVEALED_MAX_BYTES


@pytest.fixture
async def court(tmp_path: Path) -> AsyncIterator[Court]:
    async with a_court(tmp_path) as opened:
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
    async with a_court(tmp_path) as court:
        approval_id = await court.ask(args={"path": "a.sh", "text": text})
        assert PAYLOAD not in str(await court.get("judge", approval_id))
        assert await court.reveals() == []
        answer = await court.reveal("judge", approval_id)
        assert await court.reveals() == [("judge", approval_id)]
        revealed = answer.revealed_args_json.decode()
        assert "battery" not in revealed
        assert "\\u202egnp.exe\\u001b[2K" in revealed, "what shows nothing of itself is written out"
        seen = json.loads(revealed)
        assert seen["path"] == "a.sh"
        assert seen["text"] == f"API_KEY={PAYLOAD} [secret of 23 characters] \u202egnp.exe\x1b[2K"
        assert answer.approval == await court.get("judge", approval_id)
        assert PAYLOAD not in str(await court.running.events()), "the log holds who, not what"
        assert PAYLOAD not in str(await court.page("judge"))
        for file in Paths(court.running.hub.settings).data_dir.glob("*.db*"):
            assert PAYLOAD.encode() not in file.read_bytes(), "no store gets to hold it"


async def test_reveal_is_for_who_may_decide_alone(court: Court) -> None:
    approval_id = await court.ask("gateway", user_id="alice")
    own, foreign = await court.ask("judge"), await court.ask("robot")
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
        failure = await failed(court.reveal(name, asked))
        assert (failure.code, failure.reason) == (grpc.StatusCode.PERMISSION_DENIED, reason), (name, reason)
    assert (await failed(court.reveal("judge", "apr_x"))).reason == "APPROVAL_NOT_FOUND"
    assert await court.reveals() == []
    assert json.loads((await court.reveal("alice", own)).revealed_args_json)["text"] == "hello"
    assert not (await court.get("robot", foreign)).HasField("decided_at")


async def test_ended_approval_is_revealed_no_more_and_a_granted_one_still(court: Court) -> None:
    approval_id = await court.ask()
    await court.decide("judge", approval_id)
    assert (await court.reveal("alice", approval_id)).revealed_args_json
    assert (await court.call(approval_id=approval_id)).ok
    denied = await court.ask(args={"path": "b.txt", "text": ""})
    await court.decide("judge", denied, decision=approval_pb2.DECISION_REJECT)
    for ended in (approval_id, denied):
        failure = await failed(court.reveal("judge", ended))
        assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "APPROVAL_ENDED")
    assert await court.reveals() == [("alice", approval_id)]


async def test_arguments_of_a_job_are_revealed_while_it_waits(court: Court) -> None:
    robot = court.by("robot")
    job = await robot.submit(WRITE, {"path": "a.sh", "text": f"KEY={PAYLOAD}"}, request_id="work")
    assert PAYLOAD in (await court.reveal("judge", job.approval_id)).revealed_args_json.decode()
    await court.decide("judge", job.approval_id)
    assert state((await robot.ended(job.job_id))[-1]) == "SUCCEEDED"
    assert (await failed(court.reveal("judge", job.approval_id))).reason == "APPROVAL_ENDED"


async def test_what_is_too_large_is_not_revealed_in_part(court: Court) -> None:
    text = "x" * (REVEALED_MAX_BYTES - len(json.dumps({"path": "a.txt", "text": "", "overwrite": False})))
    fits = await court.ask(args={"path": "a.txt", "text": text[:-200]})
    assert json.loads((await court.reveal("judge", fits)).revealed_args_json)["text"] == text[:-200]
    failure = await failed(court.reveal("judge", await court.ask(args={"path": "a.txt", "text": text + "x" * 200})))
    assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "ARGUMENTS_TOO_LARGE")
    assert await court.reveals() == [("judge", fits)]


async def test_hub_that_was_started_again_says_that_it_has_no_arguments_until_they_come_again(tmp_path: Path) -> None:
    async with a_court(tmp_path) as court:
        approval_id = await court.ask()
    async with a_court(tmp_path) as court:
        failure = await failed(court.reveal("judge", approval_id))
        assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "ARGUMENTS_NOT_HERE")
        assert await court.reveals() == []
        assert kind(await court.call(args={**ARGS, "text": "other"}, approval_id=approval_id)) == "APPROVAL_REQUIRED"
        assert (await failed(court.reveal("judge", approval_id))).reason == "ARGUMENTS_NOT_HERE", "of another call"
        assert kind(await court.call(approval_id=approval_id)) == "APPROVAL_REQUIRED"
        assert json.loads((await court.reveal("judge", approval_id)).revealed_args_json)["text"] == "hello"


async def test_nothing_is_revealed_that_is_not_on_record(court: Court) -> None:
    approval_id = await court.ask(args={"path": "a.sh", "text": PAYLOAD})
    audit = Paths(court.running.hub.settings).audit
    aside = audit.rename(audit.with_name("aside.db"))
    failure = await failed(court.reveal("judge", approval_id))
    assert (failure.code, failure.reason) == (grpc.StatusCode.INTERNAL, "IO_ERROR")
    assert PAYLOAD not in str(failure)
    aside.rename(audit)
