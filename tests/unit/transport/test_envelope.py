"""What the rules compiled from the contract let pass keeps every rule of it, at each edge and by chance."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import protovalidate
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from toolhub.v1 import (
    approval_service_pb2,
    artifact_service_pb2,
    audit_service_pb2,
    call_pb2,
    job_service_pb2,
    registry_service_pb2,
    tool_service_pb2,
)
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.transport.envelope import RuleBook

VALIDATOR = protovalidate.Validator()
RULES = RuleBook()
ID = "A" + "b" * 127
IDS = ("request_id", "task_id", "session_id", "agent_id", "user_id")
SERVICES = (
    tool_service_pb2,
    job_service_pb2,
    approval_service_pb2,
    artifact_service_pb2,
    registry_service_pb2,
    audit_service_pb2,
)
REQUESTS = [
    method.input_type
    for module in SERVICES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def a_call(*, context: dict[str, Any] | None = None, intent: dict[str, Any] | None = None, **fields: Any) -> Any:
    asked = call_pb2.ToolIntent(**{"tool": "core/fs.stat", "args_json": b"{}", **(intent or {})})
    around = None if context is None else call_pb2.ExecContext(**context)
    return pb.InvokeRequest(intent=asked, context=around, **fields)


def with_struct() -> Any:
    call = pb.InvokeRequest(intent=call_pb2.ToolIntent(tool="core/fs.stat"))
    call.intent.args_struct.update({"path": "a", "deep": [{"b": 1}]})
    return call


@pytest.mark.parametrize(
    "request_",
    [
        a_call(),
        with_struct(),
        a_call(intent={"tool": "x" * 256, "purpose": "€" * 1_365, "args_json": b"x" * 4_194_304}),
        a_call(intent={"tool": "🦜" * 256, "args_json": b""}),
        a_call(intent={"idempotency_key": ID}, plan_digest="p" * 512, approval_id=ID),
        a_call(context={}),
        a_call(context=dict.fromkeys(IDS, ID)),
        a_call(context={"user_id": "u", "task_id": "a.b_c:d@e/f+g-h"}),
        a_call(mode=call_pb2.INVOKE_MODE_DRY_RUN, result_encoding=call_pb2.RESULT_ENCODING_STRUCT),
        pb.ListToolsRequest(page_size=5, page_token="x" * 1_024),
        pb.InvokeSessionRequest(calls=[pb.SessionCall(intent=call_pb2.ToolIntent(tool="a/b.c"), call_id=ID)] * 256),
    ],
    ids=lambda request_: str(request_)[:40],
)
def test_ordinary_requests_are_seen_to_keep_every_rule(request_: Any) -> None:
    """Or each of them would cost what protovalidate does."""
    assert RULES.keeps(request_)
    assert not VALIDATOR.collect_violations(request_)


@pytest.mark.parametrize(
    "request_",
    [
        pb.InvokeRequest(),
        a_call(intent={"tool": ""}),
        a_call(intent={"tool": "x" * 257}),
        *[a_call(intent={"tool": f"a{char}b"}) for char in "\n\t\x1b\x7f\x9b\u061c\u200f\u2028\u202e\u2069\U000e0041"],
        a_call(intent={"args_json": b"x" * 4_194_305}),
        a_call(intent={"purpose": "€" * 1_366}),
        a_call(intent={"idempotency_key": "-"}),
        a_call(mode=3),
        a_call(mode=-1),
        a_call(result_encoding=3),
        a_call(plan_digest="§"),
        a_call(plan_digest="p" * 513),
        a_call(approval_id="-"),
        *[a_call(context={name: wrong}) for name in IDS for wrong in (ID + "b", "a b", "a\nb", "a\n", "\n", ".a", "ä")],
        a_call(context={"permissions": [""]}),
        a_call(context={"labels": {"": ""}}),
        a_call(context={"budget": call_pb2.CallBudget(timeout=Duration(seconds=-1))}),
    ],
    ids=str,
)
def test_request_that_breaks_a_rule_never_passes(request_: Any) -> None:
    assert VALIDATOR.collect_violations(request_)
    assert not RULES.keeps(request_)


@pytest.mark.parametrize("call_id", ["", "-a", "a\n", ID + "x"])
def test_one_call_with_a_bad_id_has_the_whole_message_looked_at(call_id: str) -> None:
    asked = call_pb2.ToolIntent(tool="core/fs.stat")
    good = pb.SessionCall(intent=asked, call_id=ID)
    assert RULES.keeps(pb.InvokeSessionRequest(calls=[good] * 256))
    assert not RULES.keeps(pb.InvokeSessionRequest(calls=[good, pb.SessionCall(intent=asked, call_id=call_id)]))
    assert not RULES.keeps(pb.InvokeSessionRequest(calls=[good] * 257))
    assert not RULES.keeps(pb.InvokeSessionRequest(calls=[good], cancel_call_ids=[""]))


# Every request of the contract: each field at its edges, and messages made by chance

TEXTS = ["", "a", "a\n", "\n", "-", "ä", "a.b_c:d@e/f+g-h", "1", ID, ID + "c", "sha256:" + "0" * 64]
LENGTHS = (63, 64, 65, 128, 129, 256, 257, 512, 513, 1_024, 1_025, 2_048, 2_049, 4_096, 4_097)
NUMBERS = (-(2**31), -2, -1, 0, 1, 2, 3, 10, 99, 100, 101, 1_000, 1_001, 10_000, 10_001, 2**31 - 1)
EDGES: dict[int, list[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: [*TEXTS, *["x" * length for length in LENGTHS]],
    FieldDescriptor.CPPTYPE_ENUM: list(range(-1, 45)),
    FieldDescriptor.CPPTYPE_INT32: list(NUMBERS),
    FieldDescriptor.CPPTYPE_INT64: [*NUMBERS, -(2**63), 2**63 - 1],
    FieldDescriptor.CPPTYPE_UINT32: [number for number in NUMBERS if number >= 0],
    FieldDescriptor.CPPTYPE_UINT64: [*[number for number in NUMBERS if number >= 0], 2**64 - 1],
    FieldDescriptor.CPPTYPE_BOOL: [False, True],
    FieldDescriptor.CPPTYPE_DOUBLE: [-1.0, 0.0, 0.5, 1.0, 2.0, float("inf"), float("nan")],
    FieldDescriptor.CPPTYPE_FLOAT: [-1.0, 0.0, 1.0],
}
COUNTS = (0, 1, 2, 16, 17, 20, 21, 32, 33, 50, 51, 64, 65, 100, 101, 256, 257, 500, 501, 1_000, 1_001)


def made(descriptor: Descriptor) -> Message:
    return message_factory.GetMessageClass(descriptor)()


def edges(field: FieldDescriptor) -> list[Any]:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return [b"", *[b"x" * length for length in (*LENGTHS, 65_536, 65_537, 1_048_576, 1_048_577)]]
    return EDGES[field.cpp_type]


def put(message: Any, field: FieldDescriptor, value: Any, count: int = 1) -> None:
    if field.is_repeated:
        getattr(message, field.name).extend([value] * count)
    else:
        setattr(message, field.name, value)


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def filled(message: Any, depth: int = 3) -> Any:
    """Every field set to something that most rules like, so that a rule of one field is judged and not another's."""
    for field in message.DESCRIPTOR.fields:
        if is_map(field) or field.containing_oneof is not None or not depth:
            continue
        if field.message_type is not None:
            if field.message_type.full_name.startswith("toolhub."):
                nested = getattr(message, field.name)
                filled(nested.add() if field.is_repeated else nested, depth - 1)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING and field.type != FieldDescriptor.TYPE_BYTES:
            put(message, field, "a")
        elif field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            put(message, field, 1)
    return message


def variants(message: Any, depth: int = 3) -> Iterator[Any]:
    """Messages that differ from the given one in a single field, at any depth."""
    for field in message.DESCRIPTOR.fields:
        copy = type(message)()
        if field.message_type is None:
            for value in edges(field):
                for count in COUNTS if field.is_repeated else (1,):
                    copy.CopyFrom(message)
                    copy.ClearField(field.name)
                    put(copy, field, value, count)
                    yield copy
                    if len(str(value)) > 300:
                        break
        elif is_map(field):
            continue
        else:
            copy.CopyFrom(message)
            copy.ClearField(field.name)
            yield copy
            if depth and field.message_type.full_name.startswith("toolhub."):
                for inner in variants(filled(made(field.message_type), depth - 1), depth - 1):
                    copy.CopyFrom(message)
                    copy.ClearField(field.name)
                    nested = getattr(copy, field.name)
                    (nested.add() if field.is_repeated else nested).CopyFrom(inner)
                    yield copy


@pytest.mark.parametrize("descriptor", REQUESTS, ids=lambda descriptor: descriptor.name)
def test_a_message_accepted_at_any_edge_of_any_field_keeps_the_rules(descriptor: Descriptor) -> None:
    book = RuleBook()
    for message in chain(variants(filled(made(descriptor))), variants(made(descriptor))):
        if book.keeps(message):
            assert not VALIDATOR.collect_violations(message), message
    empty = made(descriptor)
    assert not (book.keeps(empty) and VALIDATOR.collect_violations(empty))


def scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and field.type != FieldDescriptor.TYPE_BYTES:
        return st.text(max_size=3) | st.sampled_from(edges(field))
    return st.sampled_from(edges(field))


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 3) -> Any:
    message: Any = made(descriptor)
    for field in descriptor.fields:
        if is_map(field) or draw(st.integers(0, 3)) == 0:
            continue
        if field.message_type is None:
            put(message, field, draw(scalars(field)))
        elif depth and field.message_type.full_name.startswith("toolhub."):
            nested = getattr(message, field.name)
            inner = draw(messages(field.message_type, depth - 1))
            (nested.add() if field.is_repeated else nested).CopyFrom(inner)
    return message


@given(st.sampled_from(REQUESTS).flatmap(messages))
@settings(max_examples=400, deadline=None)
def test_an_accepted_message_keeps_the_rules(message: Any) -> None:
    assert not RULES.keeps(message) or not VALIDATOR.collect_violations(message)
