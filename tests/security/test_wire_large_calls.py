"""What one caller sends never holds up another: while a large call is read, the calls of others are answered.

Counted, not timed: the answers that a victim gets between the sending and the answer of one attack, and the objects
that a parser would have had to make for it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import orjson
import pytest

from tests.hub import OPEN_POLICY, RunningHub, request, running_hub
from tests.rpc.principals import BY_KEY, Principals
from toolhub.v1 import call_pb2, error_pb2, job_service_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.cli.serve import SWITCH_INTERVAL_S
from toolhub_service.domain.call import Call
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.ports import Adapter
from toolhub_service.domain.tool import ArgumentRole, GuardedArgument, ToolSpec
from toolhub_service.guards.paths import check_path
from toolhub_service.guards.secrets import Redactor
from toolhub_service.policy import arguments
from toolhub_service.runtime import pipeline
from toolhub_service.runtime.approvals import binding
from toolhub_service.runtime.approvals.show_arguments import show_arguments
from toolhub_service.runtime.artifacts import references as artifact_references
from toolhub_service.runtime.steps import validate_input
from toolhub_service.schema.tool_schemas import ToolSchemas
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput
from toolhub_service.transport import envelope, field_count

SELECT = "core/util.json.select"
_AROUND = (b'{"path":"a","json":', b"}")


def document(value: bytes) -> bytes:
    return value.join(_AROUND)


TOO_MANY: dict[str, Callable[[], bytes]] = {
    "nested arrays": lambda: b"[" + b",".join([b"[" * 50 + b"]" * 50] * 40_000) + b"]",
    "flat arrays": lambda: b"[" + b",".join([b"[]"] * 1_390_000) + b"]",
    "objects": lambda: b"[" + b",".join([b'{"a":1}'] * 460_000) + b"]",
    "short names": lambda: b"{" + b",".join([b'"%x":1' % number for number in range(400_000)]) + b"}",
    "short strings": lambda: b'["' + b'","'.join([b"x"] * 999_000) + b'"]',
    "short strings of escapes": lambda: b'["' + b'","'.join([b'\\"\\\\'] * 560_000) + b'"]',
}
NUMBERS = document(b"[" + b",".join([b"0.12345"] * 400_000) + b"]")


@pytest.fixture(autouse=True)
def interval_of_a_served_hub() -> Iterator[None]:
    """Of handing on the interpreter's lock, which `toolhub serve` sets for its process."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    yield
    sys.setswitchinterval(before)


async def victims_beside(hub: RunningHub, attack: Callable[[], Any]) -> tuple[Any, int]:
    """The result of the attack, and how many calls of another were answered in the meantime."""
    small = request(SELECT, {"path": "a", "json": {"a": 1}})
    attacking = asyncio.ensure_future(attack())
    answered = 0
    while not attacking.done():
        await hub.stub.Invoke(small)
        answered += 1
    return await attacking, answered


@pytest.mark.parametrize("shape", TOO_MANY)
async def test_arguments_of_too_many_parts_are_refused_before_they_are_parsed(
    tmp_path: Path, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails at befa727: all of them were parsed on the event loop, 0.1 to 2.7 s in which nobody else was answered."""
    parsed: list[int] = []
    orjson_loads = orjson.loads

    def loads(data: bytes) -> Any:
        parsed.append(len(data))
        return orjson_loads(data)

    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        monkeypatch.setattr("toolhub_service.schema.strict_json.orjson.loads", loads)
        result = await hub.invoke(SELECT, args_json=document(TOO_MANY[shape]()))
    assert result.error.kind == error_pb2.ERROR_KIND_INVALID_INPUT
    assert result.error.details["reason"] == "too_many_values"
    assert "artifact" in result.error.message
    assert max(parsed, default=0) < 1_000_000


@pytest.mark.parametrize("entrance", ["Invoke", "InvokeStream", "InvokeSession", "SubmitJob", "dry run"])
async def test_others_are_answered_while_many_arguments_are_read(tmp_path: Path, entrance: str) -> None:
    """Fails at befa727: the arguments were read, checked and written in one go, beside which no call was answered."""
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        attacks: dict[str, Callable[[], Any]] = {
            "Invoke": lambda: hub.invoke(SELECT, args_json=NUMBERS),
            "InvokeStream": lambda: streamed(hub),
            "InvokeSession": lambda: in_session(hub),
            "SubmitJob": lambda: submitted(hub),
            "dry run": lambda: hub.stub.Invoke(request(SELECT, args_json=NUMBERS, mode=call_pb2.INVOKE_MODE_DRY_RUN)),
        }
        _, answered = await victims_beside(hub, attacks[entrance])
    assert answered >= 8


async def streamed(hub: RunningHub) -> None:
    async for _ in hub.stub.InvokeStream(request(SELECT, args_json=NUMBERS, message=pb.InvokeStreamRequest)):
        pass


async def submitted(hub: RunningHub) -> None:
    intent = call_pb2.ToolIntent(tool=SELECT, args_json=NUMBERS.replace(b'"path":"a",', b""), purpose="a test")
    await hub.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(intent=intent))


async def in_session(hub: RunningHub) -> None:
    call = request(SELECT, args_json=NUMBERS, message=pb.SessionCall)
    call.call_id = "large"
    session = hub.stub.InvokeSession()
    await session.write(pb.InvokeSessionRequest(calls=[call]))
    await session.done_writing()
    async for _ in session:
        pass


@pytest.mark.parametrize("shape", ["text", "table"])
async def test_one_large_call_of_another_waits_for_its_turns_alone(tmp_path: Path, shape: str) -> None:
    """Fails at befa727: it waited for all 16 that had come before it."""
    honest = {"text": {"a": "x" * 1_000_000}, "table": {"a": [[n, f"row {n}"] for n in range(20_000)]}}[shape]
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings=BY_KEY) as hub:
        people = Principals(hub, names=("attacker", "victim"))
        attack, answered = request(SELECT, args_json=NUMBERS), 0

        async def attacks() -> None:
            nonlocal answered
            while True:
                response = await hub.stub.Invoke(attack, metadata=people.at(hub, "attacker").metadata)
                answered += response.result.ok

        attacking = [asyncio.create_task(attacks()) for _ in range(16)]
        while not answered:
            await hub.invoke("core/util.time.now", metadata=people.at(hub, "victim").metadata)
        before = answered
        result = await hub.invoke(SELECT, {"path": "b", "json": honest}, metadata=people.at(hub, "victim").metadata)
        assert result.ok
        assert answered - before <= 12
        for task in attacking:
            task.cancel()
        await asyncio.gather(*attacking, return_exceptions=True)


FEW_BUT_COSTLY: dict[str, tuple[str, dict[str, Any]]] = {
    "json.select by JMESPath": (SELECT, {"path": "a[].[@, @][][].[@, @][]", "json": {"a": [[[1] * 10] * 30] * 20}}),
    "json.select by JSONPath": (
        SELECT,
        {"path": "$..[?$..[?@ == 7]]", "json": [[1] * 30] * 20, "language": "jsonpath"},
    ),
    "template.render": (
        "core/util.template.render",
        {"template": "{{#a}}{{#a}}{{#a}}{{#a}}{{b}}{{/a}}{{/a}}{{/a}}{{/a}}", "data": {"a": [1] * 20}},
    ),
}


@pytest.mark.parametrize("what", FEW_BUT_COSTLY)
async def test_others_are_answered_while_a_small_call_takes_many_steps(tmp_path: Path, what: str) -> None:
    """Fails at befa727: 0.1 to 0.4 s in which nobody else was answered."""
    tool, args = FEW_BUT_COSTLY[what]
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        result, answered = await victims_beside(hub, lambda: hub.invoke(tool, args))
    assert result.ok or "steps" in result.error.message
    assert answered >= 4


async def test_a_large_call_is_made_ready_for_a_person_beside_other_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails at befa727: secrets were sought in all of its arguments on the event loop, 0.7 s for 4 MiB."""
    shown_in: list[threading.Thread] = []

    def shows(args: JsonValue, redactor: Redactor) -> str:
        shown_in.append(threading.current_thread())
        return show_arguments(args, redactor)

    monkeypatch.setattr(binding, "show_arguments", shows)
    rule = "rules:\n  - {id: ask, effect: REQUIRE_APPROVAL, tools: [core/util.template.render], reason: Shared.}\n"
    asked = {"template": "", "data": [[n, f"row {n}"] for n in range(20_000)]}
    async with running_hub(tmp_path, policy=OPEN_POLICY + rule) as hub:
        result = await hub.invoke("core/util.template.render", asked)
    assert result.error.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED
    assert len(shown_in) == 1
    assert threading.main_thread() not in shown_in


async def test_the_arguments_of_a_large_job_are_checked_beside_other_calls_when_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails at befa727: once more on the event loop, 0.1 s for 4 MiB."""
    checked_in: list[threading.Thread] = []

    def validate(call: Call, spec: ToolSpec, schemas: ToolSchemas, adapter: Adapter) -> None:
        checked_in.append(threading.current_thread())
        validate_input(call, spec, schemas, adapter)

    monkeypatch.setattr(pipeline, "validate_input", validate)
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        job = await hub.submit(SELECT, {"path": "b", "json": {"a": [[n] for n in range(20_000)]}})
        *_, last = await hub.watched(job.job_id)
    assert last.result.ok
    assert len(checked_in) == 2
    assert threading.main_thread() not in checked_in


class ManyPaths(Tool["ManyPaths.In", "ManyPaths.Out"]):
    """Takes as many paths as there are."""

    name = "acme/files.look"
    description = "Look at files."
    guarded = (GuardedArgument("paths", ArgumentRole.PATH_READ),)

    class In(ToolInput, frozen=True):
        paths: list[str]

    class Out(ToolOutput, frozen=True):
        count: int

    async def run(self, args: In, context: ToolContext) -> Out:
        return self.Out(count=len(args.paths))


async def test_many_paths_are_checked_beside_other_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails at befa727: 4 us each on the event loop, 1 s for 4 MiB."""
    checked_in: set[threading.Thread] = set()

    def checks(path: str) -> str:
        checked_in.add(threading.current_thread())
        return check_path(path)

    monkeypatch.setattr(arguments, "check_path", checks)
    paths = [f"folder/{number}" for number in range(20_000)]
    async with running_hub(tmp_path, policy=OPEN_POLICY, tools=[ManyPaths()]) as hub:
        assert await hub.value(ManyPaths.name, {"paths": paths}) == {"count": 20_000}
        refused = await hub.invoke(ManyPaths.name, {"paths": [*paths, "../outside"]})
    assert refused.error.kind == error_pb2.ERROR_KIND_PATH_OUTSIDE_SANDBOX
    assert threading.main_thread() not in checked_in


async def test_references_to_artifacts_are_sought_in_many_values_beside_other_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails at befa727: one mention of `$artifact` had 400,000 numbers walked on the event loop."""
    sought_in: set[threading.Thread] = set()
    references = artifact_references._references

    def seeks(value: JsonValue, path: tuple[str | int, ...]) -> Iterator[str]:
        sought_in.add(threading.current_thread())
        return references(value, path)

    monkeypatch.setattr(artifact_references, "_references", seeks)
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        many = {"path": "b", "json": {"a": list(range(20_000)), "b": "$artifact"}}
        assert await hub.value(SELECT, many) == {"value": "$artifact"}
    assert sought_in
    assert threading.main_thread() not in sought_in


async def test_an_answer_of_many_values_leaves_as_json_in_any_encoding(tmp_path: Path) -> None:
    """Fails at befa727: a Struct of 130,000 values was made on the event loop, for 0.4 s."""
    encoding = call_pb2.RESULT_ENCODING_STRUCT
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        few, many = [
            await hub.invoke(SELECT, {"path": "a", "json": {"a": list(range(size))}}, result_encoding=encoding)
            for size in (14_000, 16_000)
        ]
        plan = await hub.plan(SELECT, {"path": "a", "json": list(range(16_000))}, result_encoding=encoding)
    assert len(few.result_struct.fields["value"].list_value.values) == 14_000
    assert orjson.loads(many.result_json) == {"value": list(range(16_000))}
    assert len(orjson.loads(plan.args_json)["json"]) == 16_000


async def test_others_are_answered_while_secrets_are_hidden_in_a_large_plan(tmp_path: Path) -> None:
    """Fails at befa727: five seconds for 4 MiB in which nobody else was answered."""
    secrets = document(b'"' + b"password=abcdefgh " * 10_000 + b'"')
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        dry_run = request(SELECT, args_json=secrets, mode=call_pb2.INVOKE_MODE_DRY_RUN)
        response, answered = await victims_beside(hub, lambda: hub.stub.Invoke(dry_run))
    assert b"abcdefgh" not in response.plan.args_json
    assert answered >= 8


async def test_a_struct_of_too_many_fields_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    """Fails at befa727: a million empty values were parsed and turned into a list, for 1 to 3 s."""
    values = _field(0x0A, _field(0x0A, b"a") + _field(0x12, _field(0x32, b"\x0a\x00" * 1_000_000)))
    raw = _field(0x0A, _field(0x0A, SELECT.encode()) + _field(0x1A, values))
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        invoke: Any = hub.channel.unary_unary("/toolhub.v1.ToolService/Invoke", request_serializer=bytes)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await invoke(raw)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "args_json" in str(refused.value.details())


def test_the_fields_of_a_message_are_counted_with_those_inside_of_it() -> None:
    message = request(SELECT, args_struct={"a": [1, {"b": True}]}, request_id="r")
    data = message.SerializeToString()
    counted = next(most for most in range(1_000) if not field_count.has_more_fields(data, message.DESCRIPTOR, most))
    # intent: tool, purpose, args_struct with 2 members (2 fields each), 3 values in them, a list and a struct around,
    # 2 items; context: request_id.
    assert counted == 18
    text = request(SELECT, args_json=b"\n" * 100_000).SerializeToString()
    assert not field_count.has_more_fields(text, message.DESCRIPTOR, 10)


async def test_a_session_message_of_too_many_calls_is_refused_by_its_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails at befa727: each of the empty calls was judged and distinguished, 57 us each: 1.8 s for 64 KiB."""
    checked: list[Any] = []
    monkeypatch.setattr(envelope, "_place", checked.append)
    message = pb.InvokeSessionRequest.FromString(b"\x0a\x00" * 30_000)
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        session = hub.stub.InvokeSession()
        await session.write(message)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in session:
                pass
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(checked) < 1_000


async def test_a_caller_whose_rate_is_used_up_is_refused_before_its_arguments_are_read(tmp_path: Path) -> None:
    """Fails at befa727: a limit of one call held nobody back from having 4 MiB parsed again and again."""
    limits = "limits:\n  - id: one\n    principals: ['*']\n    tools: ['*']\n    rate_per_s: 0.001\n    burst: 1\n"
    async with running_hub(tmp_path, policy=OPEN_POLICY + limits) as hub:
        assert (await hub.invoke(SELECT, {"path": "a", "json": {}})).ok
        result = await hub.invoke(SELECT, args_json=b"[" * 4_000_000)
    assert result.error.kind == error_pb2.ERROR_KIND_RATE_LIMITED


def _field(tag: int, content: bytes) -> bytes:
    """One length-delimited field on the wire."""
    size, length = len(content), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([tag]) + length + bytes([size]) + content
