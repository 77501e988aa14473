"""A hostile ComfyUI that lies, floods, stalls or redirects: typed ends, within bounds; none of its names is a path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from tests.fakes.clock import FixedRandomness
from tests.fakes.comfyui import HOSTILE_FILES, MANY_FILES, How, Op
from tests.fakes.comfyui_templates import BLUR, changed
from tests.fakes.remote_harness import LoopClock, RecordingSink
from tests.overtaken import overtaken
from tests.unit.adapters.comfyui.comfy_harness import SECRET, ComfyHarness, comfy_harness, failure_of
from toolhub_service.adapters.comfyui.client import BackendTerms, ComfyClient, NoReply
from toolhub_service.adapters.comfyui.event_feed import MESSAGE_MAX_BYTES, EventFeed, NodeProgress, WebSocketConnector
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.result import Progress
from toolhub_service.egress.resolver import SystemResolver
from toolhub_service.egress.transport import GuardedTransport

Serve = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ComfyHarness]:
    async with comfy_harness(tmp_path) as harness:
        yield harness


@asynccontextmanager
async def answering(serve: Serve) -> AsyncIterator[str]:
    """A server of one answer; its URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client_at(url: str, *, read_timeout_s: float = 5.0) -> AsyncIterator[ComfyClient]:
    """A client of that server, as a source's own would be."""
    terms = BackendTerms("x", url)
    guarded = GuardedTransport(SystemResolver())
    async with httpx.AsyncClient(transport=guarded.under((terms.rule,)), trust_env=False, timeout=5.0) as http:
        yield ComfyClient(terms, http, read_timeout_s=read_timeout_s)
    await guarded.aclose()


@pytest.mark.parametrize("claimed", HOSTILE_FILES, ids=lambda claimed: repr(claimed)[:40])
async def test_a_hostile_name_ends_the_job_and_nothing_is_written_by_it(harness: ComfyHarness, claimed: Any) -> None:
    harness.comfy.claim("SaveImage", {"images": [claimed]})
    error = await harness.error("blur")
    assert error.kind is ErrorKind.EXECUTION_ERROR
    assert str(error.details["cause"]).startswith("OUTPUT_")
    assert harness.artifacts.records.found == {}
    assert not any(".." in asked.query.get("filename", "") for asked in harness.comfy.asked if asked.op is Op.VIEW)


async def test_more_files_than_declared_are_not_fetched(harness: ComfyHarness) -> None:
    harness.comfy.claim("SaveImage", {"images": MANY_FILES})
    error = await harness.error("blur")
    assert error.details["cause"] == "OUTPUT_TOO_MANY"
    assert harness.comfy.count(Op.VIEW) == 0


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"<!DOCTYPE html><script>alert(1)</script>", "OUTPUT_TYPE"),
        (b"\xff\xd8\xff\xe0 a photograph", "OUTPUT_TYPE"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR cut off", "OUTPUT_DAMAGED"),
        (b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffIDAT" + b"x" * 600, "OUTPUT_DAMAGED"),
        (b"", "OUTPUT_TYPE"),
    ],
    ids=["html", "jpeg", "cut", "endless chunk", "empty"],
)
async def test_a_file_that_is_not_what_it_is_called_is_not_kept(harness: ComfyHarness, data: bytes, cause: str) -> None:
    harness.comfy.fault(Op.VIEW, How.HOLD)
    running = harness.begin("blur")
    await harness.comfy.until_asked(Op.VIEW)
    harness.comfy.replace_outputs(data)
    harness.comfy.faults.let_go()
    error = await failure_of(running)
    assert (error.kind, error.details["cause"]) == (ErrorKind.EXECUTION_ERROR, cause)
    assert harness.artifacts.records.found == {}


async def test_an_enormous_file_is_left_after_its_bound(tmp_path: Path) -> None:
    async with comfy_harness(tmp_path, strip_metadata=False) as harness:
        harness.comfy.fault(Op.VIEW, How.HOLD)
        running = harness.begin("blur")
        await harness.comfy.until_asked(Op.VIEW)
        harness.comfy.grow_outputs(1 << 40)
        harness.comfy.faults.let_go()
        assert (await failure_of(running)).details["cause"] == "OUTPUT_TOO_LARGE"
        assert harness.artifacts.records.found == {}


@pytest.mark.parametrize("op", [Op.STATS, Op.JOBS, Op.CLASSES], ids=lambda op: op.name)
async def test_a_huge_answer_is_not_read_to_its_end(harness: ComfyHarness, op: Op) -> None:
    harness.comfy.faults.huge_bytes = 80 * 1024 * 1024
    harness.comfy.fault(op, How.HUGE, -1)
    (backend,) = harness.parts.backends
    paths = {Op.STATS: "/system_stats", Op.JOBS: "/api/jobs", Op.CLASSES: "/object_info/SaveImage"}
    with pytest.raises(NoReply, match="larger than"):
        await backend.client.get(paths[op])


async def test_a_deep_answer_is_no_answer() -> None:
    async def deep(_: web.Request) -> web.Response:
        return web.Response(body=b"[" * 100_000, content_type="application/json")

    async with answering(deep) as url, client_at(url) as client:
        assert (await client.get("/queue")).fields == {}


async def test_an_endless_answer_ends() -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.01)

    async with answering(drip) as url, client_at(url, read_timeout_s=0.05) as client:
        with pytest.raises(NoReply, match="did not finish in time"):
            await client.get("/queue")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_followed_nowhere(status: int) -> None:
    visited: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        visited.append(request.path)
        return web.json_response({})

    async with answering(elsewhere) as other:

        async def lead(_: web.Request) -> web.Response:
            return web.Response(status=status, headers={"location": f"{other}/secret"})

        async with answering(lead) as url, client_at(url) as client:
            assert (await client.get("/queue")).status == status
            connector = WebSocketConnector(BackendTerms("x", url), SystemResolver(), tls=None, connect_timeout_s=5.0)
            events = EventFeed(connector, LoopClock(), FixedRandomness(), lambda _: None)
            assert await events.ready(5.0) == ""
            await events.close()
    assert visited == []


async def test_a_server_at_a_metadata_address_is_never_dialled() -> None:
    async with client_at("http://169.254.169.254") as client:
        with pytest.raises(NoReply) as caught:
            await client.get("/system_stats")
        assert caught.value.was_sent is False


async def test_a_flood_of_updates_delays_nobody_and_moves_nothing_back() -> None:
    reported: list[Progress] = []
    over = asyncio.Event()
    nodes = {"1": {"value": 1, "max": 2, "state": "running"}}
    state = json.dumps({"type": "progress_state", "data": {"prompt_id": "p", "nodes": nodes}})
    end = json.dumps({"type": "executing", "data": {"node": None, "prompt_id": "p"}})

    async def flood(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for junk in ("{", "[" * 5_000, "7", '{"type": 1, "data": []}', '{"data": {"prompt_id": ["p"]}}'):
            await socket.send_str(junk)
        await socket.send_bytes(b"\0" * 100_000)
        for _ in range(300):
            await socket.send_str(state)
        await socket.send_str(end)
        async for _ in socket:
            pass
        return socket

    async with answering(flood) as url:
        connector = WebSocketConnector(BackendTerms("x", url), SystemResolver(), tls=None, connect_timeout_s=5.0)
        events = EventFeed(connector, LoopClock(), FixedRandomness(), lambda _: over.set())
        events.follow("p", NodeProgress({"1": {"class_type": "A", "inputs": {}}}, reported.append))
        async with asyncio.timeout(60):
            await over.wait()
        await events.close()
    assert len(reported) == 300
    assert {progress.step for progress in reported} == {0.5}


@pytest.mark.parametrize("fragments", [1, 0], ids=["one message", "a message without end"])
async def test_a_message_that_is_too_long_ends_the_connection_and_is_not_held(fragments: int) -> None:
    closed = asyncio.Event()

    async def pour(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        assert request.transport is not None
        try:
            if fragments:
                await socket.send_str("x" * (MESSAGE_MAX_BYTES + 1))
            else:
                request.transport.write(b"\x01\x7e\x10\x00" + b"x" * 4_096)  # a text frame that is not the last
                while not request.transport.is_closing():
                    if request.transport.get_write_buffer_size() < MESSAGE_MAX_BYTES:
                        request.transport.write((b"\x00\x7e\x10\x00" + b"x" * 4_096) * 16)
                    await asyncio.sleep(0)
            async for _ in socket:
                pass
        finally:
            closed.set()
        return socket

    async with answering(pour) as url:
        connector = WebSocketConnector(BackendTerms("x", url), SystemResolver(), tls=None, connect_timeout_s=5.0)
        events = EventFeed(connector, LoopClock(), FixedRandomness(), lambda _: None)
        events.follow("p", NodeProgress({}, lambda _: None))
        async with asyncio.timeout(60):
            await closed.wait()
        await events.close()
    assert events.connections == 1
    assert events.client_id == ""


async def test_a_deadline_asks_the_server_to_stop_what_runs(harness: ComfyHarness) -> None:
    harness.comfy.hold("ImageBlur")

    async def late(timeout_s: float) -> None:
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        with pytest.raises(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                await harness.begin("blur", deadline_s=deadline_s)

    await overtaken(late, lambda _: bool(harness.comfy.submitted), first_s=0.5)
    await harness.comfy.until_asked(Op.CANCEL)
    harness.comfy.release()
    await harness.comfy.until_idle()
    assert len(harness.comfy.submitted) == 1


@pytest.mark.parametrize("words", ["traceback", "path", "secret"])
async def test_a_failure_is_reported_without_paths_secrets_and_tracebacks(harness: ComfyHarness, words: str) -> None:
    claimed = {
        "traceback": "it broke",
        "path": "cannot open /opt/comfyui/models/secret.safetensors or C:\\models\\x.bin",
        "secret": f"the key {SECRET} is wrong",
    }[words]
    harness.comfy.fail("ImageBlur", claimed, "ValueError")
    error = await harness.error("blur")
    assert error.kind is ErrorKind.EXECUTION_ERROR
    assert (error.details["node"], error.details["node_class"]) == ("2", "ImageBlur")
    shown = f"{error.message} {json.dumps(dict(error.details))} {error.upstream}"
    for hidden in ("/opt", "C:\\", SECRET, 'File "', "execution.py"):
        assert hidden not in shown
    assert "ValueError" in error.message


async def test_out_of_memory_may_be_tried_again(harness: ComfyHarness) -> None:
    harness.comfy.fail("ImageBlur", "CUDA out of memory. Tried to allocate 20.00 GiB", "OutOfMemoryError")
    error = await harness.error("blur")
    assert (error.kind, error.is_retryable) == (ErrorKind.BUDGET_EXCEEDED, True)
    assert error.details["cause"] == "OUT_OF_MEMORY"


@pytest.mark.promise("comfyui.only-declared-places")
async def test_a_caller_cannot_override_what_is_forced(tmp_path: Path) -> None:
    open_schema = {**BLUR["sidecar"]["input_schema"], "additionalProperties": True}
    async with comfy_harness(tmp_path, templates=(changed(BLUR, input_schema=open_schema),)) as harness:
        await harness.run("blur", {"filename_prefix": "../../evil", "5": {"inputs": {"filename_prefix": "x"}}})
        prefix = harness.comfy.submitted[0].graph["5"]["inputs"]["filename_prefix"]
        assert prefix.startswith("toolhub/")


async def test_another_callers_artifact_is_not_uploaded(harness: ComfyHarness) -> None:
    artifact = await harness.upload(b"\x89PNG\r\n\x1a\n")
    stolen = harness.call("scale", {"image": artifact, "width": 8})
    other = stolen.call._replace(principal=stolen.call.principal.__class__("mallory"))
    call = stolen._replace(planned=stolen.planned._replace(call=other))
    error = await failure_of(asyncio.create_task(harness.adapter.execute(call, RecordingSink())))
    assert error.kind is ErrorKind.NOT_FOUND
    assert harness.comfy.count(Op.UPLOAD) == 0
