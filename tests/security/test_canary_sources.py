"""Canaries stand wherever a source may hold a secret, its server repeats them wherever it can speak, and nothing but
the value of a result, which is its caller's, may hold one.

Doors: references and plain values in env, headers, arguments, URL, and arguments of LangChain code. Mouths:
definitions, names, server info, errors, results, progress, questions, standard error. Exits: logs, spans, metrics,
audit files, statuses, snapshots, lists, searches, exports, pins and their differences, approvals, jobs, stored pins.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from tests.fakes.mcp_servers import echoing
from tests.fakes.mcp_servers.echoing import Echoing
from tests.fakes.mcp_servers.scripted import serving
from tests.hub import CALL_TIMEOUT_S, RunningHub, running_hub
from tests.security.test_canary_wire import HubOutput, hub_output
from toolhub.v1 import approval_service_pb2, job_service_pb2, job_state_pb2, registry_service_pb2, tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub_service.domain.pin import PinFilter

__all__ = ["hub_output"]
POLICY = """
extends: none
grants: [{principals: ["*"], capabilities: ["*", "mcp:*", "langchain:*"]}]
roles: [{principals: [local], roles: [agent, operator, approver, auditor]}]
"""
OWED = ("result_json", "raw_json", "artifacts")
"""Of a result, what is its caller's."""


def canary(place: str) -> str:
    return f"{place}c4n{token_hex(10)}"


def named(url: str, password: str) -> str:
    return url.replace("://", f"://me:{password}@")


@asynccontextmanager
async def hub_with(tmp_path: Path, sources: Mapping[str, Any]) -> AsyncIterator[RunningHub]:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "sources.yaml").write_text(json.dumps({"sources": sources}))
    settings = {
        "logs": {"level": "debug", "calls": True},
        "tracing": {"otlp_endpoint": "http://127.0.0.1:9"},
        "results": {"show_raw": True},
        "tools": {"trusted_namespaces": ["tests.fakes"]},
    }
    async with running_hub(tmp_path, policy=POLICY, settings=settings) as hub:
        assert await hub.hub.sourcing.sources.wait_until_tried(timeout_s=60)
        yield hub


class SourceCaller:
    """Calls everything of one source, and keeps what came back."""

    def __init__(self, hub: RunningHub, hub_output: HubOutput) -> None:
        self._hub = hub
        self._exits = hub_output

    async def call_all(self, source: str) -> list[str]:
        """The names of its tools."""
        asked = pb.ListToolsRequest(
            view=tool_pb2.TOOL_VIEW_FULL, page_size=200, filter=tool_pb2.ToolFilter(sources=[source])
        )
        names = [tool.name for tool in (await self._hub.stub.ListTools(asked)).tools]
        for name in sorted(names, key=lambda name: name.endswith("/exits")):
            self._keep(name, await self._hub.invoke(name, {}))
            job = await self._hub.submit(name, {})
            watch = self._hub.jobs.WatchJob(job_service_pb2.WatchJobRequest(job_id=job.job_id), timeout=CALL_TIMEOUT_S)
            async for answer in watch:
                self._keep(name, answer.status.result)
                answer.status.ClearField("artifacts")
                self._exits.keep(f"status {name}", answer.status)
                if answer.status.state == job_state_pb2.JOB_STATE_AWAITING_APPROVAL:
                    break
            job = (await self._hub.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job.job_id))).job
            self._keep(name, job.status.result)
            job.status.ClearField("artifacts")
            self._exits.keep(f"job {name}", job)
        return names

    def _keep(self, name: str, result: Any) -> None:
        for owed in OWED:
            result.ClearField(owed)
        self._exits.keep(name, result)

    async def look(self) -> None:
        """Through every window."""
        stub, registry = self._hub.stub, self._hub.registry
        full = tool_pb2.TOOL_VIEW_FULL
        asked = [
            stub.ListTools(pb.ListToolsRequest(view=full, page_size=200)),
            stub.SearchTools(pb.SearchToolsRequest(query="logged in say", view=full, page_size=50)),
            stub.ExportTools(pb.ExportToolsRequest(format=pb.EXPORT_FORMAT_MCP)),
            registry.ListSources(registry_service_pb2.ListSourcesRequest()),
            registry.GetSnapshot(registry_service_pb2.GetSnapshotRequest(view=full)),
            registry.ListPins(registry_service_pb2.ListPinsRequest(view=full, page_size=100)),
            ApprovalServiceStub(self._hub.channel).ListApprovals(approval_service_pb2.ListApprovalsRequest()),
        ]
        for each in asked:
            answer = await each
            self._exits.keep(type(answer).__name__, answer)
        self._exits.answers.append(("catalog", repr(self._hub.hub.toolbox.catalog.all()).encode()))
        pins, _ = await self._hub.hub.stores.pins.page(PinFilter(), after=None, limit=1_000)
        self._exits.answers.append(("pins", repr(pins).encode()))


@pytest.mark.promise("secrets.nowhere")
async def test_secrets_given_to_a_program_come_out_nowhere(
    tmp_path: Path, hub_output: HubOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_variable, by_file, plain, flag, joined, url, lines = map(
        canary, ("var", "file", "env", "flag", "join", "url", "pem")
    )
    monkeypatch.setenv("INNOCENT", by_variable)
    (tmp_path / "secret").write_text(f"{by_file}\n")
    (tmp_path / "lines").write_text(f"first line of it\n{lines}\nlast line of it\n")
    env = {
        "LEAK_1": {"env": "INNOCENT"},
        "LEAK_2": {"file": str(tmp_path / "secret")},
        "LEAK_PASSWORD": plain,
        "LEAK_URL": f"postgres://me:{url}@db.example.com/x",
        "LEAK_LINES": {"file": str(tmp_path / "lines")},
    }
    args = [echoing.__file__, "--secrets", {"env": "INNOCENT", "prefix": "--with="}, "--token", flag]
    args += [f"--api-key={joined}", f"postgres://me:{url}@db.example.com/x"]
    source = {"command": sys.executable, "args": args, "env": env, "elicitation": "ask"}
    async with hub_with(tmp_path, {"echo": source}) as hub:
        assert by_variable in (await hub.value("echo/say"))["text"], "the server has it, and a result is its caller's"
        caller = SourceCaller(hub, hub_output)
        names = await caller.call_all("echo")
        assert {"echo/say", "echo/shaped", "echo/asks"} <= set(names)
        await caller.look()
        assert await hub_output.leaks(hub, by_variable, by_file, plain, flag, joined, url, lines) == []


@pytest.mark.promise("secrets.nowhere")
async def test_secrets_given_to_an_http_server_come_out_nowhere(
    tmp_path: Path, hub_output: HubOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    bearer, key, basic, query, userinfo, path = map(canary, ("bear", "key", "basic", "query", "user", "path"))
    monkeypatch.setenv("INNOCENT", bearer)
    pair = base64.b64encode(f"me:{basic}".encode()).decode()
    headers = {
        "Authorization": {"env": "INNOCENT", "prefix": "Bearer "},
        "X-Api-Key": key,
        "Proxy-Authorization": f"Basic {pair}",
    }
    literal = Echoing(secrets=(bearer, key, basic, query, userinfo))
    referred = Echoing(secrets=(bearer, key, basic, query, userinfo, path))
    async with serving(literal) as one, serving(referred) as other:
        (tmp_path / "url").write_text(f"{named(other, userinfo)}/{path}?session={query}\n")
        sources = {
            "literal": {
                "url": f"{named(one, userinfo)}?access_token={query}",
                "headers": headers,
                "elicitation": "ask",
            },
            "referred": {"url": {"file": str(tmp_path / "url")}, "headers": headers, "elicitation": "defaults"},
        }
        async with hub_with(tmp_path, sources) as hub:
            caller = SourceCaller(hub, hub_output)
            for name in sources:
                assert f"{name}/say" in await caller.call_all(name)
            await caller.look()
            assert await hub_output.leaks(hub, bearer, key, basic, query, userinfo, path) == []


@pytest.mark.promise("secrets.nowhere")
async def test_secrets_given_to_langchain_code_come_out_nowhere(tmp_path: Path, hub_output: HubOutput) -> None:
    key, password = map(canary, ("key", "pass"))
    source = {
        "kind": "langchain",
        "load": ["tests.fakes.langchain_leaks:leaking_tools"],
        "args": {"api_key": key, "url": f"postgres://me:{password}@db.example.com/x"},
        "processes": 1,
    }
    async with hub_with(tmp_path, {"leaks": source}) as hub:
        assert key in (await hub.value("leaks/answers"))["text"], "a result is its caller's"
        caller = SourceCaller(hub, hub_output)
        assert len(await caller.call_all("leaks")) == 4
        await caller.look()
        assert "RuntimeError" in hub_output.text.getvalue(), "operators find the failure in the log"
        assert await hub_output.leaks(hub, key, password) == []
