"""ComfyUI at `TEST_COMFYUI_URL`, any version, through a whole hub: graphs without a model, small pictures.

Nothing but that server's own answers is known here, so every claim is checked against it: what is in its history, what
it says of its queue. Its other users see a few small jobs, and none of theirs is touched.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import comfyui_templates as templates
from tests.fakes.comfyui.png import SIGNATURE, Picture, decoded, encoded, texts_of
from tests.hub import channel_to
from tests.processes import served
from tests.rpc.artifact_server import messages
from tests.rpc.comfy_hub import ComfyClient, comfy_hub, write_sources
from tests.rpc.job_client import state
from toolhub.v1 import job_pb2, source_pb2
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub

BRISK = {"TOOLHUB_JOBS_HEARTBEAT_S": "0.2", "TOOLHUB_JOBS_DEAD_AFTER_S": "1"}
PATIENT: dict[str, Any] = {"lost_after_s": 15.0}
"""As a server needs that stalls after each run."""
LONG_NODES = 6


def _long() -> dict[str, Any]:
    """Blurs over and over: seconds on a processor, long enough to be cancelled or left."""
    blurs = {
        str(at): {
            "class_type": "ImageBlur",
            "inputs": {"image": [str(at - 1), 0], "blur_radius": 15, "sigma": 3.0},
            "_meta": {"title": f"blur {at}"},
        }
        for at in range(2, LONG_NODES + 2)
    }
    canvas = {"class_type": "EmptyImage", "inputs": {"width": 1024, "height": 1024, "batch_size": 1, "color": 255}}
    save = {"class_type": "SaveImage", "inputs": {"images": [str(LONG_NODES + 1), 0], "filename_prefix": "hub/long"}}
    sidecar = {
        **templates.BLUR["sidecar"],
        "tool": "long",
        "forced": [{"to": "/99/inputs/filename_prefix", "value": templates.PREFIX}],
        "bindings": [{"from": "/color", "to": "/1/inputs/color", "expect_class": "EmptyImage"}],
        "input_schema": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"color": {"type": "integer", "minimum": 0, "maximum": 16777215}},
        },
        "outputs": [{"name": "image", "node": "99", "mime": ["image/png"]}],
    }
    return {"graph": {"1": canvas, **blurs, "99": save}, "sidecar": sidecar}


@pytest.fixture
def url() -> str:
    named = os.environ.get("TEST_COMFYUI_URL", "")
    if not named:
        pytest.skip("TEST_COMFYUI_URL names no server: make acceptance-comfyui URL=http://…")
    return named.rstrip("/")


@pytest.fixture
async def agent(tmp_path: Path, url: str) -> AsyncIterator[ComfyClient]:
    templates.write(tmp_path / "templates", _long())
    async with comfy_hub(tmp_path, url, **PATIENT) as (agent, _):
        yield agent


@pytest.fixture
async def server(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """ComfyUI itself."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30.0) as client:
        yield client


def proof_of(end: job_pb2.JobStatus) -> dict[str, str]:
    """All that is proven of a job."""
    return {name: value for proof in end.result.evidence for name, value in proof.attributes.items()}


async def recorded(server: httpx.AsyncClient, prompt_id: str) -> dict[str, Any]:
    """What the server's own history says of a prompt."""
    return dict((await server.get(f"/history/{prompt_id}")).json()[prompt_id])


async def test_a_source_names_its_server(agent: ComfyClient, server: httpx.AsyncClient) -> None:
    status = await agent.refresh()
    version = (await server.get("/system_stats")).json()["system"]["comfyui_version"]
    assert status.state in {source_pb2.SOURCE_STATE_READY, source_pb2.SOURCE_STATE_PARTIAL}, status.message
    assert version in status.server


async def test_picture_is_made_proven_and_readable(agent: ComfyClient, server: httpx.AsyncClient) -> None:
    history = await agent.ended(await agent.submit("blur", {"width": 96, "color": 255}))
    (picture,) = await agent.pictures(history[-1])
    assert (decoded(picture).width, decoded(picture).height) == (96, 48)
    assert not texts_of(picture), "the graph was not taken out of the file"
    proven = proof_of(history[-1])
    prompt = await recorded(server, proven["prompt_id"])
    assert prompt["status"]["status_str"] == "success"
    assert prompt["prompt"][2]["1"]["inputs"]["width"] == 96
    steps = [entry.progress.step for entry in history if entry.HasField("progress")]
    assert steps == sorted(steps)
    assert steps[-1] == len(templates.BLUR["graph"])


async def test_artifact_is_uploaded_and_scaled(agent: ComfyClient) -> None:
    stub: Any = ArtifactServiceStub(agent.channel)
    original = encoded(Picture(32, 16, 0x336699))
    kept = (await stub.WriteArtifact(messages([original], media_type="image/png"))).artifact
    args = {"image": kept.artifact_id, "width": 80}
    (picture,) = await agent.pictures((await agent.ended(await agent.submit("scale", args)))[-1])
    scaled = decoded(picture)
    assert (scaled.width, scaled.height, scaled.color) == (80, 96, 0x336699)


async def test_same_work_again_leaves_its_own_file(agent: ComfyClient) -> None:
    """The server takes the nodes from its cache; the file must not be the earlier job's."""
    ends = [(await agent.ended(await agent.submit("blur", {"width": 40}, task_id=task)))[-1] for task in ("a", "b")]
    for end in ends:
        assert len(await agent.pictures(end)) == 1
    prefixes = [proof_of(end)["prefixes"] for end in ends]
    assert prefixes[0] != prefixes[1]
    assert proof_of(ends[0])["prompt_id"] != proof_of(ends[1])["prompt_id"]
    assert proof_of(ends[1])["cached_nodes"]


async def test_text_of_a_node_is_a_result(agent: ComfyClient) -> None:
    end = (await agent.ended(await agent.submit("note", {"text": "as it was said"})))[-1]
    assert state(end) == "SUCCEEDED", end.error
    assert "as it was said" in end.result.result_json.decode()


async def test_cancelled_job_is_stopped_on_the_server_or_had_ended(
    agent: ComfyClient, server: httpx.AsyncClient
) -> None:
    job_id = await agent.submit("long", {"color": 1})
    await agent.seen(job_id, lambda status: status.progress.total > 0 or status.HasField("result"))
    await agent.cancel(job_id)
    history = await agent.ended(job_id)
    running = (await server.get("/queue")).json()["queue_running"]
    assert state(history[-1]) in {"CANCELLED", "SUCCEEDED"}
    assert job_id not in json.dumps(running)
    if state(history[-1]) == "CANCELLED":
        assert "CANCELLING" in {state(entry) for entry in history}


async def test_ten_jobs_at_once_end_once_each(agent: ComfyClient) -> None:
    jobs = await asyncio.gather(*(agent.submit("blur", {"width": 16 + n, "color": n}) for n in range(10)))
    ends = [(await agent.ended(job_id))[-1] for job_id in jobs]
    widths = [decoded((await agent.pictures(end))[0]).width for end in ends]
    assert widths == [16 + n for n in range(10)]
    assert len({proof_of(end)["prompt_id"] for end in ends}) == 10


async def test_hub_that_was_killed_finds_its_job_again(tmp_path: Path, url: str, server: httpx.AsyncClient) -> None:
    templates.write(tmp_path / "templates", _long())
    folder = write_sources(tmp_path, url, **PATIENT)
    async with served(folder, environment=BRISK) as hub, channel_to(hub.address) as channel:
        agent = ComfyClient(channel)
        await agent.refresh()
        job_id = await agent.submit("long", {"color": 2})
        await agent.seen(job_id, lambda status: status.progress.total > 0 or status.HasField("result"))
        hub.signal(signal.SIGKILL)
        await hub.process.wait()
    before = len((await server.get("/history")).json())
    async with served(folder, environment=BRISK) as hub, channel_to(hub.address) as channel:
        agent = ComfyClient(channel)
        end = (await agent.ended(job_id))[-1]
        (picture,) = await agent.pictures(end)
    assert picture.startswith(SIGNATURE)
    after = (await server.get("/history")).json()
    assert proof_of(end)["prompt_id"] in after
    assert len(after) <= before + 1, "it was sent twice"
