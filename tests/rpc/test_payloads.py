"""JSON both ways: exact bytes, and Struct for people and transcoders."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict

from tests.hub import RunningHub, request, running_hub
from tests.rpc.sample_tools import Counts, Echo
from toolhub.v1 import call_pb2, error_pb2

BEYOND = 2**53
TOOL = Counts.name


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path, tools=[Counts(), Echo()]) as running:
        yield running


@pytest.mark.promise("contract.exact-numbers")
@pytest.mark.parametrize("number", [BEYOND + 1, -BEYOND - 1, 2**62, 2**63 - 2, 0.1, 1e300])
async def test_numbers_travel_exactly_as_json_bytes(hub: RunningHub, number: float) -> None:
    result = await hub.invoke(TOOL, args_json=json.dumps({"number": number}).encode())
    assert json.loads(result.result_json)["number"] == number
    assert not result.HasField("result_struct")


@pytest.mark.promise("contract.exact-numbers")
@pytest.mark.parametrize("number", [BEYOND, -BEYOND, BEYOND * 4, 1e16, 1e300])
async def test_number_that_a_struct_may_have_rounded_is_refused(hub: RunningHub, number: float) -> None:
    result = await hub.invoke(TOOL, args_struct={"number": number})
    assert result.error.kind == error_pb2.ERROR_KIND_INVALID_INPUT
    assert "args_json" in result.error.message


async def test_whole_number_in_a_struct_is_an_integer(hub: RunningHub) -> None:
    result = await hub.invoke(TOOL, args_struct={"number": 41}, result_encoding=call_pb2.RESULT_ENCODING_JSON)
    assert result.result_json == b'{"next":42,"number":41}'


@pytest.mark.promise("contract.answer-encoding")
async def test_answer_comes_in_the_encoding_of_the_question(hub: RunningHub) -> None:
    asked_in_struct = await hub.invoke(TOOL, args_struct={"number": 1})
    assert MessageToDict(asked_in_struct.result_struct) == {"number": 1.0, "next": 2.0}
    assert not asked_in_struct.result_json
    asked_in_json = await hub.invoke(TOOL, {"number": 1})
    assert asked_in_json.result_json == b'{"next":2,"number":1}'


@pytest.mark.parametrize(
    ("encoding", "in_struct"), [(call_pb2.RESULT_ENCODING_STRUCT, True), (call_pb2.RESULT_ENCODING_JSON, False)]
)
async def test_answer_comes_in_the_encoding_that_was_asked_for(hub: RunningHub, encoding: int, in_struct: bool) -> None:
    for asked in ({"args_json": b'{"number":1}'}, {"args_struct": {"number": 1}}):
        result = await hub.invoke(TOOL, result_encoding=encoding, **asked)
        assert result.HasField("result_struct") is in_struct


@pytest.mark.promise("contract.answer-encoding")
async def test_result_that_a_struct_cannot_hold_arrives_as_json(hub: RunningHub) -> None:
    result = await hub.invoke(TOOL, args_struct={"number": BEYOND - 1})
    assert json.loads(result.result_json) == {"number": BEYOND - 1, "next": BEYOND}
    assert not result.HasField("result_struct")


async def test_plan_shows_the_arguments_in_the_encoding_of_the_question(hub: RunningHub) -> None:
    assert (await hub.plan(TOOL, {"number": BEYOND + 1})).args_json == b'{"number":9007199254740993}'
    assert MessageToDict((await hub.plan(TOOL, args_struct={"number": 7})).args_struct) == {"number": 7.0}


@pytest.mark.promise("contract.strict-json")
@pytest.mark.parametrize(
    "args",
    [
        b'{"number":NaN}',
        b'{"number":Infinity}',
        b'{"number":1,"number":2}',
        b'{"number":1',
        b"\xff\xfe",
        b'{"number":01}',
        b'{"text":"\\ud800"}',
        b'{"number":' + b"[" * 65 + b"]" * 65 + b"}",
        b"[1]",
        b'"text"',
        b"null",
    ],
)
async def test_json_is_read_strictly_and_refused_as_a_result(hub: RunningHub, args: bytes) -> None:
    """A bad argument is the model's mistake, not a broken RPC: it is answered, evidenced and recorded."""
    result = await hub.invoke(TOOL, args_json=args)
    assert result.error.kind == error_pb2.ERROR_KIND_INVALID_INPUT
    assert len(result.error.message) > 20
    (settled,) = await hub.events(call_id=result.call_id)
    assert settled.event.outcome == "INVALID_INPUT"


async def test_no_arguments_mean_an_empty_object(hub: RunningHub) -> None:
    assert (await hub.invoke(Echo.name, args_json=b"")).ok


async def test_text_of_any_language_comes_back_as_it_went(hub: RunningHub) -> None:
    for text in ("Grüße", "工具中心", "👩‍🚀\u0000\u2028", "a\tb\nc"):
        assert (await hub.value(Echo.name, {"text": text}))["text"] == text
        in_struct = await hub.invoke(Echo.name, args_struct={"text": text})
        assert MessageToDict(in_struct.result_struct)["text"] == text


@pytest.mark.promise("bounds.requests")
async def test_request_larger_than_the_bound_is_refused_and_the_hub_lives(hub: RunningHub) -> None:
    import grpc

    asked = request(Echo.name, args_json=b'{"text":"' + b"x" * (5 * 1024 * 1024) + b'"}')
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await hub.stub.Invoke(asked, timeout=60)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await hub.invoke(Echo.name, {"text": "still here"})).ok
