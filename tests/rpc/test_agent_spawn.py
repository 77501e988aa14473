"""core/agent.spawn through a whole hub, with a scripted model endpoint."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hub import RunningHub, channel_to, request, running_hub
from tests.processes import served
from tests.rpc.job_client import JobClient, state
from tests.rpc.model_endpoint import (
    KEY,
    ModelEndpoint,
    answer_text,
    ask,
    events,
    model_endpoint,
    sends,
    status,
    streamed,
    whole,
)
from toolhub.v1 import error_pb2, job_pb2, job_service_pb2
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.domain.event import EventType
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.tool import Annotations, ToolLimits
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

SPAWN = "core/agent.spawn"
READ, WRITE, NOW = "core__fs_readText", "core__fs_writeText", "core__util_time_now"
POLICY = """
extends: none
grants:
  - {principals: [local], capabilities: [read:fs, write:fs, spawn:agent]}
roles:
  - {principals: [local], roles: [agent, operator, approver, auditor]}
"""
KINDS = error_pb2.ErrorKind


class HeldTool(Tool["HeldTool.In", "HeldTool.Out"]):
    """Works until it is cancelled."""

    name = "held/work.on"
    description = "Work until cancelled."
    limits = ToolLimits(timeout_s=120.0)

    class In(ToolInput, frozen=True):
        pass

    class Out(ToolOutput, frozen=True):
        pass

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def run(self, args: In, context: ToolContext) -> Out:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return self.Out()


class CallMaker(Tool["CallMaker.In", "CallMaker.Out"]):
    """Makes a call with the tools that it lends itself, as a hostile loop would."""

    name = "held/calls.make"
    description = "Call a tool."
    annotations = Annotations(read_only=True)

    class In(ToolInput, frozen=True):
        tool: str
        args: dict[str, Any]
        lent: tuple[str, ...]

    class Out(ToolOutput, frozen=True):
        kind: str
        rule: str = ""

    def __init__(self) -> None:
        self.depths: list[int] = []

    async def run(self, args: In, context: ToolContext) -> Out:
        assert context.calls is not None
        calls = context.calls()
        self.depths.append(calls.depth)
        result: ToolResult = await calls.restrict_to(args.lent, 30).invoke(args.tool, args.args, purpose="a test")
        if result.error is None:
            return self.Out(kind="ok")
        return self.Out(kind=result.error.kind.value, rule=str(result.error.details.get("rule_id", "")))


@pytest.fixture
async def model() -> AsyncIterator[ModelEndpoint]:
    async with model_endpoint() as opened:
        yield opened


@asynccontextmanager
async def agent_hub(
    home: Path, model: ModelEndpoint, policy: str = "", tools: Any = (), **agent: Any
) -> AsyncIterator[RunningHub]:
    (home / "key").write_text(KEY + "\n")
    named = {"name": "helper", "url": model.url, "model": "m-1", "key": {"file": str(home / "key")}} | agent
    settings = {"agents": [named], "budget": {"breaker_min_calls": 1_000}}
    async with running_hub(home, policy=POLICY + policy, settings=settings, tools=tools) as hub:
        yield hub


async def spawned(hub: RunningHub, task: str = "Do it.", **fields: Any) -> job_pb2.JobStatus:
    """How the job ended."""
    args: dict[str, Any] = {name: fields.pop(name) for name in ("tools", "maxSteps", "label") if name in fields}
    result = await hub.invoke(SPAWN, {"task": task, **args}, request_id="work", **fields)
    assert result.ok, result.error.message
    return (await hub.watched(result.job.job_id))[-1]


def value_of(ended: job_pb2.JobStatus) -> Any:
    assert ended.result.ok, f"{ended.result.error.message} {ended.result.error.details}"
    return json.loads(ended.result.result_json)


async def put(hub: RunningHub, path: str, text: str) -> None:
    written = await hub.invoke("core/fs.writeText", {"path": path, "text": text}, request_id="work")
    assert written.ok, written.error.message


@pytest.mark.promise("agent.works-with-the-callers-tools", "agent.inner-calls-are-recorded")
async def test_a_sub_agent_reads_with_the_callers_tools_and_reports_each_call(
    tmp_path: Path, model: ModelEndpoint
) -> None:
    async with agent_hub(tmp_path, model) as hub:
        await put(hub, "a.txt", f"forty-two password={KEY}")
        model.script(ask((READ, {"path": "a.txt"}), (NOW, {})), answer_text("It says forty-two."))
        ended = await spawned(hub, "Read a.txt.", label="reading", user_id="local", task_id="t-1")
        value = value_of(ended)
        outcome = (value["text"].strip(), value["ended"], value["steps"], value["toolCalls"], value["failedCalls"])
        assert outcome == ("It says forty-two.", "ANSWERED", 2, 2, 0)
        assert (value["promptTokens"], value["completionTokens"]) == (200, 14)
        assert model.tool_outputs()[0]["value"]["text"].startswith("forty-two")
        assert set(model.keys) == {f"Bearer {KEY}"}
        assert model.asked[0]["model"] == "m-1"
        assert READ in model.tools
        assert WRITE not in model.tools, "by default what changes nothing"
        assert ended.progress.message == f"call 2: {NOW.replace('__', '/', 1).replace('_', '.')}"

        (artifact,) = ended.result.artifacts
        kept = await hub.hub.artifacts.open("local", artifact.artifact_id)
        lines = b"".join([chunk async for chunk in hub.hub.artifacts.read(kept)]).decode().splitlines()
        roles = [json.loads(line)["role"] for line in lines]
        assert roles == ["system", "user", "assistant", "tool", "tool", "assistant"]
        assert KEY not in "".join(lines)

        events = await hub.events(request_id="work")
        (parent,) = {
            each.event.call_id
            for each in events
            if each.event.tool == SPAWN and each.event.attributes.get("attempts") == "1"
        }
        inner = [each.event for each in events if each.event.attributes.get("parent_call_id")]
        assert {event.tool for event in inner} == {"core/fs.readText", "core/util.time.now"}
        for event in inner:
            assert (event.attributes["parent_call_id"], event.attributes["root_call_id"]) == (parent, parent)
            assert (event.principal, event.task_id, event.purpose) == ("local", "t-1", "agent helper: reading")


@pytest.mark.promise("agent.narrowed-by-the-hub")
async def test_tools_that_were_not_lent_are_out_of_reach_and_approvals_are_not_inherited(
    tmp_path: Path, model: ModelEndpoint
) -> None:
    asks = "rules: [{id: ask, effect: REQUIRE_APPROVAL, tools: [core/fs.copy]}]\nsandbox: {may_overwrite: false}\n"
    maker = CallMaker()
    async with agent_hub(tmp_path, model, asks, tools=[maker]) as hub:
        await put(hub, "a.txt", "one")
        args = {"path": "b.txt", "text": "two"}
        model.script(
            ask((WRITE, args), ("core/fs.writeText", args), (READ, {"path": "../../x"})), answer_text("No way.")
        )
        assert value_of(await spawned(hub, tools=["core/fs.readText"]))["failedCalls"] == 3
        assert [output["error"]["kind"] for output in model.tool_outputs()] == ["INVALID_INPUT"] * 2 + [
            "PATH_OUTSIDE_SANDBOX"
        ]
        assert model.tools == [READ]

        over = args | {"overwrite": True}
        model.script(ask((WRITE, args), (WRITE, over)), answer_text("Done."))
        assert value_of(await spawned(hub, tools=["core/fs.*"]))["failedCalls"] == 1
        assert "operator" in str(model.tool_outputs()[1])
        assert "may_overwrite" not in str(model.tool_outputs()[1]), "no line of policy.yaml for a model"
        assert "may_overwrite" in (await hub.invoke("core/fs.writeText", over, request_id="work")).error.message
        model.script(ask(("core__fs_copy", {"source": "a.txt", "destination": "c.txt"})), answer_text("It waits."))
        value_of(await spawned(hub, tools=["core/fs.copy"]))
        assert model.tool_outputs()[0]["error"]["kind"] == "APPROVAL_REQUIRED"
        assert sorted(path.name for path in hub.workspace("work").iterdir()) == ["a.txt", "b.txt"]

        model.script(answer_text("Nothing."))
        narrow = await spawned(hub, tools=["core/fs.writeText"], permissions=["spawn:agent", "read:*"])
        assert narrow.result.error.kind == error_pb2.ERROR_KIND_INVALID_INPUT
        value_of(await spawned(hub, permissions=["spawn:agent"]))
        assert READ not in model.tools
        assert NOW in model.tools

        # The hub itself, whatever the tool that makes the calls asks for.
        call = {"tool": "core/fs.writeText", "args": args | {"path": "d.txt"}, "lent": ["core/fs.readText"]}
        made = await hub.value(maker.name, call, request_id="work")
        assert made == {"kind": "POLICY_DENIED", "rule": "inner_calls"}
        within = {"tool": maker.name, "args": call | {"lent": ["core/fs.writeText"]}, "lent": [maker.name]}
        assert (await hub.value(maker.name, within, request_id="work")) == {"kind": "ok", "rule": ""}
        (denied, *_) = [
            each.event for each in await hub.events(tool="core/fs.writeText") if each.event.rule_id == "inner_calls"
        ]
        assert denied.attributes["parent_call_id"]
        assert not (hub.workspace("work") / "d.txt").exists()


@pytest.mark.promise("agent.bounded")
async def test_steps_calls_the_requests_budget_and_the_deadline_bound_a_model_that_never_ends(
    tmp_path: Path, model: ModelEndpoint
) -> None:
    async with agent_hub(tmp_path, model, max_steps=6, max_calls=8) as hub:
        model.script(ask((NOW, {})))
        value = value_of(await spawned(hub, maxSteps=3))
        assert (value["ended"], value["steps"], value["toolCalls"]) == ("STEPS", 3, 3)
        assert value_of(await spawned(hub, maxSteps=200))["steps"] == 6
        model.script(ask((NOW, {}), (NOW, {}), ("nothing", {})))
        value = value_of(await spawned(hub))
        assert (value["ended"], value["toolCalls"], value["failedCalls"]) == ("CALLS", 8, 2)

        model.script(ask((NOW, {}), (NOW, {})), answer_text("Out of calls."))
        result = await hub.invoke(SPAWN, {"task": "x"}, request_id="few", budget={"max_tool_calls": 2})
        assert value_of((await hub.watched(result.job.job_id))[-1])["failedCalls"] == 1
        assert [output.get("error", {}).get("kind") for output in model.tool_outputs()] == [None, "BUDGET_EXCEEDED"]

        model.script(model.stall())
        timeout_s, ended = 0.5, None
        while not model.stalled.is_set():
            ended = await spawned(hub, budget={"timeout_s": timeout_s})
            timeout_s *= 2
        assert ended is not None
        assert ended.result.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
        await asyncio.wait_for(model.gone.wait(), 60)


@pytest.mark.promise("agent.depth")
async def test_agents_within_agents_end_at_the_configured_depth_and_tools_within_tools_at_the_hubs(
    tmp_path: Path, model: ModelEndpoint
) -> None:
    maker = CallMaker()
    async with agent_hub(tmp_path, model, tools=[maker], max_depth=2) as hub:
        spawn = "core__agent_spawn"
        model.script(
            ask((spawn, {"task": "Deeper.", "tools": ["core/*"]})),
            ask((spawn, {"task": "Deeper still.", "tools": ["core/*"]})),
            answer_text("I cannot."),
            answer_text("It could not."),
        )
        value = value_of(await spawned(hub, tools=["core/*"]))
        assert (value["text"].strip(), value["toolCalls"], value["failedCalls"]) == ("It could not.", 1, 0)
        assert model.tool_outputs()[0]["value"]["text"].strip() == "I cannot."
        assert spawn not in [tool["function"]["name"] for tool in model.asked[1]["tools"]]
        jobs = [each.event for each in await hub.events(tool=SPAWN, types=frozenset({EventType.TOOL_RESULT}))]
        assert len({event.call_id for event in jobs}) == 2

        deepest: dict[str, Any] = {"tool": maker.name, "args": {}, "lent": [maker.name]}
        for _ in range(8):
            deepest = {"tool": maker.name, "args": deepest, "lent": [maker.name]}
        assert await hub.value(maker.name, deepest) == {"kind": "ok", "rule": ""}
        assert maker.depths == [0, 1, 2, 3, 4]


@pytest.mark.promise("agent.endpoint-is-not-believed")
async def test_any_behaviour_of_the_endpoint_is_bounded_and_has_a_reason(
    tmp_path: Path, model: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolhub_service.tools.agent.chat_completions._PAUSE_S", 0.001)
    delta = {"choices": [{"index": 0, "delta": {"content": "x" * 200_000}}]}
    many = [{"index": index, "function": {"name": "f", "arguments": "{}"}} for index in range(40)]
    line = b"data: " + b"x" * 700_000
    cases: dict[str, tuple[list[Any], str, int]] = {
        "status 401": ([status(401)], "UPSTREAM_ERROR", 1),
        "status 500 for ever": ([status(500)], "UPSTREAM_ERROR", 3),
        "status 429 for ever": ([status(429, {"Retry-After": "0"})], "UPSTREAM_ERROR", 3),
        "a redirect": ([status(302, {"Location": "http://127.0.0.1:1/x"})], "HTTP_DISALLOWED_HOST", 1),
        "no JSON": ([sends(b"data: {broken\n\n")], "UPSTREAM_ERROR", 1),
        "JSON of another shape": ([sends(b'data: {"choices": 7}\n\n')], "UPSTREAM_ERROR", 1),
        "deep JSON": ([sends(b"data: " + b"[" * 100_000 + b"\n\n")], "UPSTREAM_ERROR", 1),
        "an error in the stream": ([sends(events({"error": {"message": KEY}}))], "UPSTREAM_ERROR", 1),
        "a line without end": ([sends(line, line)], "UPSTREAM_ERROR", 1),
        "an enormous text": ([sends(events(delta, delta))], "UPSTREAM_ERROR", 1),
        "endless events": ([sends(*[events(done=False) * 50_000] * 20)], "UPSTREAM_ERROR", 1),
        "40 tool calls": ([sends(events({"choices": [{"delta": {"tool_calls": many}}]}))], "UPSTREAM_ERROR", 1),
        "nothing at all": ([sends(b"")], "NETWORK_ERROR", 3),
        "half an answer": ([sends(streamed("one two three")[:300], cut=True)], "NETWORK_ERROR", 3),
        "silence": ([model.stall(streamed("one two")[:300])], "UPSTREAM_ERROR", 1),
    }
    async with agent_hub(tmp_path, model, stall_s=0.5) as hub:
        outcomes = {}
        for name, (turns, _, _) in cases.items():
            model.script(*turns)
            error = (await spawned(hub, tools=[])).result.error
            outcomes[name] = (KINDS.Name(error.kind).removeprefix("ERROR_KIND_"), len(model.asked))
            assert KEY not in str(error), name
        assert outcomes == {name: (kind, asked) for name, (_, kind, asked) in cases.items()}

        passing = [status(429, {"Retry-After": "0"}), status(503), answer_text("At last.")]
        for turns in (
            passing,
            [whole({"role": "assistant", "content": "At last."})],
            [sends(b"", cut=True), answer_text("At last.")],
        ):
            model.script(*turns)
            assert value_of(await spawned(hub, tools=[]))["text"].strip() == "At last."
        model.script(answer_text("Cut", finish="length"))
        assert value_of(await spawned(hub, tools=[]))["ended"] == "LENGTH"

        broken = [(NOW, "{not json"), (NOW, "[1]"), ("rm_rf", "{}"), (NOW, ""), (NOW, '{"unknown": 1}')]
        model.script(ask(*broken), status(400))
        failed = (await spawned(hub)).result
        assert "artifact art_" in failed.error.message, "what was done before is reported"
        problems = [outcomes.get("error", {}).get("kind") for outcomes in model.tool_outputs()]
        assert problems == ["INVALID_INPUT"] * 3 + [None, "INPUT_SCHEMA_INVALID"]


@pytest.mark.promise("agent.cancelled-with-its-calls")
async def test_a_cancelled_agent_ends_its_inner_call_and_one_that_has_begun_is_never_run_again(
    tmp_path: Path, model: ModelEndpoint
) -> None:
    held = HeldTool()
    async with agent_hub(tmp_path, model, tools=[held]) as hub:
        model.script(ask(("held__work_on", {})))
        result = await hub.invoke(SPAWN, {"task": "x", "tools": [held.name]}, request_id="work")
        await asyncio.wait_for(held.begun.wait(), 60)
        job = await hub.hub.stores.jobs.get(result.job.job_id)
        assert job is not None
        assert job.begun, "a hub that is killed now leaves it LOST"
        await hub.jobs.CancelJob(job_service_pb2.CancelJobRequest(job_id=result.job.job_id), timeout=60)
        await asyncio.wait_for(held.ended.wait(), 60)
        ended = (await hub.watched(result.job.job_id))[-1]
        assert ended.result.error.kind == error_pb2.ERROR_KIND_CANCELLED
        (inner,) = [each.event for each in await hub.events(tool=held.name, types=frozenset({EventType.TOOL_RESULT}))]
        assert inner.outcome in {"CANCELLED", "OUTCOME_UNKNOWN"}
        assert inner.attributes["parent_call_id"] == job.call.call_id


@pytest.mark.promise("agent.cancelled-with-its-calls")
async def test_a_cancelled_agent_cancels_the_agent_that_works_for_it(tmp_path: Path, model: ModelEndpoint) -> None:
    async with agent_hub(tmp_path, model, max_depth=2) as hub:
        model.script(ask(("core__agent_spawn", {"task": "Deeper."})), model.stall())
        result = await hub.invoke(SPAWN, {"task": "x", "tools": [SPAWN]}, request_id="work")
        await asyncio.wait_for(model.stalled.wait(), 60)
        await hub.jobs.CancelJob(job_service_pb2.CancelJobRequest(job_id=result.job.job_id), timeout=60)
        await asyncio.wait_for(model.gone.wait(), 60)
        accepted = [each.event.attributes.get("job_id") for each in await hub.events(tool=SPAWN)]
        (inner,) = {job_id for job_id in accepted if job_id} - {result.job.job_id}
        for job_id in (result.job.job_id, inner):
            assert state((await hub.watched(str(job_id)))[-1]) == "CANCELLED"


@pytest.mark.promise("agent.killed-is-lost")
async def test_an_agent_whose_hub_was_killed_is_lost_and_the_model_is_not_asked_again(
    tmp_path: Path, model: ModelEndpoint
) -> None:
    (tmp_path / "policy.yaml").touch(0o600)
    (tmp_path / "policy.yaml").write_text(POLICY)
    agents = json.dumps([{"name": "helper", "url": model.url, "model": "m-1"}])
    environment = {"TOOLHUB_AGENTS": agents, "TOOLHUB_JOBS_DEAD_AFTER_S": "1"}
    model.script(ask((NOW, {})), model.stall())
    async with served(tmp_path, environment=environment) as first, channel_to(first.address) as channel:
        asked = await ToolServiceStub(channel).Invoke(request(SPAWN, {"task": "x"}), timeout=60)
        await asyncio.wait_for(model.stalled.wait(), 60)
        first.signal(signal.SIGKILL)
        await first.process.wait()
    async with served(tmp_path, environment=environment) as second, channel_to(second.address) as channel:
        (*_, last) = await JobClient(channel).ended(asked.result.job.job_id)
    assert (state(last), last.result.error.kind) == ("LOST", error_pb2.ERROR_KIND_OUTCOME_UNKNOWN)
    assert len(model.asked) == 2


async def test_without_an_agent_the_tool_is_listed_with_what_to_configure_and_its_key_may_be_away(
    tmp_path: Path, model: ModelEndpoint
) -> None:
    async with running_hub(tmp_path / "none", policy=POLICY) as hub:
        spec = hub.hub.toolbox.catalog.get(SPAWN)
        assert spec is not None
        assert "add one to `agents` of the settings" in spec.state_reason
    async with agent_hub(tmp_path, model, key={"env": "NO_SUCH_KEY"}) as hub:
        error = (await spawned(hub)).result.error
        assert (error.kind, error.retryable) == (error_pb2.ERROR_KIND_TOOL_UNAVAILABLE, False)
        assert "NO_SUCH_KEY" in str(error.details)
        assert Paths(hub.hub.settings).data_dir.exists()
