"""The fake n8n beside the real one: the same requests, in turn, get answers of the same status, type and shape.

The recordings hold the fake to one run of one version; this holds it to the version at hand, and in places that nobody
recorded: executions at work and waiting with all their data, lists that ought to name them.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests import fixtures
from tests.acceptance.real_n8n import INACTIVE, TOKEN, TOKEN_HEADER, RealN8n
from tests.fakes.n8n import fake_n8n
from tests.recordings.shapes import Loose, differences

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOOSE = Loose(
    (
        *(".timestamp", ".startTime", ".executionTime", ".versionCounter", ".id", ".retryOf", ".executionId"),
        *(".project.id", ".projectId", ".workflowPublishHistory", ".host", ".user-agent", ".webhookUrl", ".versionId"),
        *(".activeVersionId", ".workflowVersionId", ".stacktrace", ".stack", ".establishedAt"),
    )
)
"""Numbers that count or measure, and names that each server chooses by itself."""
BY_THE_WAY = re.compile(
    r"\.(staticData|webhookNotice|duplicateItem|includeOtherFields|parameters\.(notice|language|mode)"
    r"|workflowPublishHistory|project\.name|hint|nextCursor): "
)
"""Parameters that nobody set, how a workflow came there, words of Node's JSON reader, whether there are more."""
KEY = {"X-Idempotency-Key": "k-1"}
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Step:
    label: str
    method: str
    target: str
    """May name executions of earlier steps, such as `{running}`."""
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    keeps: str = ""
    """Name under which the execution id of the answer is kept."""


def _post(label: str, path: str, body: Any = None, keeps: str = "", **headers: str) -> Step:
    return Step(label, "POST", f"/webhook/{path}", body, KEY | headers, keeps)


def _api(label: str, target: str, method: str = "GET") -> Step:
    return Step(label, method, f"/api/v1{target}", None, {"X-N8N-API-KEY": "{key}"})


STEPS = (
    _post("last node", "hub-last", {"a": 1}, "done"),
    _post("code", "hub-code", {"a": 1, "b": 2}),
    _post("immediate", "hub-immediate", {"a": 1}),
    _post("immediate with id", "hub-immediate-id", {"a": 1}),
    _post("error lastNode", "hub-error-lastNode", {}),
    _post("error onReceived", "hub-error-onReceived", {}),
    _post("error responseNode", "hub-error-responseNode", {}),
    _post("error code", "hub-error-code", {}),
    _post("auth none", "hub-auth", {}),
    _post("auth wrong", "hub-auth", {}, **{TOKEN_HEADER: "no"}),
    _post("auth right", "hub-auth", {}, **{TOKEN_HEADER: TOKEN}),
    _post("inactive", "hub-inactive", {}),
    _post("unknown", "no-such-path", {}),
    Step("wrong method", "GET", "/webhook/hub-last"),
    Step("test url", "POST", "/webhook-test/hub-last", {}),
    Step("bad json", "POST", "/webhook/hub-last", "{not json", JSON),
    Step("text body", "POST", "/webhook/hub-last", "hello", {"content-type": "text/plain"}),
    Step("empty body", "POST", "/webhook/hub-last"),
    _post("async, running", "hub-async", {"seconds": 20}, "running"),
    _post("async, waiting", "hub-async", {"seconds": 70}, "waiting"),
    _api("done", "/executions/{done}?includeData=false"),
    _api("done, data", "/executions/{done}?includeData=true"),
    _api("running", "/executions/{running}?includeData=false"),
    _api("running, data", "/executions/{running}?includeData=true"),
    _api("waiting", "/executions/{waiting}?includeData=false"),
    _api("waiting, data", "/executions/{waiting}?includeData=true"),
    _api("list running", "/executions?workflowId=hubAsync00000001&status=running&limit=1"),
    _api("list running, data", "/executions?workflowId=hubAsync00000001&status=running&limit=1&includeData=true"),
    _api("list waiting", "/executions?status=waiting&limit=1"),
    _api("list error, data", "/executions?workflowId=hubErrorlastNode&status=error&limit=1&includeData=true"),
    _api("code error, data", "/executions?workflowId=hubErrorCode0001&limit=1&includeData=true"),
    _api("stop", "/executions/{running}/stop", "POST"),
    _api("unknown execution", "/executions/99999"),
    _api("unknown workflow", "/workflows/nobody"),
    _api("workflow", "/workflows/hubLastNode00001"),
    Step("no key", "GET", "/api/v1/workflows"),
    Step("bad key", "GET", "/api/v1/workflows", None, {"X-N8N-API-KEY": "wrong"}),
    _api("delete", "/executions/{done}", "DELETE"),
    _api("deleted", "/executions/{done}"),
)


async def answers(url: str, api_key: str) -> dict[str, httpx.Response]:
    """What one server says to all steps, one after the other."""
    names, answers_of = {"key": api_key}, {}
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30.0) as client:
        for step in STEPS:
            sent = {"content": step.body} if isinstance(step.body, str) else {"json": step.body}
            headers = {name: value.format(**names) for name, value in step.headers.items()}
            given = {} if step.body is None else sent
            answer = await client.request(step.method, step.target.format(**names), headers=headers, **given)
            answers_of[step.label] = answer
            if step.keeps:
                names[step.keeps] = answer.json()["executionId"]
    return answers_of


@asynccontextmanager
async def the_fake(version: str) -> AsyncIterator[tuple[str, str]]:
    credentials = {"hubCred000000001": (TOKEN_HEADER, TOKEN)}
    async with fake_n8n(workflows=_recorded(), credentials=credentials, version=version) as fake:
        fake.workflows[INACTIVE].active = False
        fake.time_scale = None
        yield fake.url, fake.api_key


def _recorded() -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(fixtures.path("n8n", "workflows").iterdir())]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def answered(n8n: RealN8n) -> dict[str, tuple[httpx.Response, httpx.Response]]:
    """By label: the real one's answer, the fake's."""
    real = await answers(n8n.url, n8n.api_key)
    async with the_fake(n8n.version) as (url, api_key):
        faked = await answers(url, api_key)
    return {label: (real[label], faked[label]) for label in real}


@pytest.mark.parametrize("label", [step.label for step in STEPS])
async def test_the_fake_answers_as_the_real_server(
    label: str, answered: dict[str, tuple[httpx.Response, httpx.Response]]
) -> None:
    real, faked = answered[label]
    assert faked.status_code == real.status_code, (faked.text, real.text)
    assert faked.headers.get("content-type") == real.headers.get("content-type")
    try:
        expected = real.json()
    except ValueError:
        assert faked.text == real.text
        return
    found = [line for line in differences(expected, faked.json(), LOOSE) if not BY_THE_WAY.search(line)]
    assert not found, "\n".join(found)
