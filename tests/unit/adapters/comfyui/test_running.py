"""Runs of templates against a ComfyUI that behaves as real ones: once each, watched, collected, reported truthfully."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.comfyui import How, Op
from tests.fakes.comfyui_templates import BLUR, PAINT, SCALE, changed
from tests.fakes.remote_harness import RecordingSink
from tests.unit.adapters.comfyui.comfy_harness import ComfyHarness, comfy_harness, failure_of, submitted_elsewhere
from toolhub_service.adapters.comfyui.files.metadata import SIGNATURE
from toolhub_service.domain.errors.failure import STOPPED, ErrorKind
from toolhub_service.domain.result import Outcome

VERSIONS = ["0.33.0", "0.3.64"]
BROKEN_STARTS = [How.LOSE_ANSWER, How.ERROR_AFTER, How.CUT, How.GARBAGE, How.EMPTY, How.DROP, How.ERROR]


@pytest.fixture(params=VERSIONS)
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ComfyHarness]:
    async with comfy_harness(tmp_path, request.param) as harness:
        yield harness


def proven(outcome: Outcome) -> dict[str, str]:
    """All that the evidence says of a run."""
    return {name: value for proof in outcome.evidence for name, value in proof.attributes.items()}


def never_twice(harness: ComfyHarness) -> bool:
    return all(count == 1 for server in harness.servers for count in server.submissions().values())


@pytest.mark.promise("comfyui.outputs-before-success")
async def test_a_run_brings_its_files_as_artifacts_without_the_graph_in_them(harness: ComfyHarness) -> None:
    outcome = await harness.run("blur", {"width": 32, "color": 7})
    value: Any = outcome.value
    (file,) = value["image"]
    (path,) = harness.comfy.folders.outputs()
    kept, written = await harness.bytes_of(file["artifact"]), path.read_bytes()
    assert kept.startswith(SIGNATURE)
    assert b"class_type" in written
    assert b"class_type" not in kept
    assert file["media_type"] == "image/png"
    assert [ref.artifact_id for ref in outcome.artifacts] == [file["artifact"]]
    submitted = harness.comfy.submitted[0]
    assert submitted.graph["1"]["inputs"]["width"] == 32
    assert submitted.graph["5"]["inputs"]["filename_prefix"].startswith("toolhub/")
    assert "agent-a" not in json.dumps(submitted.graph)


async def test_metadata_stays_where_the_operator_wants_it(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path, strip_metadata=False) as harness:
        value: Any = (await harness.run("blur")).value
        (path,) = harness.comfy.folders.outputs()
        assert await harness.bytes_of(value["image"][0]["artifact"]) == path.read_bytes()


async def test_evidence_states_what_was_sent_where_and_its_outcome(harness: ComfyHarness) -> None:
    outcome = await harness.run("paint", {"words": "a ship", "seed": 77})
    evidence = proven(outcome)
    template = harness.definitions["paint"].remote["templateSha256"]
    assert evidence["template_sha256"] == template
    assert evidence["graph_sha256"] == harness.comfy.submitted[0].digest
    assert json.loads(evidence["seeds"]) == {"/5/inputs/seed": 77}
    assert evidence["comfyui_version"] == harness.comfy.version.name
    assert evidence["backend"] == "gpu-1"
    assert evidence["prompt_id"] == harness.comfy.submitted[0].prompt_id
    assert evidence["executed_nodes"] == "1,2,3,4,5,6,7"
    assert (evidence["output"], evidence["node"], evidence["key"], evidence["type"]) == (
        "image",
        "7",
        "images",
        "output",
    )
    assert evidence["started_at_unix_ms"] <= evidence["ended_at_unix_ms"]
    files = [proof for proof in outcome.evidence if proof.sha256]
    assert [proof.sha256 for proof in files] == [ref.sha256 for ref in outcome.artifacts]


async def test_a_missing_seed_is_drawn_anew_for_each_job_and_reported(harness: ComfyHarness) -> None:
    drawn_seeds = [
        proven(await harness.run("paint", {"words": "x"}, job_id=job))["seeds"] for job in ("job-1", "job-2")
    ]
    drawn = [json.loads(seeds)["/5/inputs/seed"] for seeds in drawn_seeds]
    assert drawn == [submitted.graph["5"]["inputs"]["seed"] for submitted in harness.comfy.submitted]
    assert drawn[0] != drawn[1]
    assert all(0 <= seed < 2**53 for seed in drawn)


async def test_progress_goes_from_the_first_node_to_the_last_and_never_back(harness: ComfyHarness) -> None:
    sink = RecordingSink()
    await asyncio.wait_for(harness.begin("paint", {"words": "x"}, sink), 60)
    steps = [progress.step for progress in sink.progresses]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1], sink.progresses[-1].total) == (0, 7, 7)
    assert any(step % 1 > 0 for step in steps), "the sampler's own steps count"
    assert any("KSampler “sampler”" in progress.message for progress in sink.progresses)


@pytest.mark.parametrize("fault", ["refused", "mute", "dropped"])
async def test_everything_works_without_the_websocket(harness: ComfyHarness, fault: str) -> None:
    if fault == "refused":
        harness.comfy.fault(Op.SOCKET, How.ERROR, -1)
    if fault == "mute":
        harness.comfy.mute_sockets()
    harness.comfy.hold("ImageBlur")
    sink = RecordingSink()
    running = harness.begin("blur", {}, sink)
    await harness.comfy.until_held("ImageBlur")
    await sink.until_reported("first blur" if fault == "dropped" else "runs on gpu-1")
    if fault == "dropped":
        harness.comfy.drop_sockets()
    harness.comfy.release()
    outcome = await asyncio.wait_for(running, 60)
    assert len(outcome.artifacts) == 1
    assert [progress.step for progress in sink.progresses][-1] == 5


async def test_waiting_is_shown_by_its_place_in_the_queue(harness: ComfyHarness) -> None:
    harness.comfy.hold("ImageBlur")
    first = harness.begin("blur", job_id="job-1")
    await harness.comfy.until_held("ImageBlur")
    second = harness.begin("blur", job_id="job-2")
    await harness.comfy.until_submitted(2)
    sink = RecordingSink()
    third = harness.begin("blur", sink=sink, job_id="job-3")
    await sink.until_reported("3rd of 3 in the queue of gpu-1")
    harness.comfy.release()
    outcomes = await asyncio.wait_for(asyncio.gather(first, second, third), 60)
    assert [len(outcome.artifacts) for outcome in outcomes] == [1, 1, 1]


@pytest.mark.promise("workflow.never-twice")
@pytest.mark.parametrize("how", BROKEN_STARTS, ids=lambda how: how.value)
async def test_a_start_without_a_clear_answer_is_looked_up_and_never_sent_twice(
    harness: ComfyHarness, how: How
) -> None:
    harness.comfy.fault(Op.SUBMIT, how)
    outcome = await harness.run("blur")
    assert len(outcome.artifacts) == 1
    assert never_twice(harness)
    assert len(harness.comfy.submitted) == 1
    evidence = proven(outcome)
    assert evidence["graph_sha256"] == harness.comfy.submitted[0].digest


@pytest.mark.promise("workflow.never-twice", "workflow.never-false-done")
async def test_a_server_that_was_started_anew_before_it_was_asked_may_have_run_it(harness: ComfyHarness) -> None:
    """Its empty lists are no proof: what it has forgotten is unknown, and not sent again."""
    harness.comfy.fault(Op.SUBMIT, How.LOSE_ANSWER)
    harness.comfy.fault(Op.READ, How.HOLD)
    running = harness.begin("blur")
    await harness.comfy.until(lambda: bool(harness.comfy.submitted and harness.comfy.faults.held))
    await harness.comfy.restart()
    harness.clock.skipped_s = 120
    error = await failure_of(running)
    assert (error.kind, error.details["cause"]) == (ErrorKind.OUTCOME_UNKNOWN, "START_UNCLEAR")
    assert "may have restarted" in error.message
    assert len(harness.comfy.submitted) == 1


@pytest.mark.promise("workflow.never-twice")
async def test_a_prompt_that_was_doubled_on_its_way_is_one_job(harness: ComfyHarness) -> None:
    harness.comfy.fault(Op.SUBMIT, How.TWICE)
    outcome = await harness.run("blur")
    assert len(outcome.artifacts) == 1
    assert harness.comfy.count(Op.SUBMIT) == 1
    assert [*harness.comfy.submissions().values()] == [2]


async def test_both_of_a_prompt_that_was_doubled_are_stopped(harness: ComfyHarness) -> None:
    harness.comfy.hold("ImageBlur")
    harness.comfy.fault(Op.SUBMIT, How.TWICE)
    sink = RecordingSink()
    running = harness.begin("blur", sink=sink)
    await harness.comfy.until_submitted(2)
    await harness.comfy.until_held("ImageBlur")
    harness.kept.cancelled.set()
    await sink.until_reported("asked the remote server to stop")
    harness.comfy.release()
    assert (await failure_of(running)).kind is ErrorKind.CANCELLED
    await harness.comfy.until_idle()
    assert harness.comfy.folders.outputs() == []


async def test_a_found_prompt_is_proven_by_the_graph_that_the_server_has(harness: ComfyHarness) -> None:
    harness.comfy.fault(Op.SUBMIT, How.LOSE_ANSWER)
    evidence = proven(await harness.run("paint", {"words": "x"}))
    assert json.loads(evidence["seeds"])["/5/inputs/seed"] == harness.comfy.submitted[0].graph["5"]["inputs"]["seed"]


async def test_a_history_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path, "0.3.64", lost_after_s=5.0) as harness:
        harness.comfy.hold_history()
        running = harness.begin("blur")
        await harness.comfy.until_submitted()
        await harness.comfy.until(lambda: harness.comfy.count(Op.HISTORY) > 6)
        assert not running.done()
        harness.comfy.release_history()
        assert len((await asyncio.wait_for(running, 60)).artifacts) == 1


@pytest.mark.promise("effects.one-table", "workflow.never-twice")
@pytest.mark.parametrize("status", [408, 499, 502, 504, 520, 522, 524])
async def test_a_prompt_that_a_gateway_gave_up_on_is_looked_up_and_followed(harness: ComfyHarness, status: int) -> None:
    harness.comfy.faults.gateway_status = status
    harness.comfy.fault(Op.SUBMIT, How.GAVE_UP)
    assert len((await harness.run("blur")).artifacts) == 1
    assert never_twice(harness)


@pytest.mark.promise("effects.one-table")
@pytest.mark.parametrize("status", [503, 521, 523, 525, 530])
async def test_a_prompt_that_did_not_reach_its_server_goes_to_the_next_one(tmp_path: Path, status: int) -> None:
    async with comfy_harness(tmp_path, "0.33.0", "0.33.0") as harness:
        for server in harness.servers[:1]:
            server.faults.gateway_status = status
            server.fault(Op.SUBMIT, How.GATEWAY)
        assert len((await harness.run("blur")).artifacts) == 1
        assert [len(server.submitted) for server in harness.servers] == [0, 1]


async def test_reads_that_fail_for_a_while_change_nothing(harness: ComfyHarness) -> None:
    running = harness.begin("blur")
    await harness.comfy.until_submitted()
    for how in (How.DROP, How.ERROR, How.GARBAGE, How.CUT, How.EMPTY):
        harness.comfy.fault(Op.READ, how, 3)
    assert len((await asyncio.wait_for(running, 60)).artifacts) == 1
    assert never_twice(harness)


@pytest.mark.promise("workflow.cancel-is-confirmed")
@pytest.mark.parametrize("is_waiting", [True, False], ids=["waiting", "running"])
async def test_a_cancelled_prompt_ends_when_the_server_has_stopped_it(harness: ComfyHarness, is_waiting: bool) -> None:
    harness.comfy.hold("ImageBlur")
    before = harness.begin("blur", job_id="job-0") if is_waiting else None
    if is_waiting:
        await harness.comfy.until_held("ImageBlur")
    sink = RecordingSink()
    running = harness.begin("blur", sink=sink)
    await harness.comfy.until_submitted(2 if is_waiting else 1)
    if not is_waiting:
        await harness.comfy.until_held("ImageBlur")
    harness.kept.cancelled.set()
    await sink.until_reported("asked the remote server to stop")
    if not is_waiting:
        assert not running.done(), "a node is not interrupted: it is cancelling"
        harness.comfy.release()
    assert (await failure_of(running)).kind is ErrorKind.CANCELLED
    assert [asked for asked in harness.comfy.asked if asked.op is Op.INTERRUPT and "prompt_id" not in asked.body] == []
    harness.comfy.release()
    if before is not None:
        assert (await failure_of(before)).kind is ErrorKind.CANCELLED  # the harness cancels all its jobs


@pytest.mark.promise("workflow.cancel-is-confirmed")
async def test_a_waiting_prompt_that_the_hub_removed_is_cancelled_however_slow_the_server_is(
    tmp_path: Path,
) -> None:
    async with comfy_harness(tmp_path, "0.3.64", lost_after_s=0.0) as harness:
        harness.comfy.hold("ImageBlur")
        await submitted_elsewhere(harness)
        await harness.comfy.until_held("ImageBlur")
        sink = RecordingSink()
        running = harness.begin("blur", sink=sink)
        await sink.until_reported("2nd of 2 in the queue")
        harness.comfy.fault(Op.DELETE, How.LATE)
        harness.kept.cancelled.set()
        await harness.comfy.until(lambda: harness.comfy.faults.held > 0)
        await harness.comfy.until_asked(Op.HISTORY, harness.comfy.count(Op.HISTORY) + 8)
        assert not running.done(), "it is gone, but nobody has said yet that it was us"
        harness.comfy.faults.let_go()
        assert (await failure_of(running)).kind is ErrorKind.CANCELLED


@pytest.mark.promise("comfyui.only-ours-is-stopped")
@pytest.mark.parametrize("is_waiting", [True, False], ids=["waiting", "running"])
async def test_executions_of_others_go_on_when_ours_is_stopped(harness: ComfyHarness, is_waiting: bool) -> None:
    harness.comfy.hold("ImageBlur")
    other = await submitted_elsewhere(harness) if is_waiting else ""
    if is_waiting:
        await harness.comfy.until_held("ImageBlur")
    sink = RecordingSink()
    running = harness.begin("blur", sink=sink)
    await harness.comfy.until_submitted(2 if is_waiting else 1)
    if not is_waiting:
        await harness.comfy.until_held("ImageBlur")
    other = other or await submitted_elsewhere(harness)
    harness.kept.cancelled.set()
    await sink.until_reported("asked the remote server to stop")
    harness.comfy.release()
    assert (await failure_of(running)).kind is ErrorKind.CANCELLED
    await harness.comfy.until_idle()
    assert harness.comfy.queue.history[other]["status"]["status_str"] == "success"


async def test_a_prompt_that_runs_for_longer_than_its_template_allows_is_stopped(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path, templates=(changed(BLUR, limits={"max_runtime_s": 0.01}),)) as harness:
        harness.comfy.hold("ImageBlur")
        sink = RecordingSink()
        running = harness.begin("blur", sink=sink)
        await sink.until_reported("ran for longer than it may")
        harness.comfy.release()
        error = await failure_of(running)
        assert (error.kind, error.is_retryable, error.details["max_runtime_s"]) == (ErrorKind.TIMEOUT, False, 0.01)
        assert error.details[STOPPED] is True
        assert len(harness.comfy.submitted) == 1


async def test_the_wait_in_the_queue_is_not_counted_as_running(tmp_path: Path) -> None:
    templates = (BLUR, changed(BLUR, tool="short", limits={"max_runtime_s": 0.01}))
    async with comfy_harness(tmp_path, templates=templates) as harness:
        harness.comfy.hold("ImageBlur")
        first = harness.begin("blur", job_id="job-1")
        await harness.comfy.until_held("ImageBlur")
        second = harness.begin("short", job_id="job-2")
        await harness.comfy.until_submitted(2)
        await harness.comfy.until_asked(Op.JOB, harness.comfy.count(Op.JOB) + 20)
        assert harness.comfy.count(Op.CANCEL) == 0
        harness.comfy.release()
        assert len((await asyncio.wait_for(first, 60)).artifacts) == 1
        await asyncio.wait({second}, timeout=60)


async def test_a_stop_that_the_server_ignores_is_asked_for_again(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path, "0.3.64") as harness:
        harness.comfy.fault(Op.INTERRUPT, How.IGNORE)
        harness.comfy.hold("ImageBlur")
        sink = RecordingSink()
        running = harness.begin("blur", sink=sink)
        await harness.comfy.until_held("ImageBlur")
        harness.kept.cancelled.set()
        await sink.until_reported("asked the remote server to stop")
        await harness.comfy.until_asked(Op.INTERRUPT, 2)
        harness.comfy.release()
        assert (await failure_of(running)).kind is ErrorKind.CANCELLED


async def test_an_interrupt_from_elsewhere_is_not_taken_for_ours(harness: ComfyHarness) -> None:
    harness.comfy.hold("ImageBlur")
    running = harness.begin("blur")
    await harness.comfy.until_held("ImageBlur")
    harness.comfy.interrupt()
    harness.comfy.release()
    error = await failure_of(running)
    assert error.kind is ErrorKind.CANCELLED
    assert "somebody else" in error.message


async def test_a_watcher_is_notified_when_the_server_does_not_answer(harness: ComfyHarness) -> None:
    harness.comfy.hold("ImageBlur")
    sink = RecordingSink()
    running = harness.begin("blur", sink=sink)
    await harness.comfy.until_held("ImageBlur")
    await sink.until_reported("first blur")
    harness.comfy.fault(Op.READ, How.ERROR, -1)
    await sink.until_reported("gpu-1 does not answer (it answered 500)")
    harness.comfy.faults.clear()
    harness.comfy.release()
    assert len((await asyncio.wait_for(running, 60)).artifacts) == 1


@pytest.mark.promise("workflow.never-false-done")
async def test_a_restart_of_the_server_loses_the_job_and_is_reported(harness: ComfyHarness) -> None:
    harness.comfy.hold("ImageBlur")
    running = harness.begin("blur")
    await harness.comfy.until_held("ImageBlur")
    await harness.comfy.restart()
    error = await failure_of(running)
    assert error.kind is ErrorKind.OUTCOME_UNKNOWN
    assert "restarted" in error.message
    assert never_twice(harness)


@pytest.mark.promise("workflow.found-again")
async def test_the_next_process_follows_what_the_last_one_began(harness: ComfyHarness) -> None:
    harness.comfy.hold("ImageBlur")
    sink = RecordingSink()
    running = harness.begin("blur", sink=sink)
    await harness.comfy.until_held("ImageBlur")
    await harness.comfy.until(lambda: harness.kept.marks["job-1"].accepted)
    running.cancel()
    await asyncio.wait({running})
    successor = await harness.successor()
    following = successor.begin("blur")
    harness.comfy.release()
    outcome = await asyncio.wait_for(following, 60)
    assert len(outcome.artifacts) == 1
    assert len(harness.comfy.submitted) == 1
    assert proven(outcome)["attached"] == "2"
    await successor.close()


async def test_an_uploaded_picture_lies_under_its_content_in_a_folder_of_its_owner(harness: ComfyHarness) -> None:
    made: Any = (await harness.run("blur", job_id="job-0")).value
    data = await harness.bytes_of(made["image"][0]["artifact"])
    for job in ("job-1", "job-2"):
        artifact = await harness.upload(data)
        outcome = await harness.run("scale", {"image": artifact, "width": 20}, job_id=job)
        assert len(outcome.artifacts) == 1
    uploaded = [path for path in (harness.comfy.folders.root / "input").rglob("*") if path.is_file()]
    assert [path.stem for path in uploaded if path.parent.parent.name == "toolhub"] == [made["image"][0]["sha256"]]
    assert "agent-a" not in str(uploaded)


async def test_a_file_that_is_no_picture_is_not_uploaded(harness: ComfyHarness) -> None:
    artifact = await harness.upload(b"<html>not a picture</html>")
    error = await harness.error("scale", {"image": artifact, "width": 20})
    assert (error.kind, error.details["argument"]) == (ErrorKind.INVALID_INPUT, "/image")
    assert harness.comfy.submitted == []


@pytest.mark.promise("comfyui.outputs-before-success")
async def test_a_cached_run_is_reported_as_cached_and_a_missing_file_is_a_failure(tmp_path: Path) -> None:
    words = [words for words in BLUR["sidecar"]["forced"] if not words["to"].startswith("/5")]
    async with comfy_harness(tmp_path, templates=(changed(BLUR, forced=words), SCALE)) as harness:
        await harness.run("blur", job_id="job-1")
        again = await harness.run("blur", job_id="job-2")
        assert proven(again)["fully_cached"] == "true"
        harness.comfy.delete_outputs()
        error = await harness.error("blur", job_id="job-3")
        assert (error.kind, error.details["cause"]) == (ErrorKind.EXECUTION_ERROR, "OUTPUT_MISSING")
        assert "took this node from its cache" in error.message
        assert "call it again" not in error.message


@pytest.mark.promise("comfyui.outputs-before-success")
async def test_an_output_under_another_key_is_reported_with_the_existing_keys(tmp_path: Path) -> None:
    outputs = [{"name": "image", "node": "5", "key": "gifs"}]
    async with comfy_harness(tmp_path, templates=(changed(BLUR, outputs=outputs),)) as harness:
        error = await harness.error("blur")
        assert (error.details["cause"], error.details["keys"]) == ("OUTPUT_MISSING", ["images"])
        assert "node 5 returned `images`, not `gifs`" in error.message
        assert "call it again" not in error.message


async def test_artifacts_of_a_failed_run_are_released(tmp_path: Path) -> None:
    outputs = [*BLUR["sidecar"]["outputs"], {"name": "film", "node": "5", "mime": ["video/*"]}]
    async with comfy_harness(tmp_path, templates=(changed(BLUR, outputs=outputs),)) as harness:
        error = await harness.error("blur")
        assert (error.details["cause"], error.details["output"]) == ("OUTPUT_TYPE", "film")
        assert await harness.artifacts.records.usage("agent-a") == (0, 0)
        await harness.artifacts.artifacts.sweep(harness.artifacts.clock.unix_ms() + 1)
        assert harness.artifacts.files() == []


@pytest.mark.promise("comfyui.outputs-before-success")
async def test_a_file_that_is_served_as_nothing_is_no_success(harness: ComfyHarness) -> None:
    harness.comfy.fault(Op.VIEW, How.EMPTY)
    error = await harness.error("blur")
    assert (error.kind, error.details["cause"]) == (ErrorKind.EXECUTION_ERROR, "OUTPUT_TYPE")


async def test_a_graph_that_is_taken_in_part_is_stopped_and_refused(tmp_path: Path) -> None:
    other = {"8": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}}}
    second = {"9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "x"}}}
    async with comfy_harness(tmp_path, templates=(changed(BLUR, {**other, **second}),)) as harness:
        harness.comfy.change_input("EmptyImage", "height", ["INT", {"default": 48, "min": 48, "max": 16384}])
        harness.comfy.hold("ImageBlur")
        running = harness.begin("blur")
        await harness.comfy.until_submitted()
        harness.comfy.release()
        error = await failure_of(running)
        assert (error.kind, error.details["cause"]) == (ErrorKind.UPSTREAM_ERROR, "NODE_ERRORS")
        assert "EmptyImage (node 8" in error.message
        await harness.comfy.until_idle()


async def test_an_argument_that_the_server_refuses_is_reported_by_its_place(harness: ComfyHarness) -> None:
    harness.comfy.change_input("EmptyImage", "width", ["INT", {"default": 64, "min": 64, "max": 128}])
    error = await harness.error("blur", {"width": 8})
    assert error.kind is ErrorKind.INVALID_INPUT
    assert [(violation.path, violation.keyword) for violation in error.violations] == [
        ("/width", "value_smaller_than_min")
    ]
    assert harness.comfy.submitted == []


async def test_a_template_with_a_seed_sends_the_same_one_again(harness: ComfyHarness) -> None:
    harness.comfy.fault(Op.SUBMIT, How.DROP)
    evidence = proven(await harness.run("paint", {"words": PAINT["sidecar"]["tool"]}))
    bodies: list[Any] = [asked.body for asked in harness.comfy.asked if asked.op is Op.SUBMIT]
    assert len(bodies) == 2
    assert bodies[0]["prompt"] == bodies[1]["prompt"]
    assert {body["prompt_id"] for body in bodies} == {evidence["prompt_id"]}
    assert all("number" not in body for body in bodies)


async def test_a_job_under_way_ends_where_it_began_when_its_source_is_closed(harness: ComfyHarness) -> None:
    harness.comfy.hold("ImageBlur")
    running = harness.begin("blur")
    await harness.comfy.until_held("ImageBlur")
    await harness.source.close()
    assert (await harness.error("blur", job_id="job-2")).kind is ErrorKind.TOOL_UNAVAILABLE
    assert not harness.parts.http.is_closed
    harness.comfy.release()
    assert len((await asyncio.wait_for(running, 60)).artifacts) == 1
    assert harness.parts.http.is_closed
