"""What a restart leaves of sources and pins, alone and with Redis, and what a hub makes of an edited sources.yaml."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.mcp_servers.scripted import Script, serving, tool
from tests.hub import RunningHub, channel_to, running_hub
from tests.processes import Served, served
from tests.rpc import real_servers as real
from tests.rpc.principals import Principals, hubs_of, state
from tests.rpc.skill_runs import plan_skill, source_of
from tests.unit.adapters.mcp.links import PYTHON_PATH, ROOT
from toolhub.v1 import approval_pb2, error_pb2, pin_pb2, source_pb2, tool_pb2
from toolhub.v1 import job_service_pb2 as jobs_pb
from toolhub.v1 import registry_service_pb2 as pb
from toolhub.v1 import tool_service_pb2 as tools_pb
from toolhub.v1.registry_service_pb2_grpc import RegistryServiceStub

pytestmark = pytest.mark.slow

GATED = 'while [ ! -e "$1" ]; do sleep 0.02; done; shift; exec "$@"'
"""A program that starts once a file is there."""
IMPATIENT: Mapping[str, Any] = {"jobs": {"heartbeat_s": 0.05, "dead_after_s": 0.5}}


class GatedServer:
    """A real server that does not answer before the gate is open."""

    def __init__(self, home: Path, **terms: Any) -> None:
        self._file = home / "open"
        server = real.everything()
        words = ["-c", GATED, "sh", str(self._file), server["command"], *server["args"]]
        self.source = real.program("sh", *words, **terms)

    def open(self) -> None:
        self._file.touch()

    def close(self) -> None:
        self._file.unlink()


@asynccontextmanager
async def hub_of(home: Path, **more: Any) -> AsyncIterator[RunningHub]:
    """A hub over the sources.yaml there is; nothing is waited for."""
    async with running_hub(home, policy=real.POLICY, settings={**IMPATIENT, **more}) as hub:
        yield hub


async def settled(hub: RunningHub) -> None:
    assert await hub.hub.sourcing.sources.wait_until_tried(timeout_s=real.WITHIN_S)


@pytest.mark.promise("sources.away-is-not-gone")
@pytest.mark.parametrize("trust", ["first-use", "always"])
async def test_tool_is_unavailable_while_its_source_connects_again_and_its_job_waits(
    tmp_path: Path, trust: str
) -> None:
    """Whether the hub remembers the tool by its pin or knows of none yet: it must not look as if it were gone."""
    gate = GatedServer(tmp_path, trust=trust, tools={"*": {"read_only": True}})
    real.write_sources(tmp_path, {"slow": gate.source})
    gate.open()
    long, args = "slow/trigger-long-running-operation", {"duration": 4.0, "steps": 80}
    async with hub_of(tmp_path) as hub:
        await settled(hub)
        job = await hub.submit(long, args)
        watch = hub.jobs.WatchJob(jobs_pb.WatchJobRequest(job_id=job.job_id), timeout=real.WITHIN_S)
        async for answer in watch:
            if answer.status.progress.step:
                break
        gate.close()
    async with hub_of(tmp_path) as hub:
        refused = await hub.invoke("slow/echo", {"message": "x"})
        assert refused.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE
        assert refused.error.retryable
        if trust == "first-use":
            shown = await hub.stub.GetTool(tools_pb.GetToolRequest(name="slow/echo"))
            assert shown.tool.state == tool_pb2.TOOL_STATE_UNAVAILABLE
        assert (await hub.invoke("slower/echo", {})).error.kind == error_pb2.ERROR_KIND_TOOL_NOT_FOUND
        watching = asyncio.create_task(hub.watched(job.job_id))
        await asyncio.wait({watching}, timeout=0.5)
        assert not watching.done()
        gate.open()
        last = (await watching)[-1]
        assert state(last) == "SUCCEEDED", last.result.error.message
        await settled(hub)
        assert (await hub.invoke("slow/echo", {"message": "x"})).ok
        assert (await hub.invoke("slow/nosuch", {})).error.kind == error_pb2.ERROR_KIND_TOOL_NOT_FOUND


@pytest.mark.promise("sources.away-is-not-gone")
async def test_langchain_tool_is_unavailable_until_its_code_is_loaded(tmp_path: Path) -> None:
    gate = tmp_path / "open"
    load = {"kind": "langchain", "load": ["tests.fakes.langchain_slow:tools"], "args": {"gate": str(gate)}}
    real.write_sources(tmp_path, {"slow": load})
    async with hub_of(tmp_path, tools={"trusted_namespaces": ["tests"]}) as hub:
        first = await hub.invoke("slow/greet", {"name": "Ann"})
        assert first.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE
        gate.touch()
        await settled(hub)
        assert (await hub.value("slow/greet", {"name": "Ann"}))["text"] == "Hello Ann."


ASKING = """
extends: none
grants:
  - {principals: ["*"], capabilities: ["langchain:*", "skill:*"]}
roles:
  - {principals: [judge], roles: [approver]}
rules:
  - {id: ask, effect: REQUIRE_APPROVAL, tools: [TOOL]}
"""


@pytest.mark.promise("sources.away-is-not-gone")
@pytest.mark.parametrize(("tool", "args"), [("slow/greet", {"name": "Ann"}), ("skill/greeter", {})])
async def test_a_job_that_is_taken_up_after_a_restart_waits_for_the_first_reading_of_its_sources(
    tmp_path: Path, tool: str, args: dict[str, Any]
) -> None:
    """Of its own source, or of those that the calls of its plan need."""
    gate, home = tmp_path / "open", tmp_path / "hub-0"
    step = {"id": "greet", "tool": "slow/greet", "args": {"name": "Ann"}}
    plan_skill(
        tmp_path / "skills", "greeter", [step], {"text": {"$from": "/steps/greet/result/text"}}, tools=["slow/*"]
    )
    load = {"kind": "langchain", "load": ["tests.fakes.langchain_slow:tools"], "args": {"gate": str(gate)}}
    real.write_sources(home, {"slow": load, "skill": source_of(tmp_path / "skills")})
    settings = {**IMPATIENT, "tools": {"trusted_namespaces": ["tests"]}}
    gate.touch()
    async with hubs_of(tmp_path, settings, [], policy=ASKING.replace("TOOL", tool)) as (hub,):
        await settled(hub)
        job = await Principals(hub).at(hub).submit(tool, args, request_id="work")
        assert state(job.status) == "AWAITING_APPROVAL"
    gate.unlink()
    async with hubs_of(tmp_path, settings, [], policy=ASKING.replace("TOOL", tool)) as (hub,):
        people = Principals(hub)
        await people.at(hub, "judge").decide(job.approval_id)
        robot = people.at(hub)
        running = await robot.reached(job.job_id, "RUNNING")
        new = await robot.call("slow/greet", {"name": "Bob"})
        assert (new.error.kind, new.error.retryable) == (error_pb2.ERROR_KIND_TOOL_UNAVAILABLE, True)
        gate.touch()
        last = (await robot.ended(job.job_id, running[-1].sequence))[-1]
        assert state(last) == "SUCCEEDED", last.error.message
        assert json.loads(last.result.result_json) == {"text": "Hello Ann."}


def echo(description: str) -> dict[str, Any]:
    return tool("echo", description=description, inputSchema={"type": "object"})


@pytest.fixture(params=["sqlite", "redis"])
def kept(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of where pins are kept."""
    if request.param == "sqlite":
        return {}
    return {"stores": {"redis_url": request.getfixturevalue("redis_url")}}


@pytest.mark.promise("pins.survive-restart")
async def test_approvals_survive_a_restart_and_what_changed_meanwhile_waits(
    tmp_path: Path, kept: dict[str, Any]
) -> None:
    script = Script(pages=[[echo("Say it again."), tool("add")]])
    async with serving(script) as url:
        real.write_sources(tmp_path, {"far": {"url": url}})
        async with hub_of(tmp_path, **kept) as hub:
            await settled(hub)
        script.pages[:] = [[echo("Say it to everybody."), tool("add")]]
        async with hub_of(tmp_path, **kept) as hub:
            await settled(hub)
            waits = await hub.invoke("far/echo", {"text": "x"})
            assert waits.error.kind == error_pb2.ERROR_KIND_TOOL_QUARANTINED
            assert (await hub.invoke("far/add", {"a": 1, "b": 2})).ok
            (pending,) = await pins(hub, pin_pb2.PIN_STATE_PENDING)
            await decide(hub, pending)
        async with hub_of(tmp_path, **kept) as hub:
            await settled(hub)
            assert (await hub.invoke("far/echo", {"text": "x"})).ok


@pytest.mark.promise("pins.decision-is-exact")
async def test_decision_at_one_hub_is_followed_by_the_other(tmp_path: Path, redis_url: str) -> None:
    script = Script(pages=[[echo("Say it again.")]])
    stores = {"stores": {"redis_url": redis_url}}
    async with serving(script) as url, AsyncExitStack() as hubs:
        for name in ("one", "two"):
            real.write_sources(tmp_path / name, {"far": {"url": url}})
        one = await hubs.enter_async_context(hub_of(tmp_path / "one", **stores))
        two = await hubs.enter_async_context(hub_of(tmp_path / "two", **stores))
        for hub in (one, two):
            await settled(hub)
        script.pages[:] = [[echo("Say it to everybody.")]]
        for hub in (one, two):
            await hub.registry.RefreshSources(pb.RefreshSourcesRequest(sources=["far"]))
            assert (await hub.invoke("far/echo", {})).error.kind == error_pb2.ERROR_KIND_TOOL_QUARANTINED
        (pending,) = await pins(two, pin_pb2.PIN_STATE_PENDING)
        await decide(one, pending)
        assert (await one.invoke("far/echo", {"text": "x"})).ok
        async with asyncio.timeout(60):
            while not (await two.invoke("far/echo", {"text": "x"})).ok:  # noqa: ASYNC110 - the other polls its store
                await asyncio.sleep(0.05)


async def pins(hub: RunningHub, *states: pin_pb2.PinState.ValueType) -> list[pin_pb2.Pin]:
    return list((await hub.registry.ListPins(pb.ListPinsRequest(source="far", states=states))).pins)


async def decide(hub: RunningHub, pin: pin_pb2.Pin) -> None:
    approve = approval_pb2.DECISION_APPROVE
    asked = pb.DecidePinRequest(source=pin.source, tool=pin.tool, digest=pin.digest, decision=approve, comment="read")
    await hub.registry.DecidePin(asked)


class EditedHub:
    """A serving hub, and what it says of its sources."""

    def __init__(self, home: Path, hub: Served, channel: Any) -> None:
        self._home, self.hub, self._registry = home, hub, RegistryServiceStub(channel)

    def write(self, sources: Mapping[str, Mapping[str, Any]]) -> None:
        real.write_sources(self._home, sources)

    async def becomes(self, **states: str) -> dict[str, source_pb2.SourceStatus]:
        """Wait until these, and no others, are the sources and their states."""
        async with asyncio.timeout(real.WITHIN_S):
            while True:
                answer = await self._registry.ListSources(pb.ListSourcesRequest(), timeout=real.WITHIN_S)
                found = {status.source: status for status in answer.sources if status.source != "core"}
                now = {name: source_pb2.SourceState.Name(status.state)[13:] for name, status in found.items()}
                if now == states:
                    return found
                await asyncio.sleep(0.05)


async def test_edited_sources_are_followed_while_serving(tmp_path: Path) -> None:
    own = real.program(sys.executable, str(ROOT / "tests/fakes/mcp_servers/scripted.py"), "modern")
    (tmp_path / "policy.yaml").write_text(real.POLICY)
    environment = {
        "TOOLHUB_POLICY_FILE": str(tmp_path / "policy.yaml"),
        "TOOLHUB_POLICY_RELOAD_S": "0.05",
        "PYTHONPATH": PYTHON_PATH,
    }
    async with served(tmp_path / "hub", environment=environment) as hub, channel_to(hub.address) as channel:
        edited = EditedHub(tmp_path, hub, channel)
        assert await edited.becomes() == {}
        edited.write({"a": own})
        first = await edited.becomes(a="READY")
        edited.write({"a": own, "b": {**own, "enabled": False}})
        both = await edited.becomes(a="READY", b="DISABLED")
        assert both["a"].refreshed_at == first["a"].refreshed_at  # who did not change is left alone
        edited.write({"a": {"comand": "x"}})
        await hub.logged("sources_rejected")
        await edited.becomes(a="READY", b="DISABLED")
        edited.write({"a": {**own, "args": [*own["args"][:-1], "legacy"]}, "b": {**own, "tags": ["x"]}})
        changed = await edited.becomes(a="READY", b="READY")
        assert (changed["a"].protocol, changed["b"].protocol) == ("2025-11-25", "2026-07-28")
        edited.write({"b": {"url": "http://127.0.0.1:9/mcp", "headers": {"X-Key": {"env": "NOT_THERE"}}}})
        (broken,) = (await edited.becomes(b="DOWN")).values()
        assert "NOT_THERE" in broken.message
        edited.write({})
        await edited.becomes()
