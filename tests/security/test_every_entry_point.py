"""Whichever way a call comes in, each of the nine steps holds for it: every entrance, a call that each step refuses.

What is an entrance is read from the code and from the contract: a new one without a row here fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.descriptor import Descriptor
from mcp import MCPDeprecationWarning, MCPError
from mcp.client.client import Client
from mcp_types import PromptReference

import toolhub_service
from tests.hub import request
from tests.mcp_server.mcp_hub import ERAS, McpHub, mcp_hub
from tests.mcp_server.wire import wire
from tests.security.step_tools import NAMES, POLICY, PRIMITIVE_TOOLS, TOOLS, Inner, SubscribeStep
from toolhub.v1 import (
    approval_service_pb2,
    artifact_service_pb2,
    audit_service_pb2,
    credential_service_pb2,
    error_pb2,
    job_service_pb2,
    registry_service_pb2,
    result_pb2,
    tool_service_pb2,
)
from toolhub_service.domain.call import Principal
from toolhub_service.domain.result import StepName
from toolhub_service.faces.table import FACE_HEADER
from toolhub_service.mcp_server.endpoint import Endpoint

SETTINGS: Final = {
    "faces": {"enabled": ["countbot"], "countbot_tools": [f"{name}=held/step.{name}" for name in NAMES]},
    "budget": {"breaker_min_calls": 1_000},
}

Answer = tuple[str, Any]
"""(kind of the error, empty for none; value)."""
Enter = Callable[[McpHub, str, Mapping[str, Any]], Awaitable[Answer]]


def _of(result: result_pb2.ToolResult) -> Answer:
    if not result.ok:
        return error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_"), None
    return "", json.loads(result.result_json)


async def invoke(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
    return _of(await hub.grpc.invoke(tool, args))


async def invoke_stream(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
    asked = request(tool, args, message=tool_service_pb2.InvokeStreamRequest)
    *_, last = [answer async for answer in hub.grpc.stub.InvokeStream(asked, timeout=60)]
    return _of(last.result)


async def invoke_session(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
    stream = hub.grpc.stub.InvokeSession(timeout=60)
    call = request(tool, args, message=tool_service_pb2.SessionCall)
    call.call_id = "mine"
    await stream.write(tool_service_pb2.InvokeSessionRequest(calls=[call]))
    await stream.done_writing()
    events = [event async for message in stream for event in message.events]
    return _of(events[-1].result)


async def submit_job(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
    job = await hub.grpc.submit(tool, args)
    return _of((await hub.grpc.watched(job.job_id))[-1].result)


async def face(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
    short = tool.removeprefix("held/step.")
    kind, value = _of(await hub.grpc.invoke(short, args, metadata=((FACE_HEADER, "countbot"),)))
    return kind, json.loads(value) if isinstance(value, str) else value  # as text, as the older tool set has it


async def inner_call(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
    value = await hub.grpc.value(Inner.name, {"tool": tool, "args": args})
    return value["kind"], value.get("value")


def _of_mcp(result: Any) -> Answer:
    if result.is_error:
        return result.meta["toolhub/error"]["kind"], None
    return "", result.structured_content


def over_mcp(era: str) -> Enter:
    async def enter(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
        async with hub.client(era) as client:
            return _of_mcp(await client.call_tool(tool, dict(args)))

    return enter


async def mcp_call_tool(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
    async with hub.client(ERAS[1]) as client:
        return _of_mcp(await client.call_tool("call_tool", {"name": tool, "arguments": args}))


async def mcp_job_start(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
    async with hub.client(ERAS[1]) as client:
        started = await client.call_tool("job_start", {"name": tool, "arguments": args})
        if started.is_error:
            return _of_mcp(started)
        assert started.structured_content is not None
        awaited = {"job_id": started.structured_content["job_id"], "wait_s": 50}
        return _of_mcp(await client.call_tool("job_result", awaited))


async def mcp_run_program(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
    inputs = {"tool": tool, "args": dict(args)}
    async with hub.client(ERAS[1]) as client:
        ran = await client.call_tool("run_program", {"code": PROGRAM, "inputs": inputs})
        kind, value = _of_mcp(ran)
        return (kind, None) if kind else tuple(value["value"])


async def mcp_task_older(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
    async with wire(hub.url, ERAS[0]) as client:
        task = (await client.call(tool, args, task={}))["task"]
        return _of_wire(await client.result("tasks/result", {"taskId": task["taskId"]}))


async def mcp_task(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
    """Of a tool that may take long, which a client that knows tasks has run as a job."""
    async with wire(hub.url, ERAS[1]) as client:
        answer = await client.call(tool, args)
        return _of_wire(answer if "content" in answer else (await client.over(answer["taskId"]))["result"])


def _of_wire(result: Mapping[str, Any]) -> Answer:
    if result["isError"]:
        return result["_meta"]["toolhub/error"]["kind"], None
    return "", result["structuredContent"]


async def mcp_stdio(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
    """As `toolhub mcp` serves it by a hub of its own: the same server without HTTP."""
    local = Principal("local")
    endpoint = Endpoint(hub.grpc.hub.mcp.engine, lambda _: local)
    async with Client(endpoint.server) as client:
        return _of_mcp(await client.call_tool(tool, dict(args)))


PROGRAM: Final = """
try:
    answer = ["", await call(inputs["tool"], inputs["args"])]
except RuntimeError as error:
    answer = [error_of(error)["kind"], None]
answer
"""


def _refusal(error: MCPError) -> Answer:
    """Of what is hidden and of what is not there an error of the protocol discloses no more than that."""
    return (error.error.data or {}).get("toolhub/error", {"kind": "TOOL_NOT_FOUND"})["kind"], None


def _counted(text: str) -> Answer:
    return "", {"count": int(text)}


def prompts_get(era: str) -> Enter:
    async def enter(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
        async with hub.client(era) as client:
            try:
                got = await client.get_prompt(recorded("MCP prompts/get", tool), {key: str(args[key]) for key in args})
            except MCPError as error:
                return _refusal(error)
        return _counted(got.messages[0].content.text)  # type: ignore[union-attr]

    return enter


def resources_read(era: str) -> Enter:
    async def enter(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
        uri = "too://long" if args else "x://y"
        async with hub.client(era) as client:
            try:
                read = await client.read_resource(f"toolhub://sources/{_source(tool)}/{uri}")
            except MCPError as error:
                return _refusal(error)
        return _counted(read.contents[0].text)  # type: ignore[union-attr]

    return enter


async def resources_subscribe(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
    """The streams of 2026-07-28 have no other way to a resource (mcp_server/primitives/subscriptions.py)."""
    uri = "too://long" if args else "x://y"
    async with hub.client(ERAS[0]) as client:
        try:
            with pytest.warns(MCPDeprecationWarning):
                await client.session.subscribe_resource(f"toolhub://sources/{_source(tool)}/{uri}")
        except MCPError as error:
            return _refusal(error)
    return "", {"count": SubscribeStep.seen}


def completion_complete(era: str) -> Enter:
    async def enter(hub: McpHub, tool: str, args: Mapping[str, Any]) -> Answer:
        name = tool.partition(".")[2]
        ref = PromptReference(type="ref/prompt", name=f"{_source(tool)}/prompts.shown.{name}")
        async with hub.client(era) as client:
            try:
                done = await client.complete(ref, {"name": "x", "value": "far too long" if args else ""})
            except MCPError as error:
                return _refusal(error)
        values = done.completion.values
        return _counted(values[0]) if values else ("TOOL_NOT_FOUND", None)

    return enter


def _source(tool: str) -> str:
    return tool.partition(".")[2].lower()


OWN_TOOLS: Final = {
    "MCP prompts/get": "prompts.mine",
    "MCP resources/read": "resources.read",
    "MCP resources/subscribe": "resources.subscribe",
    "MCP completion/complete": "completion.complete",
}


def recorded(entrance: str, tool: str) -> str:
    """The tool that an entrance calls where the others call `tool`."""
    own = OWN_TOOLS.get(entrance.partition(",")[0])
    return tool if own is None else f"{_source(tool)}/{own}.{tool.partition('.')[2]}"


PRIMITIVE_ENTRANCES: Final[Mapping[str, Enter]] = {
    **{f"MCP prompts/get, {era}": prompts_get(era) for era in ERAS},
    **{f"MCP resources/read, {era}": resources_read(era) for era in ERAS},
    "MCP resources/subscribe": resources_subscribe,
    **{f"MCP completion/complete, {era}": completion_complete(era) for era in ERAS},
}
ENTRANCES: Final[Mapping[str, Enter]] = {
    "Invoke": invoke,
    "InvokeStream": invoke_stream,
    "InvokeSession": invoke_session,
    "SubmitJob": submit_job,
    "a face": face,
    "an inner call": inner_call,
    "MCP over HTTP, 2025-11-25": over_mcp(ERAS[0]),
    "MCP over HTTP, 2026-07-28": over_mcp(ERAS[1]),
    "MCP call_tool": mcp_call_tool,
    "MCP job_start": mcp_job_start,
    "MCP run_program": mcp_run_program,
    "MCP task, 2025-11-25": mcp_task_older,
    "MCP task, 2026-07-28": mcp_task,
    "MCP on stdio": mcp_stdio,
    **PRIMITIVE_ENTRANCES,
}
RPCS: Final = {
    "Invoke": "Invoke",
    "InvokeStream": "InvokeStream",
    "InvokeSession": "InvokeSession",
    "SubmitJob": "SubmitJob",
}
"""RPCs that take a call, and their rows."""
MAKERS: Final[Mapping[str, tuple[str, ...]]] = {
    "runtime/jobs/accept.py": ("SubmitJob", "MCP job_start"),
    "runtime/jobs/run.py": ("SubmitJob", "MCP job_start"),
    "mcp_server/calling.py": ("MCP job_start", "MCP task, 2025-11-25", "MCP task, 2026-07-28"),
    "runtime/inner_calls/calls.py": ("an inner call",),
    "runtime/inner_calls/log.py": ("an inner call",),
    "transport/tool_servicer.py": ("Invoke", "InvokeStream"),
    "transport/session.py": ("InvokeSession",),
    "transport/job_servicer.py": ("SubmitJob",),
    "faces/table.py": ("a face",),
    "mcp_server/convert_calls.py": (
        "MCP over HTTP, 2025-11-25",
        "MCP over HTTP, 2026-07-28",
        "MCP call_tool",
        "MCP on stdio",
        *PRIMITIVE_ENTRANCES,
    ),
    # By the handle of an inner call, and no other way.
    "tools/programs/program_calls.py": ("an inner call", "MCP run_program"),
    "tools/agent/loop.py": ("an inner call",),
    "tools/programs/foresight.py": ("an inner call",),
    "adapters/skill/plan/engine.py": ("an inner call",),
    "adapters/skill/plan/foresight.py": ("an inner call",),
    "adapters/skill/call_door.py": ("an inner call",),
}
"""Files that make calls, and the rows that try them."""

REFUSED: Final[Mapping[StepName, tuple[str, Mapping[str, Any], frozenset[str]]]] = {
    StepName.RESOLVE: ("held/step.absent", {}, frozenset({"TOOL_NOT_FOUND"})),
    StepName.VALIDATE_INPUT: ("held/step.plain", {"count": 0}, frozenset({"INPUT_SCHEMA_INVALID"})),
    # Where policy could allow no call of a tool, MCP says of it what it says of one that is not there.
    StepName.CHECK_POLICY: ("held/step.denied", {}, frozenset({"POLICY_DENIED", "TOOL_NOT_FOUND"})),
    StepName.TAKE_BUDGET: ("held/step.scarce", {}, frozenset({"RATE_LIMITED"})),
    StepName.EXECUTE: ("held/step.fails", {}, frozenset({"IO_ERROR"})),
    StepName.VALIDATE_OUTPUT: ("held/step.lies", {}, frozenset({"OUTPUT_SCHEMA_INVALID"})),
    StepName.ATTACH_EVIDENCE: ("held/step.notJson", {}, frozenset({"OUTPUT_SCHEMA_INVALID"})),
}


@asynccontextmanager
async def _hub(home: Path) -> AsyncIterator[McpHub]:
    async with mcp_hub(
        home, policy=POLICY, settings=SETTINGS, tools=[*TOOLS, Inner(), *(tool for tool, _, _ in PRIMITIVE_TOOLS)]
    ) as hub:
        catalog = hub.grpc.hub.toolbox.catalog
        for tool, source, primitive in PRIMITIVE_TOOLS:
            spec = catalog.get(tool.name)
            assert spec is not None
            catalog.unregister(spec.name)
            catalog.register(replace(spec, source=source, primitive=primitive))
        yield hub


@pytest.mark.promise("mcpserver.one-way-in")
async def test_every_step_holds_for_every_entrance(tmp_path: Path) -> None:
    async with _hub(tmp_path) as hub:
        for name in ("invoke", *OWN_TOOLS):  # the one that there is
            words = {"uri": "x", "prompt": "x", "argument": "x", "value": "x"} if name in OWN_TOOLS else {}
            tool = recorded(name, "held/step.scarce")
            schema = hub.grpc.hub.toolbox.catalog.get(tool)
            assert schema is not None
            known = str(schema.input_schema["properties"])
            assert (await invoke(hub, tool, {key: words[key] for key in words if f"'{key}'" in known}))[0] == ""
        failures = []
        for name, enter in ENTRANCES.items():
            for step, (tool, args, kinds) in REFUSED.items():
                called = recorded(name, tool)
                before = len(await hub.grpc.events(tool=called))
                kind, _ = await enter(hub, tool, args)
                if kind not in kinds:
                    failures.append(f"{name}: {step.value} let {tool} pass with {kind or 'a result'}")
                if len(await hub.grpc.events(tool=called)) <= before and step is not StepName.RESOLVE:
                    failures.append(f"{name}: {StepName.RECORD.value} has nothing of {called}")
            kind, value = await enter(hub, "held/step.plain", {})
            if (kind, value) != ("", {"count": 3}):
                failures.append(f"{name}: {StepName.APPLY_DEFAULTS.value} gave {kind or value}")
        assert not failures, "\n".join(failures)
    assert {*REFUSED, StepName.APPLY_DEFAULTS, StepName.RECORD} == set(StepName)


def test_no_entrance_is_without_a_row() -> None:
    services = (approval_service_pb2, artifact_service_pb2, audit_service_pb2, credential_service_pb2)
    taking = set()
    for module in (*services, job_service_pb2, registry_service_pb2, tool_service_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            taking |= {method.name for method in service.methods if _holds_a_call(method.input_type)}
    assert taking == set(RPCS)
    root = Path(toolhub_service.__file__).parent
    calls = re.compile(
        r"(?:invoker|_invoker|_calls|calls|behind\([^)]*\)|self\.invoker\))\.invoke\(|submission\.submit\("
    )
    making = {
        str(file.relative_to(root)) for file in root.rglob("*.py") if calls.search(file.read_text(encoding="utf-8"))
    }
    assert making == set(MAKERS), "a file that makes calls needs a row in MAKERS, and what it opens one in ENTRANCES"
    assert {row for rows in MAKERS.values() for row in rows} == set(ENTRANCES)


def _holds_a_call(message: Descriptor, depth: int = 3) -> bool:
    if message.full_name == "toolhub.v1.ToolIntent":
        return True
    return depth > 0 and any(
        field.message_type is not None and _holds_a_call(field.message_type, depth - 1) for field in message.fields
    )
