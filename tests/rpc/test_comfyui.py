"""ComfyUI through a whole hub: submitted, watched, read, cancelled, lost, and found again after a death; once each."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.comfyui import FakeComfy, How, Op, fake_comfyui
from tests.fakes.comfyui.png import SIGNATURE
from tests.fakes.comfyui_templates import BLUR, changed
from tests.hub import channel_to
from tests.processes import served
from tests.rpc.comfy_hub import ComfyClient, comfy_hub, write_sources
from tests.rpc.job_client import state
from tests.rpc.principals import is_gapless
from toolhub.v1 import error_pb2, source_pb2
from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.domain.event import EventType

BRISK = {"TOOLHUB_JOBS_HEARTBEAT_S": "0.1", "TOOLHUB_JOBS_DEAD_AFTER_S": "0.5"}


@pytest.fixture(params=["0.33.0", "0.3.64"])
async def comfy(request: pytest.FixtureRequest) -> AsyncIterator[FakeComfy]:
    async with fake_comfyui(request.param) as comfy:
        yield comfy


def begun(status: Any) -> bool:
    return "first blur" in status.progress.message or "runs on" in status.progress.message


async def test_a_job_is_watched_from_start_to_end_and_what_it_made_is_read(tmp_path: Path, comfy: FakeComfy) -> None:
    async with comfy_hub(tmp_path, comfy.url) as (agent, _):
        comfy.hold("ImageBlur")
        job_id = await agent.submit("blur", {"width": 32})
        watching = asyncio.create_task(agent.ended(job_id))
        await comfy.until_held("ImageBlur")
        await agent.seen(job_id, begun)
        comfy.release()
        history = await watching
        steps = [entry.progress.step for entry in history if entry.HasField("progress")]
        assert is_gapless(history)
        assert steps == sorted(steps)
        assert (steps[0] < 5, steps[-1]) == (True, 5)
        (picture,) = await agent.pictures(history[-1])
        assert picture.startswith(SIGNATURE)
        proven = {key: value for proof in history[-1].result.evidence for key, value in proof.attributes.items()}
        assert proven["graph_sha256"] == comfy.submitted[0].digest
        assert proven["executed_nodes"] == "1,2,3,4,5"


@pytest.mark.promise("workflow.cancel-is-confirmed", "comfyui.only-ours-is-stopped")
async def test_a_cancelled_task_is_cancelling_until_the_server_has_stopped_it(tmp_path: Path, comfy: FakeComfy) -> None:
    async with comfy_hub(tmp_path, comfy.url) as (agent, _):
        comfy.hold("ImageBlur")
        job_id = await agent.submit("blur")
        await comfy.until_held("ImageBlur")
        await agent.seen(job_id, begun)
        assert await agent.cancel(job_id) == "CANCELLING"
        await comfy.until(lambda: comfy.state.interrupted)
        comfy.release()
        history = await agent.ended(job_id)
        assert state(history[-1]) == "CANCELLED"
        assert [asked.body for asked in comfy.asked if asked.op is Op.INTERRUPT and "prompt_id" not in asked.body] == []


@pytest.mark.promise("workflow.never-false-done")
async def test_a_prompt_whose_server_was_restarted_is_lost(tmp_path: Path, comfy: FakeComfy) -> None:
    async with comfy_hub(tmp_path, comfy.url) as (agent, _):
        comfy.hold("ImageBlur")
        job_id = await agent.submit("blur")
        await comfy.until_held("ImageBlur")
        await agent.seen(job_id, begun)
        await comfy.restart()
        end = (await agent.ended(job_id))[-1]
        assert state(end) == "LOST"
        assert end.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
        assert "restarted" in end.error.message
        assert len(comfy.submitted) == 1


@pytest.mark.promise("comfyui.overrun")
async def test_a_prompt_that_overran_its_template_is_timed_out_with_advice(tmp_path: Path, comfy: FakeComfy) -> None:
    short = changed(BLUR, limits={"max_runtime_s": 0.01})
    async with comfy_hub(tmp_path, comfy.url, graphs=(short,)) as (agent, _):
        comfy.hold("ImageBlur")
        job_id = await agent.submit("blur")
        await comfy.until_held("ImageBlur")
        await agent.seen(job_id, lambda status: "ran for longer than it may" in status.progress.message)
        comfy.release()
        end = (await agent.ended(job_id))[-1]
        assert (state(end), end.error.kind) == ("TIMED_OUT", error_pb2.ERROR_KIND_TIMEOUT)
        assert "Request less" in end.error.message
        assert end.error.details["stopped"] is True


@pytest.mark.parametrize("outputs", ["a film", "schema"])
@pytest.mark.promise("comfyui.quota")
async def test_a_failed_job_leaves_nothing_in_its_callers_quota(tmp_path: Path, comfy: FakeComfy, outputs: str) -> None:
    words: dict[str, Any] = {"output_schema": {"type": "object", "required": ["title"]}}
    if outputs == "a film":
        words = {"outputs": [*BLUR["sidecar"]["outputs"], {"name": "film", "node": "5", "mime": ["video/*"]}]}
    async with comfy_hub(tmp_path, comfy.url, graphs=(changed(BLUR, **words),)) as (agent, hub):
        end = (await agent.ended(await agent.submit("blur")))[-1]
        assert state(end) == "FAILED"
        assert comfy.count(Op.VIEW) > 0
        assert await hub.hub.stores.artifacts.usage("local") == (0, 0)


async def test_a_job_that_may_be_repeated_is_tried_until_its_server_is_back(
    tmp_path: Path, comfy: FakeComfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemRandomness, "uniform", lambda _, low, high: high)  # or all attempts may be over at once
    async with comfy_hub(tmp_path, comfy.url, tools={"blur": {"idempotent": True}}) as (agent, hub):
        await comfy.kill()
        job_id = await agent.submit("blur", budget={"max_retries": 5})
        while not await hub.events(types=frozenset({EventType.RETRY})):  # noqa: ASYNC110 - the log rings for nobody
            await asyncio.sleep(0)
        await comfy.start()
        assert len(await agent.pictures((await agent.ended(job_id))[-1])) == 1
        assert len(comfy.submitted) == 1


async def test_a_job_that_no_server_accepts_fails_and_states_that_nothing_runs(
    tmp_path: Path, comfy: FakeComfy
) -> None:
    async with comfy_hub(tmp_path, comfy.url) as (agent, _):
        await comfy.kill()
        end = (await agent.ended(await agent.submit("blur")))[-1]
        assert (state(end), end.error.kind) == ("FAILED", error_pb2.ERROR_KIND_TOOL_UNAVAILABLE)
        assert end.error.retryable
        assert "Nothing runs" in end.error.message
        assert comfy.submitted == []


async def test_a_server_that_is_away_is_down_and_comes_back(tmp_path: Path, comfy: FakeComfy) -> None:
    async with comfy_hub(tmp_path, comfy.url) as (agent, _):
        await comfy.kill()
        assert (await agent.refresh()).state == source_pb2.SOURCE_STATE_DOWN
        await comfy.start()
        status = await agent.refresh()
        assert status.state == source_pb2.SOURCE_STATE_READY
        assert "ComfyUI" in status.server


@pytest.mark.promise("workflow.found-again", "workflow.never-twice")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("comfy", "moment"), [("0.33.0", "running"), ("0.3.64", "answer"), ("0.33.0", "collecting")], indirect=["comfy"]
)
async def test_kill_9_of_the_hub_costs_no_second_submit(tmp_path: Path, comfy: FakeComfy, moment: str) -> None:
    folder = write_sources(tmp_path, comfy.url)
    comfy.hold("ImageBlur")
    if moment == "answer":
        comfy.fault(Op.SUBMIT, How.LATE)
    if moment == "collecting":
        comfy.fault(Op.VIEW, How.HOLD)
    async with served(folder, environment=BRISK) as hub, channel_to(hub.address) as channel:
        agent = ComfyClient(channel)
        await agent.refresh()
        job_id = await agent.submit("blur")
        await comfy.until_held("ImageBlur")
        if moment == "running":
            await agent.seen(job_id, begun)
        if moment == "collecting":
            comfy.release()
            await comfy.until_asked(Op.VIEW)
        hub.signal(signal.SIGKILL)
        await hub.process.wait()
    comfy.faults.clear()
    async with served(folder, environment=BRISK) as hub, channel_to(hub.address) as channel:
        agent = ComfyClient(channel)
        comfy.release()
        end = (await agent.ended(job_id))[-1]
        assert len(await agent.pictures(end)) == 1
    assert [*comfy.submissions().values()] == [1]
