"""What the short way vouches for keeps every rule of the contract, at each bound and wherever chance looks."""

from __future__ import annotations

import hashlib
from typing import Any

import protovalidate
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from toolhub.v1 import call_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.transport.plain_calls import are_plain, is_plain

RULES = protovalidate.Validator()
ID = "A" + "b" * 127
IDS = ("request_id", "task_id", "session_id", "agent_id", "user_id")


def a_call(*, context: dict[str, Any] | None = None, intent: dict[str, Any] | None = None, **fields: Any) -> Any:
    asked = call_pb2.ToolIntent(**{"tool": "core/fs.stat", "args_json": b"{}", **(intent or {})})
    around = None if context is None else call_pb2.ExecContext(**context)
    return pb.InvokeRequest(intent=asked, context=around, **fields)


@pytest.mark.parametrize(
    "request_",
    [
        a_call(),
        a_call(intent={"tool": "x" * 256, "purpose": "€" * 1_024, "args_json": b"x" * 4_194_304}),
        a_call(intent={"tool": "🦜" * 256, "args_json": b""}),
        a_call(context={}),
        a_call(context=dict.fromkeys(IDS, ID)),
        a_call(context={"user_id": "u", "task_id": "a.b_c:d@e/f+g-h"}),
        a_call(mode=call_pb2.INVOKE_MODE_DRY_RUN, result_encoding=call_pb2.RESULT_ENCODING_STRUCT),
    ],
    ids=str,
)
def test_ordinary_calls_are_plain_and_keep_every_rule(request_: Any) -> None:
    assert is_plain(request_)
    assert not RULES.collect_violations(request_)


@pytest.mark.parametrize(
    "request_",
    [
        pb.InvokeRequest(),
        a_call(intent={"tool": ""}),
        a_call(intent={"tool": "x" * 257}),
        a_call(intent={"args_json": b"x" * 4_194_305}),
        a_call(intent={"purpose": "€" * 1_366}),
        a_call(intent={"idempotency_key": "-"}),
        a_call(mode=3),
        a_call(mode=-1),
        a_call(result_encoding=3),
        a_call(plan_digest="§"),
        a_call(approval_id="-"),
        *[a_call(context={name: wrong}) for name in IDS for wrong in (ID + "b", "a b", "a\nb", "a\n", "\n", ".a", "ä")],
        a_call(context={"permissions": [""]}),
        a_call(context={"labels": {"": ""}}),
        a_call(context={"budget": call_pb2.CallBudget(timeout=Duration(seconds=-1))}),
    ],
    ids=str,
)
def test_call_that_breaks_a_rule_is_never_plain(request_: Any) -> None:
    assert RULES.collect_violations(request_)
    assert not is_plain(request_)


texts = st.text(max_size=3) | st.sampled_from(["", "a\n", "\n\n", ID, ID + "c", "a\nb\nc"])


@given(ids=st.fixed_dictionaries(dict.fromkeys(IDS, texts)), tool=texts, purpose=texts, mode=st.integers(-1, 4))
@settings(max_examples=150, deadline=None)
def test_whatever_is_plain_keeps_every_rule(ids: dict[str, str], tool: str, purpose: str, mode: int) -> None:
    request_ = a_call(context=ids, intent={"tool": tool, "purpose": purpose}, mode=mode)
    assert not is_plain(request_) or not RULES.collect_violations(request_)


@pytest.mark.parametrize("call_id", ["", "-a", "a\n", ID + "x"])
def test_one_call_with_a_bad_id_has_the_whole_message_looked_at(call_id: str) -> None:
    asked = call_pb2.ToolIntent(tool="core/fs.stat")
    good = pb.SessionCall(intent=asked, call_id=ID)
    assert are_plain(pb.InvokeSessionRequest(calls=[good] * 256))
    assert not are_plain(pb.InvokeSessionRequest(calls=[good, pb.SessionCall(intent=asked, call_id=call_id)]))
    assert not are_plain(pb.InvokeSessionRequest(calls=[good] * 257))
    assert not are_plain(pb.InvokeSessionRequest(calls=[good], cancel_call_ids=[""]))


SEEN = {
    pb.InvokeRequest: "f2b3661910c1",
    pb.InvokeStreamRequest: "f64e3a8e8ffc",
    pb.SessionCall: "8b8e0d45a3c8",
    pb.InvokeSessionRequest: "ab3247c7912b",
    call_pb2.ToolIntent: "3b01016a72ed",
    call_pb2.ExecContext: "c257eaeb1467",
}


def rules_of(message: type[Message]) -> str:
    """A digest over fields and rules as the contract has them."""
    places = [message.DESCRIPTOR, *message.DESCRIPTOR.fields]
    told = b"\n".join(
        [place.name.encode() + place.GetOptions().SerializeToString(deterministic=True) for place in places]
    )
    return hashlib.sha256(told).hexdigest()[:12]


@pytest.mark.parametrize("message", SEEN, ids=lambda message: message.__name__)
def test_rules_are_those_that_the_short_way_was_written_for(message: type[Message]) -> None:
    assert rules_of(message) == SEEN[message], "look at plain_calls.py: does it still vouch for every rule?"
