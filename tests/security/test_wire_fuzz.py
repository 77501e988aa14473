"""Arguments made from each tool's own schema, valid, nearly valid and wild, through a serving hub.

Every answer is a ToolResult of a typed kind, never INTERNAL, and no message names a path of the host or the words of an
exception.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hub import RunningHub, running_hub
from toolhub.v1 import approval_service_pb2, artifact_service_pb2, call_pb2, error_pb2, job_service_pb2

POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: ["read:*", "write:*", "execute:command", network, "danger:destructive"]}
destructive_requires_plan: false
roles:
  - {principals: [local], roles: [agent, approver]}
egress:
  - {hosts: ["127.0.0.1"], ports: [9], methods: [GET, HEAD, POST, PUT, DELETE], cidrs: [127.0.0.0/8]}
commands:
  - {preset: safe}
"""
EXAMPLES = 50
"""A tool and a way of making arguments: a call each, some 2,000 in all."""
_HOST_WORDS = re.compile(
    r"Traceback|File \"|line \d+, in |site-packages|\.py\b|Errno|errno 0|<class|object at 0x|NoneType|asyncio|msgspec"
)
_SPITEFUL = (
    *(
        "",
        ".",
        "a",
        "a/b",
        "../x",
        "/etc/passwd",
        "a\0b",
        "\u202e",
        "é" * 300,
        "notes/today.md",
        "a" * 5_000,
        "𝕏",
        "-1",
    ),
    *("$..a", "@", "{{x}}", "[", "*", "http://127.0.0.1:9/", "https://[::1]", "UTC", "utf-8", "utf-16", "ls", "cat a"),
)
_TEXTS = st.sampled_from(_SPITEFUL) | st.text(max_size=40)
_NUMBERS = st.sampled_from([0, 1, -1, 2**31, 2**53, 2**63, 2**64, -(2**63), 1e308, 0.5, 5e-324, 10**30]) | st.integers()
_SCALARS = st.none() | st.booleans() | _NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS
_WILD = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3), max_leaves=8
)


@dataclass
class Serving:
    """A hub on a loop of its own thread, so that hypothesis may stay synchronous."""

    hub: RunningHub
    loop: asyncio.AbstractEventLoop
    schemas: Mapping[str, dict[str, Any]]
    kinds: set[str] = field(default_factory=set)

    def invoke(self, tool: str, args: Mapping[str, Any], mode: int) -> Any:
        return asyncio.run_coroutine_threadsafe(self._invoke(tool, args, mode), self.loop).result(30)

    async def _invoke(self, tool: str, args: Mapping[str, Any], mode: int) -> Any:
        if mode == call_pb2.INVOKE_MODE_DRY_RUN:
            return await self.hub.plan(tool, args, request_id="fuzz")
        return await self.hub.invoke(tool, args, request_id="fuzz", budget={"timeout_s": 2.0, "max_retries": 0})


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("fuzz")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = AsyncExitStack()

    def on_loop(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    hub = on_loop(stack.enter_async_context(running_hub(folder, policy=POLICY)))
    schemas = {spec.name: dict(spec.input_schema) for spec in hub.hub.toolbox.catalog.all()}
    try:
        yield Serving(hub, loop, schemas)
    finally:
        on_loop(stack.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def fitting(schema: Mapping[str, Any], root: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Values that mostly fit the schema: its types, its enums, its edges."""
    if "$ref" in schema:
        return fitting(root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], root)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([fitting(branch, root) for branch in schema["anyOf"]])
    if "properties" in schema:
        return of_properties(schema, root)
    return of_type(schema, root)


def of_type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Values of the schema's type; of any when it names none."""
    edges = [schema[key] for key in ("minimum", "maximum", "default") if key in schema]
    inner = schema.get("additionalProperties")
    numbers = st.sampled_from([*edges, 1]) | _NUMBERS
    strategies = {
        "object": st.dictionaries(_TEXTS, fitting(inner, root) if isinstance(inner, dict) else _WILD, max_size=3),
        "array": st.lists(fitting(schema["items"], root) if "items" in schema else _WILD, max_size=4),
        "string": _TEXTS,
        "integer": numbers,
        "number": numbers,
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return strategies.get(schema.get("type", ""), _WILD)


def of_properties(schema: Mapping[str, Any], root: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: fitting(inner, root) for name, inner in schema["properties"].items()}
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: value for name, value in fields.items() if name in required},
        optional={name: value for name, value in fields.items() if name not in required},
    )


@st.composite
def calls(draw: st.DrawFn, tool: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that fit, and now and then one that is replaced, added or left out."""
    args: dict[str, Any] = dict(draw(of_properties(schema, schema)))
    match draw(st.integers(0, 7)):
        case 0 if args:
            args[draw(st.sampled_from(sorted(args)))] = draw(_WILD)
        case 1:
            args[draw(_TEXTS)] = draw(_WILD)
        case 2 if args:
            del args[draw(st.sampled_from(sorted(args)))]
    return args


def tools() -> list[str]:
    """Names of all built-in tools, without starting a hub."""
    from tests.hub import settings_of
    from toolhub_service.app.offline import NoJobs
    from toolhub_service.app.wiring.deps import SystemClock
    from toolhub_service.app.wiring.tools import open_toolbox
    from toolhub_service.guards.secrets import Redactor

    toolbox = open_toolbox(settings_of(Path("unused")), SystemClock(), Redactor(), NoJobs())
    return [spec.name for spec in toolbox.catalog.all()]


def check(answer: Any, args: Mapping[str, Any], folder: str) -> None:
    """What a caller is told is typed and speaks of the call, never of the host or of an exception."""
    error = (
        answer.error if hasattr(answer, "error") else next((step.error for step in answer.steps if not step.ok), None)
    )
    if error is None or not error.kind:
        return
    assert error.kind != error_pb2.ERROR_KIND_INTERNAL, (args, error)
    assert dict(error.details).get("cause") != "INTERNAL", (args, error)
    assert error.message.strip(), args
    shown = f"{error.message} {error.details} {error.violations}"
    assert folder not in shown, shown
    sent = json.dumps(args, ensure_ascii=False)
    for word in _HOST_WORDS.findall(shown):
        assert word in sent, (word, shown)


@pytest.mark.promise("pipeline.always-a-result")
@pytest.mark.parametrize("tool", tools())
def test_any_arguments_are_answered_by_a_typed_result(serving: Serving, tool: str) -> None:
    schema = serving.schemas[tool]
    modes = st.sampled_from([call_pb2.INVOKE_MODE_EXECUTE, call_pb2.INVOKE_MODE_EXECUTE, call_pb2.INVOKE_MODE_DRY_RUN])
    folder = str(serving.hub.workspace("fuzz").parent.parent.parent)
    outcomes: set[bool] = set()

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(calls(tool, schema), modes)
    def attack(args: dict[str, Any], mode: int) -> None:
        answer = serving.invoke(tool, args, mode)
        check(answer, args, folder)
        outcomes.add(bool(answer.evidence) if mode == call_pb2.INVOKE_MODE_EXECUTE else bool(answer.steps))

    attack()
    assert outcomes == {True}, "every answer has evidence, every plan has steps"


MESSAGES: dict[str, type[Message]] = {
    "toolhub.v1.JobService/SubmitJob": job_service_pb2.SubmitJobRequest,
    "toolhub.v1.JobService/GetJob": job_service_pb2.GetJobRequest,
    "toolhub.v1.JobService/ListJobs": job_service_pb2.ListJobsRequest,
    "toolhub.v1.JobService/CancelJob": job_service_pb2.CancelJobRequest,
    "toolhub.v1.ApprovalService/ListApprovals": approval_service_pb2.ListApprovalsRequest,
    "toolhub.v1.ApprovalService/GetApproval": approval_service_pb2.GetApprovalRequest,
    "toolhub.v1.ApprovalService/DecideApproval": approval_service_pb2.DecideApprovalRequest,
    "toolhub.v1.ArtifactService/GetArtifact": artifact_service_pb2.GetArtifactRequest,
}
_FINE = frozenset({grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND})
_IDS = st.sampled_from(["a", "job_0", "apr_0", "art_0", "x:log", "a/../b", "-", "a" * 128]) | _TEXTS


@st.composite
def messages(draw: st.DrawFn, kind: Any, depth: int = 0) -> dict[str, Any]:
    """Fields of a message as JSON: mostly plausible, some wild, some left out."""
    made: dict[str, Any] = {}
    for field_of in kind.fields:
        if not draw(st.booleans()):
            continue
        value = draw(_of_field(field_of, depth))
        made[field_of.name] = [value] * draw(st.integers(0, 3)) if field_of.is_repeated else value
    return made


def _of_field(of: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if of.message_type is not None:
        return (
            messages(of.message_type, depth + 1)
            if depth < 3 and of.message_type.file.package == "toolhub.v1"
            else (st.just({}))
        )
    if of.enum_type is not None:
        return st.integers(-1, len(of.enum_type.values) + 1)
    numbers = st.sampled_from([0, 1, -1, 7, 2**31 - 1])
    kinds = {of.CPPTYPE_STRING: _IDS, of.CPPTYPE_BOOL: st.booleans(), of.CPPTYPE_DOUBLE: numbers}
    return kinds.get(of.cpp_type, numbers)


@pytest.mark.parametrize("path", sorted(MESSAGES))
def test_any_request_about_long_work_is_answered_by_a_status_that_says_what_is_wrong(
    serving: Serving, path: str
) -> None:
    kind = MESSAGES[path]
    folder = str(serving.hub.workspace("fuzz").parent.parent.parent)

    async def ask(data: bytes) -> tuple[grpc.StatusCode, str]:
        try:
            rpc: Any = serving.hub.channel.unary_unary(f"/{path}")
            await rpc(data, timeout=60)
        except grpc.aio.AioRpcError as refused:
            return refused.code(), refused.details() or ""
        return grpc.StatusCode.OK, ""

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(messages(kind.DESCRIPTOR) | st.binary(max_size=60))
    def attack(made: dict[str, Any] | bytes) -> None:
        data = made if isinstance(made, bytes) else _bytes_of(kind, made)
        code, message = asyncio.run_coroutine_threadsafe(ask(data), serving.loop).result(30)
        assert code in _FINE, (made, code, message)
        assert folder not in message
        assert not _HOST_WORDS.search(message) or _HOST_WORDS.search(str(made)), (made, message)

    attack()


def _bytes_of(kind: type[Message], made: dict[str, Any]) -> bytes:
    """What JSON cannot say of the message is left out."""
    message = kind()
    with suppress(ParseError, ValueError):
        ParseDict(made, message, ignore_unknown_fields=True)
    return message.SerializeToString()
