"""Lines of a program that are no messages, or are too much of one: what each costs, and what it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types import JSONRPCError, JSONRPCResponse

from toolhub_service.adapters.mcp.failures import Breakage
from toolhub_service.adapters.mcp.transports.repairs import take_remarks
from toolhub_service.adapters.mcp.transports.stdio import PipeProtocol
from toolhub_service.adapters.mcp.transports.value_counter import VALUES_MAX, ValueCounter

GOOD = b'{"jsonrpc":"2.0","id":9,"result":{"a":1}}'
DEEP = b"[" * 2_000 + b"]" * 2_000


def received(*lines: bytes, size: int = 10_000_000) -> tuple[list[Any], list[str]]:
    """What the client hears of these lines, in pieces of that size, and why the connection ended."""
    ended: list[str] = []
    wire = PipeProtocol(8 * 1024 * 1024, ended.append)
    text = b"".join(line + b"\n" for line in lines)
    for start in range(0, len(text), size):
        wire.pipe_data_received(1, text[start : start + size])
    messages = [item.message for item, _ in wire.inbox._held]
    return messages, ended


def failure_of(message: Any) -> tuple[object, str]:
    assert isinstance(message, JSONRPCError)
    return message.id, message.error.message


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":4,"result":{"n":' + DEEP + b"}}",
        b'{"jsonrpc":"2.0","id":4}',
        b'{"jsonrpc":"2.0","id":4,"error":"it broke"}',
        b'{"jsonrpc":"2.0","id":4,"result":{"n":nan}}',
        b'[{"jsonrpc":"2.0","id":4,"result":{}}]',
        b'{"jsonrpc":"2.0","id":4,"resu',
    ],
)
def test_an_answer_that_cannot_be_read_fails_its_call_at_once_and_no_other(line: bytes) -> None:
    (failed, good), ended = received(line, GOOD)
    assert failure_of(failed) == (4, Breakage.UNDECODABLE.value)
    assert isinstance(good, JSONRPCResponse)
    assert not ended


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"jsonrpc":"2.0","id":4,"result":{"n":NaN}}', None),
        (b'{"result":{"n":-Infinity},"jsonrpc":"2.0","id":4}', None),
        (b'{"jsonrpc":"2.0","id":4,"result":{"n":1e999}}', "1e999"),
        (b'{"jsonrpc":"2.0","id":4,"result":{"n":"\\ud83d half"}}', "\ufffd half"),
        (b'{"jsonrpc":"2.0","id":4,"result":{"n":"\xff"}}', "\ufffd"),
        (b'{"jsonrpc":"2.0","id":4,"result":{"n":"a\x01b"}}', "a\x01b"),
    ],
)
def test_an_answer_that_strict_parsers_refuse_reaches_its_call_with_a_remark(line: bytes, value: object) -> None:
    (answer, good), ended = received(line, GOOD)
    assert isinstance(answer, JSONRPCResponse)
    result, remarks = take_remarks(answer.result)
    assert (answer.id, result, len(remarks)) == (4, {"n": value}, 1)
    assert isinstance(good, JSONRPCResponse)
    assert not ended


@pytest.mark.parametrize(
    "line",
    [b"Starting up...", b"{]} this is no JSON", bytes(range(128, 256)), b'{"level":"info","id":4}', b"null", b"4"],
)
def test_other_output_of_a_program_fails_nothing(line: bytes) -> None:
    (good,), ended = received(line, GOOD)
    assert isinstance(good, JSONRPCResponse)
    assert not ended


def test_a_question_of_the_server_that_cannot_be_read_fails_no_call_of_the_same_number() -> None:
    messages, _ = received(b'{"jsonrpc":"2.0","id":4,"method":"roots/list","params":{"n":nan}}')
    assert messages == []


@pytest.mark.parametrize("before", [b'{"jsonrpc": "2.0", "id": 1, "resu', b"Loading the model... ", b'{"result":{"te'])
@pytest.mark.parametrize("message", [GOOD, b'{"result":{"a":1},"jsonrpc":"2.0","id":9}'])
def test_an_answer_behind_half_a_line_reaches_its_call(before: bytes, message: bytes) -> None:
    messages, _ = received(before + message)
    (good,) = [each for each in messages if isinstance(each, JSONRPCResponse)]
    assert (good.id, good.result) == (9, {"a": 1})


def test_integers_are_exact_at_any_size() -> None:
    number = 2**100 + 1
    (message,), _ = received(json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"n": number}}).encode())
    assert message.result == {"n": number}


@pytest.mark.parametrize("size", [11, 65_536, 10_000_000])
@pytest.mark.parametrize("unit", [b"1,", b"[],", b'{"a":1},', b'"a",', b'"\\",[",'])
def test_a_message_of_too_many_values_is_not_read_and_fails_its_call(unit: bytes, size: int) -> None:
    crowd = unit * (VALUES_MAX + 1)
    (failed, good), ended = received(b'{"jsonrpc":"2.0","id":4,"result":{"a":[' + crowd + b"0]}}", GOOD, size=size)
    assert failure_of(failed) == (4, Breakage.TOO_MANY.value)
    assert isinstance(good, JSONRPCResponse)
    assert not ended


def test_a_message_of_too_many_values_fails_its_call_by_an_id_at_its_end() -> None:
    crowd = b"[]," * VALUES_MAX
    (failed,), _ = received(b'{"result":{"a":[' + crowd + b'0]},"jsonrpc":"2.0","id":5}', size=65_536)
    assert failure_of(failed) == (5, Breakage.TOO_MANY.value)


@pytest.mark.parametrize("size", [1_001, 10_000_000])
def test_commas_and_brackets_of_long_texts_are_no_values(size: int) -> None:
    rows = '1,2,[3],{4}\\"x\\"\\\\\n' * VALUES_MAX
    assert not is_over_limit({"text": rows}, size)
    assert not is_over_limit({"text": json.dumps([{"a": 1, "b": [2]}] * VALUES_MAX)}, size)
    assert not is_over_limit([1] * VALUES_MAX, size)
    assert is_over_limit([1] * (VALUES_MAX + 1), size)


def is_over_limit(value: object, size: int) -> bool:
    counter, text = ValueCounter(), json.dumps(value).encode()
    return any(counter.take(text[start : start + size]) for start in range(0, len(text), size))
