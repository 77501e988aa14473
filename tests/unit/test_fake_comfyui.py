"""The fake ComfyUI has the faults that were set, as often as they were set."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.fakes.comfyui import HOSTILE_FILES, OUT_OF_DISK, OUT_OF_MEMORY, FakeComfy, How, Op, fake_comfyui
from tests.fakes.comfyui.png import Picture, decoded, encoded


def save_graph(color: int = 1, prefix: str = "hub/img") -> dict[str, Any]:
    return {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 4, "batch_size": 1, "color": color}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": prefix}},
    }


def sample_graph(steps: int = 3) -> dict[str, Any]:
    size = {"width": 16, "height": 16, "batch_size": 1}
    sampler = {"seed": 7, "steps": steps, "cfg": 1.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    links = {"model": ["1", 0], "positive": ["2", 0], "negative": ["2", 0], "latent_image": ["3", 0]}
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "tiny.safetensors"}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["1", 1]}},
        "3": {"class_type": "EmptyLatentImage", "inputs": size},
        "4": {"class_type": "KSampler", "inputs": sampler | links},
        "5": {"class_type": "VAEDecode", "inputs": {"samples": ["4", 0], "vae": ["1", 2]}},
        "6": {"class_type": "SaveImage", "inputs": {"images": ["5", 0], "filename_prefix": "cat"}},
    }


class ComfyClient:
    """Asks as a test would."""

    def __init__(self, comfy: FakeComfy, session: aiohttp.ClientSession) -> None:
        self.comfy = comfy
        self.session = session

    async def submit(self, graph: dict[str, Any], **more: Any) -> str:
        prompt_id = str(more.pop("prompt_id", uuid.uuid4()))
        body = {"prompt": graph, "prompt_id": prompt_id, **more}
        async with self.session.post(f"{self.comfy.url}/prompt", json=body) as answer:
            assert answer.status == 200, await answer.text()
        return prompt_id

    async def get(self, path: str) -> Any:
        async with self.session.get(self.comfy.url + path) as answer:
            return await answer.json()

    async def post(self, path: str, body: dict[str, Any]) -> int:
        async with self.session.post(self.comfy.url + path, json=body) as answer:
            return answer.status

    async def entry(self, graph: dict[str, Any]) -> dict[str, Any]:
        """What the history says of a run."""
        prompt_id = await self.submit(graph)
        await self.comfy.until_idle()
        entry: dict[str, Any] = (await self.get(f"/history/{prompt_id}"))[prompt_id]
        return entry


@pytest.fixture
async def client() -> AsyncIterator[ComfyClient]:
    async with fake_comfyui() as comfy, aiohttp.ClientSession() as session:
        yield ComfyClient(comfy, session)


@pytest.mark.parametrize(("how", "submitted"), [(How.DROP, 0), (How.LOSE_ANSWER, 1), (How.CUT, 1)])
async def test_a_broken_submit_was_accepted_or_was_not(client: ComfyClient, how: How, submitted: int) -> None:
    client.comfy.fault(Op.SUBMIT, how)
    with pytest.raises((aiohttp.ClientError, json.JSONDecodeError)):
        async with client.session.post(f"{client.comfy.url}/prompt", json={"prompt": save_graph()}) as answer:
            await answer.json()
    assert (len(client.comfy.submitted), client.comfy.count(Op.SUBMIT)) == (submitted, 1)


@pytest.mark.parametrize(("how", "submitted"), [(How.ERROR, 0), (How.ERROR_AFTER, 1)])
async def test_a_500_leaves_the_outcome_unknown(client: ComfyClient, how: How, submitted: int) -> None:
    client.comfy.fault(Op.SUBMIT, how)
    assert await client.post("/prompt", {"prompt": save_graph()}) == 500
    assert await client.post("/prompt", {"prompt": save_graph()}) == 200
    assert len(client.comfy.submitted) == submitted + 1


@pytest.mark.parametrize(("how", "submitted"), [(How.HOLD, 0), (How.LATE, 1)])
async def test_a_stalled_answer_comes_when_it_is_let_go(client: ComfyClient, how: How, submitted: int) -> None:
    comfy = client.comfy
    comfy.fault(Op.SUBMIT, how)
    asked = asyncio.create_task(client.post("/prompt", {"prompt": save_graph()}))
    await comfy.until(lambda: comfy.faults.held == 1)
    assert len(comfy.submitted) == submitted
    comfy.faults.let_go()
    assert (await asked, len(comfy.submitted)) == (200, 1)


async def test_hidden_ignored_full_and_huge_answers_of_the_fake_have_the_real_shape(client: ComfyClient) -> None:
    comfy = client.comfy
    prompt_id = await client.submit(save_graph())
    await comfy.until_idle()
    comfy.faults.huge_bytes = 100_000
    for op, how in ((Op.HISTORY, How.HIDE), (Op.HISTORY, How.HUGE), (Op.JOB, How.HIDE), (Op.UPLOAD, How.FULL)):
        comfy.fault(op, how)
    assert await client.get(f"/history/{prompt_id}") == {}
    huge = await client.get(f"/history/{prompt_id}")
    assert (len(huge["padding"]), prompt_id in huge) == (100_000, True)
    assert await client.get(f"/api/jobs/{prompt_id}") == {"error": "Job not found"}
    assert await client.post("/upload/image", {}) == 413
    assert comfy.faults.happened[-1] == (Op.UPLOAD, How.FULL)


async def test_an_ignored_cancel_stops_nothing(client: ComfyClient) -> None:
    comfy = client.comfy
    comfy.hold("EmptyImage")
    prompt_id = await client.submit(save_graph())
    await comfy.until_held()
    comfy.fault(Op.CANCEL, How.IGNORE)
    async with client.session.post(f"{comfy.url}/api/jobs/{prompt_id}/cancel", json={}) as answer:
        assert await answer.json() == {"cancelled": False}
    comfy.release()
    await comfy.until_idle()
    assert (await client.get(f"/api/jobs/{prompt_id}"))["status"] == "completed"


async def test_the_history_comes_after_success_when_the_race_is_held(client: ComfyClient) -> None:
    comfy = client.comfy
    comfy.hold_history()
    async with client.session.ws_connect(f"{comfy.url}/ws?clientId=me") as ws:
        prompt_id = await client.submit(save_graph(), client_id="me")
        while (await ws.receive_json())["type"] != "execution_success":
            pass
        assert await client.get(f"/history/{prompt_id}") == {}
        comfy.release_history()
        while (await ws.receive_json())["data"].get("node", 1) is not None:
            pass
        assert prompt_id in await client.get(f"/history/{prompt_id}")


async def test_a_killed_server_refuses_and_comes_back_on_its_port_with_files_alone(client: ComfyClient) -> None:
    comfy, port = client.comfy, client.comfy.port
    comfy.hold()
    await client.submit(save_graph())
    await comfy.until_held()
    await comfy.kill()
    with pytest.raises(aiohttp.ClientConnectorError):
        await client.get("/queue")
    comfy.release()
    await comfy.start()
    assert (comfy.port, comfy.lives, len(comfy.submitted)) == (port, 2, 1)
    assert await client.get("/queue") == {"queue_running": [], "queue_pending": []}
    assert (await client.entry(save_graph(2)))["status"]["completed"]


async def test_sockets_can_be_cut_muted_and_refused(client: ComfyClient) -> None:
    comfy = client.comfy
    async with client.session.ws_connect(f"{comfy.url}/ws") as ws:
        await ws.receive_json()
        comfy.drop_sockets()
        assert (await ws.receive()).type in {aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE}
    comfy.fault(Op.SOCKET, How.ERROR)
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await client.session.ws_connect(f"{comfy.url}/ws")
    comfy.mute_sockets()
    async with client.session.ws_connect(f"{comfy.url}/ws"):
        await client.entry(save_graph())
        assert comfy.sockets.opened[-1].sent == 0


async def test_a_sampler_reports_steps_and_previews_and_notices_an_interrupt(client: ComfyClient) -> None:
    comfy = client.comfy
    comfy.previews = True
    comfy.hold("KSampler")
    async with client.session.ws_connect(f"{comfy.url}/ws?clientId=me") as ws:
        prompt_id = await client.submit(sample_graph(), client_id="me")
        await comfy.until_held("KSampler")
        comfy.step()
        frames: list[bytes] = []
        while not frames:
            message = await ws.receive()
            frames += [message.data] if message.type is aiohttp.WSMsgType.BINARY else []
        assert decoded(frames[0][8:]).width == 8
        await comfy.until_held("KSampler")
        await client.post("/interrupt", {"prompt_id": prompt_id})
        comfy.release()
        await comfy.until_idle()
    assert (await client.get(f"/api/jobs/{prompt_id}"))["status"] == "cancelled"


@pytest.mark.parametrize(
    ("class_type", "message", "kind"),
    [("KSampler", OUT_OF_MEMORY.format(1 << 40), "torch.OutOfMemoryError"), ("SaveImage", OUT_OF_DISK, "OSError")],
)
async def test_a_node_fails_with_the_words_given_once(
    client: ComfyClient, class_type: str, message: str, kind: str
) -> None:
    client.comfy.fail(class_type, message, kind)
    status = (await client.entry(sample_graph()))["status"]
    error = status["messages"][-1][1]
    assert (status["status_str"], error["node_type"]) == ("error", class_type)
    assert (error["exception_message"], error["exception_type"]) == (message, kind)
    assert (await client.entry(sample_graph()))["status"]["completed"]


async def test_a_node_shows_the_output_that_the_test_sets(client: ComfyClient) -> None:
    client.comfy.claim("SaveImage", {"images": HOSTILE_FILES})
    assert (await client.entry(save_graph()))["outputs"]["2"]["images"] == HOSTILE_FILES
    assert len((await client.entry(save_graph(2)))["outputs"]["2"]["images"]) == 1


async def test_hostile_names_are_never_served(client: ComfyClient) -> None:
    for name in [each["filename"] for each in HOSTILE_FILES if isinstance(each, dict) and "filename" in each]:
        params = {"filename": str(name)}
        async with client.session.get(f"{client.comfy.url}/view", params=params) as answer:
            assert answer.status in {400, 404}, name


async def test_outputs_can_be_deleted_replaced_and_grown(client: ComfyClient) -> None:
    comfy, url = client.comfy, f"{client.comfy.url}/view?filename=img_00001_.png&subfolder=hub"
    await client.entry(save_graph())
    comfy.replace_outputs(b"<html>")
    async with client.session.get(url) as answer:
        assert await answer.read() == b"<html>"
    comfy.grow_outputs(1 << 30)
    async with client.session.head(url) as answer:
        assert answer.headers["Content-Length"] == str(1 << 30)
    comfy.delete_outputs()
    async with client.session.get(url) as answer:
        assert answer.status == 404


async def test_the_fake_loses_evicts_and_changes_prompts(client: ComfyClient) -> None:
    comfy = client.comfy
    comfy.hold("EmptyImage")
    await client.submit(save_graph())
    await comfy.until_held()
    pending = await client.submit(save_graph(2))
    comfy.lose(pending)
    assert await client.get(f"/api/jobs/{pending}") == {"error": "Job not found"}
    comfy.remove_class("ImageBlur")
    comfy.change_input("ImageScale", "upscale_method", [["area"]])
    assert await client.get("/object_info/ImageBlur") == {}
    scale = (await client.get("/object_info/ImageScale"))["ImageScale"]
    assert scale["input"]["required"]["upscale_method"] == [["area"]]


async def test_the_oldest_run_leaves_a_full_history() -> None:
    async with fake_comfyui("0.3.64", history_cap=1) as comfy, aiohttp.ClientSession() as session:
        client = ComfyClient(comfy, session)
        first, second = await client.submit(save_graph()), await client.submit(save_graph(2))
        await comfy.until_idle()
        assert list(await client.get("/history")) == [second]
        assert comfy.submissions() == {first: 1, second: 1}


async def test_other_bytes_under_a_name_get_another_name_and_too_many_are_refused() -> None:
    async with fake_comfyui(max_upload_bytes=10_000) as comfy, aiohttp.ClientSession() as session:

        async def upload(data: bytes) -> tuple[int, Any]:
            form = aiohttp.FormData()
            form.add_field("image", data, filename="a.png")
            async with session.post(f"{comfy.url}/upload/image", data=form) as answer:
                return answer.status, await answer.json() if answer.status == 200 else None

        one, other = encoded(Picture(2, 2, 1)), encoded(Picture(2, 2, 2))
        assert [(await upload(data))[1]["name"] for data in (one, other, one)] == ["a.png", "a (1).png", "a.png"]
        assert (await upload(b"x" * 20_000))[0] == 413
        assert comfy.folders.uploads() == ["a (1).png", "a.png"]
