"""Programs as users write them, against a hub: in Rust and Java with generated stubs only, in Python with frameworks of
agents. `make acceptance-clients` builds them by the ordinary clients of crates.io, Maven Central and PyPI."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.terminal import ROOT, environment
from tests.e2e.test_client_programs import tour_of, watched_over_a_kill
from tests.hub import running_hub
from tests.processes import WITHIN_S

BUILT = ROOT / ".venv/examples"
JAVA_CLASSES = BUILT / "java/classes"
FRAMEWORKS = BUILT / "python/bin/python"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def rust() -> Sequence[str]:
    return (str(BUILT / "rust/debug/toolhub-example"),)


def java() -> Sequence[str]:
    jars = (BUILT / "java/classpath").read_text().strip()
    return "java", "-cp", f"{JAVA_CLASSES}{os.pathsep}{jars}", "com.example.Example"


@pytest.mark.parametrize("program", [rust, java])
async def test_program_calls_is_refused_and_exchanges_an_artifact(
    program: Callable[[], Sequence[str]], tmp_path: Path
) -> None:
    printed = await tour_of((*program(), "tour"), tmp_path)
    assert printed["answer"]
    assert printed["refused"].startswith("PATH_OUTSIDE_SANDBOX: ")
    assert (printed["missing"], printed["artifact"]) == ("TOOL_NOT_FOUND", "1000000 bytes, the same")


@pytest.mark.parametrize("program", [rust, java])
async def test_watcher_goes_on_when_its_hub_was_killed_and_came_back(
    program: Callable[[], Sequence[str]], tmp_path: Path
) -> None:
    watched = await watched_over_a_kill((*program(), "job"), tmp_path)
    assert watched.sequences == list(range(watched.sequences[0], watched.sequences[0] + len(watched.sequences)))
    assert (watched.last_state, watched.answer) == ("JOB_STATE_SUCCEEDED", 'answer:{"marker":"a"}')


async def answer_of(example: str, folder: Path, *words: str, **variables: str) -> str:
    """What the example prints last, of a hub that it is given."""
    async with running_hub(folder / "hub") as hub:
        asking = await asyncio.create_subprocess_exec(
            str(FRAMEWORKS),
            f"clients/python/examples/{example}.py",
            hub.address,
            *words,
            cwd=ROOT,
            env=environment(folder, **variables),
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(WITHIN_S):
            output, _ = await asking.communicate()
    assert asking.returncode == 0
    return output.decode().splitlines()[-1]


async def test_agent_of_pydantic_ai_calls_tools_of_a_hub(tmp_path: Path) -> None:
    answer = await answer_of("with_pydantic_ai", tmp_path, "test")
    assert "sha256" in answer


@asynccontextmanager
async def model_that_calls(tool: str, arguments: dict[str, Any]) -> AsyncIterator[str]:
    """The base URL of a model (OpenAI's Responses API) that calls a tool and then repeats its result."""

    async def respond(request: web.Request) -> web.Response:
        asked = await request.json()
        outputs = [item["output"] for item in asked["input"] if item.get("type") == "function_call_output"]
        if outputs:
            content = [{"type": "output_text", "text": outputs[0], "annotations": []}]
            item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        else:
            (name,) = [each["name"] for each in asked["tools"] if each["name"].endswith(tool)]
            item = {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": name,
                "arguments": json.dumps(arguments),
                "status": "completed",
            }
        return web.json_response(
            {
                "id": "resp_1",
                "object": "response",
                "created_at": 0,
                "model": asked["model"],
                "output": [item],
                "parallel_tool_calls": False,
                "tool_choice": "auto",
                "tools": [],
            }
        )

    app = web.Application()
    app.router.add_post("/v1/responses", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def test_agent_of_the_openai_agents_sdk_calls_tools_of_a_hub(tmp_path: Path) -> None:
    async with model_that_calls("sha256Text", {"text": ""}) as url:
        variables = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
        answer = await answer_of("with_openai_agents", tmp_path, **variables)
    assert EMPTY in answer
