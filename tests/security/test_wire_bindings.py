"""Plans and approvals hold for the folder and for the state that were shown, attacked over the wire."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hub import CALL_TIMEOUT_S, RunningHub, request, running_hub
from tests.rpc.principals import BY_KEY, state
from tests.security.approvals_harness import ApprovalsHarness, kind
from toolhub_service.tools.workspace.atomic_file import AtomicFile

CAPABILITIES = "[read:fs, write:fs, execute:command, danger:destructive, network]"
APPROVALS = f"""
extends: none
grants:
  - {{principals: ["*"], capabilities: {CAPABILITIES}}}
roles:
  - {{principals: [judge], roles: [agent, approver]}}
rules:
  - {{id: ask, effect: REQUIRE_APPROVAL, tools: ["core/fs.*", "core/util.time.now"], reason: Files are shared.}}
"""
PLANS = f"""
extends: none
grants:
  - {{principals: ["*"], capabilities: {CAPABILITIES}}}
rules:
  - {{id: look, effect: REQUIRE_PLAN, tools: ["core/fs.*", "core/util.time.now"], reason: Look first.}}
"""
DELETE, MOVE, WRITE = "core/fs.deletePath", "core/fs.move", "core/fs.writeText"
EDIT, COPY, NOW = "core/fs.editText", "core/fs.copy", "core/util.time.now"
SHOWN, LATER = "a" * 5, "b" * 1_150
DELETION = {"path": "a.txt", "confirm": True}
CHANGES = {
    "deletePath": (DELETE, DELETION),
    "move": (MOVE, {"source": "a.txt", "destination": "z.txt"}),
    "move-over": (MOVE, {"source": "other.txt", "destination": "a.txt", "overwrite": True}),
    "writeText": (WRITE, {"path": "a.txt", "text": "new", "overwrite": True}),
    "copy": (COPY, {"source": "other.txt", "destination": "a.txt", "overwrite": True}),
    "editText": (EDIT, {"path": "a.txt", "oldText": "x", "newText": "y"}),
}
every_change = pytest.mark.parametrize(("tool", "args"), CHANGES.values(), ids=list(CHANGES))


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ApprovalsHarness]:
    async with running_hub(tmp_path, policy=APPROVALS, settings=BY_KEY) as running:
        yield ApprovalsHarness(running)


@asynccontextmanager
async def a_hub(tmp_path: Path, **settings: Any) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path, policy=PLANS, settings=settings) as running:
        yield running


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[RunningHub]:
    async with a_hub(tmp_path) as running:
        yield running


def put(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def files(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


async def invoke(harness: ApprovalsHarness, tool: str, args: Any, *, approval_id: str = "", **fields: Any) -> Any:
    asked = request(tool, args, **{"request_id": "work", **fields})
    asked.approval_id = approval_id
    metadata = harness.by("robot").metadata
    return (await harness.running.stub.Invoke(asked, metadata=metadata, timeout=CALL_TIMEOUT_S)).result


async def granted(harness: ApprovalsHarness, tool: str, args: Any, **fields: Any) -> str:
    result = await invoke(harness, tool, args, **fields)
    assert kind(result) == "APPROVAL_REQUIRED", result.error.message
    approval_id = str(result.error.details["approval_id"])
    await harness.decide("judge", approval_id)
    return approval_id


def differs(result: Any) -> tuple[str, list[str]]:
    return kind(result), list(result.error.details["differs"])


# The folder


@pytest.mark.promise("approval.exact-call")
async def test_approval_moves_no_file_of_another_folder(harness: ApprovalsHarness) -> None:
    """Fails at befa727: the other folder's file was moved."""
    shown = put(harness.running.workspace("work", "robot"), "a.txt", SHOWN)
    other = put(harness.running.workspace("elsewhere", "robot"), "a.txt", SHOWN)
    args = {"source": "a.txt", "destination": "b.txt"}
    approval_id = await granted(harness, MOVE, args)
    refused = await invoke(harness, MOVE, args, request_id="elsewhere", approval_id=approval_id)
    assert differs(refused) == ("APPROVAL_REQUIRED", ["workspace"])
    assert refused.error.details["approval_id"] != approval_id
    assert shown.exists()
    assert other.exists()
    assert (await invoke(harness, MOVE, args, approval_id=approval_id)).ok


@pytest.mark.promise("plan.commits-what-was-shown")
async def test_plan_deletes_nothing_in_another_folder(hub: RunningHub) -> None:
    """Fails at befa727: 1,150 bytes were deleted by a plan that showed 5."""
    put(hub.workspace("work"), "a.txt", SHOWN)
    other = put(hub.workspace("elsewhere"), "a.txt", LATER)
    plan = await hub.plan(DELETE, DELETION, request_id="work")
    assert "5 bytes" in plan.effects[0]
    refused = await hub.invoke(DELETE, DELETION, request_id="elsewhere", plan_digest=plan.plan_digest)
    assert differs(refused) == ("PLAN_REQUIRED", ["workspace"])
    assert other.exists()
    assert (await hub.invoke(DELETE, DELETION, request_id="work", plan_digest=plan.plan_digest)).ok


async def test_plan_of_one_session_s_folder_serves_no_other_session(tmp_path: Path) -> None:
    """Fails at befa727: the file of the other session was deleted."""
    async with a_hub(tmp_path, workspace={"per": "session"}) as hub:
        put(hub.workspace("one"), "a.txt", SHOWN)
        other = put(hub.workspace("two"), "a.txt", SHOWN)
        plan = await hub.plan(DELETE, DELETION, session_id="one", request_id="work")
        refused = await hub.invoke(DELETE, DELETION, session_id="two", request_id="work", plan_digest=plan.plan_digest)
        assert differs(refused) == ("PLAN_REQUIRED", ["workspace"])
        assert other.exists()
        digest = plan.plan_digest
        assert (await hub.invoke(DELETE, DELETION, session_id="one", request_id="another", plan_digest=digest)).ok


async def test_tool_that_works_in_no_folder_is_called_under_any_request(harness: ApprovalsHarness) -> None:
    approval_id = await granted(harness, NOW, {})
    assert (await invoke(harness, NOW, {}, request_id="elsewhere", approval_id=approval_id)).ok


async def test_call_without_a_request_id_has_a_new_folder_each_time_and_no_other(harness: ApprovalsHarness) -> None:
    args = {"path": "new.txt", "text": "hello"}
    approval_id = await granted(harness, WRITE, args, request_id="")
    refused = await invoke(harness, WRITE, args, approval_id=approval_id)
    assert differs(refused) == ("APPROVAL_REQUIRED", ["workspace"])
    assert (await invoke(harness, WRITE, args, request_id="", approval_id=approval_id)).ok


# The state


@every_change
@pytest.mark.promise("plan.commits-what-was-shown")
async def test_plan_of_a_state_that_changed_is_refused_with_the_new_one(
    hub: RunningHub, tool: str, args: dict[str, Any]
) -> None:
    """Fails at befa727: each of them changed what stood there by then."""
    folder = hub.workspace("work")
    put(folder, "other.txt", "other")
    put(folder, "a.txt", "x" + SHOWN)
    plan = await hub.plan(tool, args, request_id="work")
    put(folder, "a.txt", "x" + LATER)
    before = files(folder)
    refused = await hub.invoke(tool, args, request_id="work", plan_digest=plan.plan_digest)
    assert differs(refused) == ("PLAN_REQUIRED", ["state"])
    assert files(folder) == before
    details = refused.error.details
    assert "1,15" in str(details["effects"])
    assert (await hub.invoke(tool, args, request_id="work", plan_digest=str(details["plan_digest"]))).ok


@every_change
@pytest.mark.promise("approval.exact-call")
async def test_an_approval_for_a_state_that_changed_is_void(
    harness: ApprovalsHarness, tool: str, args: dict[str, Any]
) -> None:
    """Fails at befa727: each of them changed what stood there by then."""
    folder = harness.running.workspace("work", "robot")
    put(folder, "other.txt", "other")
    put(folder, "a.txt", "x" + SHOWN)
    approval_id = await granted(harness, tool, args)
    put(folder, "a.txt", "x" + LATER)
    before = files(folder)
    refused = await invoke(harness, tool, args, approval_id=approval_id)
    assert differs(refused) == ("APPROVAL_REQUIRED", ["state"])
    assert files(folder) == before
    again = str(refused.error.details["approval_id"])
    assert again != approval_id
    await harness.decide("judge", again)
    assert (await invoke(harness, tool, args, approval_id=again)).ok


def replace_with_equal_size(folder: Path) -> None:
    """Even the times are those that were shown."""
    file = folder / "a" / "one.txt"
    times = file.stat()
    file.write_text("ONE")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


TREE_CHANGES = {
    "a file more": lambda folder: put(folder, "a/deep/three.txt", "3"),
    "a file less": lambda folder: (folder / "a" / "one.txt").unlink(),
    "another name": lambda folder: (folder / "a" / "one.txt").rename(folder / "a" / "ONE.txt"),
    "an empty folder more": lambda folder: (folder / "a" / "empty").mkdir(),
    "other bytes of equal size and time": replace_with_equal_size,
    "another target of a link": lambda folder: ((folder / "a" / "l").unlink(), (folder / "a" / "l").symlink_to("two")),
    "a large file rewritten": lambda folder: (folder / "a" / "large").write_bytes(b"1" * 3_000_000),
}


@pytest.mark.parametrize("change", TREE_CHANGES.values(), ids=list(TREE_CHANGES))
async def test_folder_is_deleted_as_it_was_shown_or_not_at_all(hub: RunningHub, change: Any) -> None:
    """Fails at befa727: it was deleted with whatever was in it."""
    folder, args = hub.workspace("work"), {"path": "a", "recursive": True, "confirm": True}
    put(folder, "a/one.txt", "one")
    put(folder, "a/deep/two.txt", "two")
    (folder / "a" / "l").symlink_to("one")
    (folder / "a" / "large").write_bytes(b"0" * 3_000_000)
    plan = await hub.plan(DELETE, args, request_id="work")
    change(folder)
    refused = await hub.invoke(DELETE, args, request_id="work", plan_digest=plan.plan_digest)
    assert differs(refused) == ("PLAN_REQUIRED", ["state"])
    assert (folder / "a" / "deep" / "two.txt").exists()
    new = str(refused.error.details["plan_digest"])
    assert (await hub.invoke(DELETE, args, request_id="work", plan_digest=new)).ok
    assert not (folder / "a").exists()


async def test_file_that_changes_while_the_call_runs_is_not_replaced(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails at befa727: it was replaced. The state is compared again right before the rename."""
    folder, args = hub.workspace("work"), {"path": "a.txt", "text": "new", "overwrite": True}
    file = put(folder, "a.txt", SHOWN)
    plan = await hub.plan(WRITE, args, request_id="work")
    write = AtomicFile.write

    def write_beside_another(draft: AtomicFile, data: bytes | memoryview) -> None:
        file.write_text(LATER)
        write(draft, data)

    monkeypatch.setattr(AtomicFile, "write", write_beside_another)
    refused = await hub.invoke(WRITE, args, request_id="work", plan_digest=plan.plan_digest)
    assert (kind(refused), file.read_text()) == ("PLAN_REQUIRED", LATER)
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt"]


async def test_other_reads_and_writes_are_no_change_of_the_bound_files(hub: RunningHub) -> None:
    folder, args = hub.workspace("work"), {"path": "a", "recursive": True, "confirm": True}
    file = put(folder, "a/one.txt", "one")
    plan = await hub.plan(DELETE, args, request_id="work")
    file.read_text()
    put(folder, "b/two.txt", "two")
    assert (await hub.invoke(DELETE, args, request_id="work", plan_digest=plan.plan_digest)).ok


async def test_plan_committed_twice_destroys_once(hub: RunningHub) -> None:
    """Fails at befa727: the file that was put there afterwards was deleted by the old plan."""
    folder = hub.workspace("work")
    put(folder, "a.txt", SHOWN)
    plan = await hub.plan(DELETE, DELETION, request_id="work")
    assert (await hub.invoke(DELETE, DELETION, request_id="work", plan_digest=plan.plan_digest)).ok
    put(folder, "a.txt", LATER)
    refused = await hub.invoke(DELETE, DELETION, request_id="work", plan_digest=plan.plan_digest)
    assert differs(refused) == ("PLAN_REQUIRED", ["state"])
    assert files(folder) == {"a.txt": LATER}


async def test_repeated_commit_under_its_key_is_answered_from_store(hub: RunningHub) -> None:
    put(hub.workspace("work"), "a.txt", SHOWN)
    plan = await hub.plan(DELETE, DELETION, request_id="work")
    fields: dict[str, Any] = {"request_id": "work", "plan_digest": plan.plan_digest, "idempotency_key": "k"}
    first, again = [await hub.invoke(DELETE, DELETION, **fields) for _ in range(2)]
    assert (first.ok, again.ok, again.replayed) == (True, True, True)


async def test_repeated_use_of_an_approval_under_its_key_is_answered_from_store(harness: ApprovalsHarness) -> None:
    put(harness.running.workspace("work", "robot"), "a.txt", SHOWN)
    approval_id = await granted(harness, DELETE, DELETION)
    fields = {"approval_id": approval_id, "idempotency_key": "k"}
    first, again = [await invoke(harness, DELETE, DELETION, **fields) for _ in range(2)]
    assert (first.ok, again.ok, again.replayed) == (True, True, True)


async def test_job_whose_file_changed_before_the_yes_asks_for_another(harness: ApprovalsHarness) -> None:
    """Fails at befa727: the job deleted what stood there by then."""
    robot, folder = harness.by("robot"), harness.running.workspace("work", "robot")
    file = put(folder, "a.txt", SHOWN)
    job = await robot.submit(DELETE, DELETION, request_id="work")
    file.write_text(LATER)
    await harness.decide("judge", job.approval_id)
    await robot.seen(
        job.job_id, lambda status: state(status) == "AWAITING_APPROVAL", after_sequence=job.status.sequence
    )
    again = (await robot.job(job.job_id)).approval_id
    assert again not in ("", job.approval_id)
    assert file.read_text() == LATER
    await harness.decide("judge", again)
    assert state((await robot.ended(job.job_id))[-1]) == "SUCCEEDED"


async def test_job_with_a_plan_of_another_state_or_folder_is_refused(hub: RunningHub) -> None:
    file = put(hub.workspace("work"), "a.txt", SHOWN)
    put(hub.workspace("elsewhere"), "a.txt", SHOWN)
    plan = await hub.plan(DELETE, DELETION, request_id="work")
    job = await hub.submit(DELETE, DELETION, request_id="elsewhere", plan_digest=plan.plan_digest)
    assert state(job.status) == "FAILED"
    file.write_text(LATER)
    job = await hub.submit(DELETE, DELETION, request_id="work", plan_digest=plan.plan_digest)
    assert state(job.status) == "FAILED"
    assert file.read_text() == LATER


@pytest.mark.promise("plan.commits-what-was-shown")
async def test_plan_of_one_hub_is_committed_at_another_with_its_key_and_files_alone(tmp_path: Path) -> None:
    plans: dict[str, str] = {}
    for name, text in (("one", SHOWN), ("two", SHOWN), ("three", LATER)):
        folder = tmp_path / name / "hub"
        folder.mkdir(parents=True, mode=0o700)
        (folder / "plan.key").touch(mode=0o600)
        (folder / "plan.key").write_text("07" * 32)
        async with a_hub(tmp_path / name) as hub:
            put(hub.workspace("work"), "a.txt", text)
            if not plans:
                plans["one"] = (await hub.plan(DELETE, DELETION, request_id="work")).plan_digest
                continue
            result = await hub.invoke(DELETE, DELETION, request_id="work", plan_digest=plans["one"])
            assert result.ok == (text == SHOWN), result.error.message
