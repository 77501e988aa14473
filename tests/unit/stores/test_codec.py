"""Everything that a store keeps comes back as it was, now and from bytes that an older or newer version wrote."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from toolhub_service.domain.approval import Approval, ApprovalState, Binding
from toolhub_service.domain.artifact import Artifact, ArtifactRef
from toolhub_service.domain.call import BudgetRequest, Call, ExecContext, Lineage, Mode, Principal, Question, Role
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, Upstream, Violation
from toolhub_service.domain.job import Job, JobStatus, RemoteMark
from toolhub_service.domain.key import KeyRecord
from toolhub_service.domain.pin import Pin, PinChange, PinState
from toolhub_service.domain.result import Evidence, EvidenceType, JobRef, JobState, Progress, StepName, ToolResult
from toolhub_service.domain.tool import ToolUse
from toolhub_service.stores import codec
from toolhub_service.stores.codec import UnreadableRecord

JSON: SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
TEXT = st.text(max_size=8)
INTEGERS = st.integers(0, 2**53)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
TEXTS = st.dictionaries(TEXT, TEXT, max_size=2) | st.just(MappingProxyType({"a": "b"}))
DOUBLES = st.floats(allow_nan=False)
REFS = st.lists(st.builds(ArtifactRef, TEXT, TEXT, INTEGERS, TEXT, TEXT, INTEGERS), max_size=2).map(tuple)


def some(strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.none() | strategy


def many(strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.lists(strategy, max_size=2).map(tuple)


ERRORS = st.builds(
    ToolError,
    kind=st.sampled_from(ErrorKind),
    message=TEXT,
    retryable=some(st.booleans()),
    retry_after_s=some(DOUBLES),
    violations=many(st.builds(Violation, TEXT, TEXT, TEXT, JSON, TEXT)),
    details=OBJECTS | OBJECTS.map(MappingProxyType),
    upstream=some(st.builds(Upstream, st.integers(-1, 999), TEXT)),
)
EVIDENCE = st.builds(Evidence, st.sampled_from(EvidenceType), TEXT, TEXT, INTEGERS, TEXT, TEXTS)
RESULTS = st.builds(
    ToolResult,
    ok=st.booleans(),
    call_id=TEXT,
    tool=TEXT,
    value=JSON,
    raw=st.none(),
    error=some(ERRORS),
    evidence=many(EVIDENCE),
    artifacts=REFS,
    job=some(st.builds(JobRef, TEXT, st.sampled_from(JobState))),
    tool_version=TEXT,
    tool_digest=TEXT,
    attempts=INTEGERS,
    replayed=st.booleans(),
    truncated=st.booleans(),
    defaults_applied=many(TEXT),
    durations_us=st.dictionaries(st.sampled_from(StepName), INTEGERS, max_size=9),
    said=some(OBJECTS),
)
PROGRESS = st.builds(Progress, DOUBLES, some(DOUBLES), TEXT, TEXT, some(DOUBLES))
STATUSES = st.builds(
    JobStatus,
    job_id=TEXT,
    sequence=INTEGERS,
    state=st.sampled_from(JobState),
    at_unix_ms=INTEGERS,
    progress=some(PROGRESS),
    result=some(RESULTS),
    artifacts=REFS,
)
CONTEXTS = st.builds(
    ExecContext,
    request_id=TEXT,
    task_id=TEXT,
    session_id=TEXT,
    agent_id=TEXT,
    user_id=TEXT,
    permissions=some(st.frozensets(TEXT, max_size=3)),
    budget=st.builds(BudgetRequest, some(DOUBLES), some(INTEGERS), some(INTEGERS)),
    labels=TEXTS,
)
LINEAGES = st.builds(Lineage, TEXT, TEXT, INTEGERS, st.frozensets(TEXT, max_size=3), INTEGERS, bytes_left=INTEGERS)
CALLS = st.builds(
    Call,
    lineage=some(LINEAGES),
    unread=st.none(),
    unread_bytes=st.just(0),
    client=st.none(),
    call_id=TEXT,
    tool=TEXT,
    args=OBJECTS,
    principal=st.builds(
        Principal,
        TEXT,
        st.frozensets(st.sampled_from(Role)),
        st.booleans(),
        issuer=TEXT,
        actors=many(TEXT),
        permissions=some(st.frozensets(TEXT, max_size=3)),
        tenant=TEXT,
        groups=st.frozensets(TEXT, max_size=3),
    ),
    context=CONTEXTS,
    args_error=some(ERRORS),
    purpose=TEXT,
    idempotency_key=TEXT,
    mode=st.sampled_from(Mode),
    plan_digest=TEXT,
    approval_id=TEXT,
    expected_tool_digest=TEXT,
    deadline_s=some(DOUBLES),
    job_id=TEXT,
    names_artifacts=st.booleans(),
)
JOBS = st.builds(
    Job,
    job_id=TEXT,
    call=CALLS,
    tool_version=TEXT,
    tool_digest=TEXT,
    args_digest=TEXT,
    created_at_unix_ms=INTEGERS,
    deadline_unix_ms=INTEGERS,
    status=STATUSES,
    version=INTEGERS,
    state_since_unix_ms=st.integers(0, 2**53),
    approval_id=TEXT,
    runner=TEXT,
    runs=INTEGERS,
    begun=st.booleans(),
    remote=some(st.builds(RemoteMark, TEXT, TEXT, st.booleans(), TEXT, TEXTS)),
    cancel_reason=some(TEXT),
    expires_at_unix_ms=INTEGERS,
    trace_parent=TEXT,
)
KEY_RECORDS = st.builds(KeyRecord, TEXT, TEXT, TEXT, TEXT, INTEGERS, INTEGERS, some(RESULTS))
BINDINGS = st.builds(Binding, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT)
APPROVALS = st.builds(
    Approval,
    *([TEXT, BINDINGS, st.sampled_from(ApprovalState)] + [TEXT] * 7 + [INTEGERS] * 2),
    approvers=many(TEXT),
    decided_at_unix_ms=INTEGERS,
    decided_by=TEXT,
    comment=TEXT,
    used_at_unix_ms=INTEGERS,
    used_by_call_id=TEXT,
    version=INTEGERS,
)
ARTIFACTS = st.builds(Artifact, TEXT, TEXT, INTEGERS, TEXT, INTEGERS, INTEGERS, TEXT, TEXT, TEXT, TEXT)
PINS = st.builds(
    Pin,
    *[TEXT, TEXT, TEXT, OBJECTS, st.sampled_from(PinState), st.sampled_from(PinChange), TEXT, TEXT, many(TEXT)],
    *[INTEGERS, INTEGERS, TEXT, TEXT, INTEGERS],
)
USES = st.builds(ToolUse, TEXT, TEXT, TEXT, TEXT, INTEGERS)

quickly = settings(max_examples=60, deadline=None)


@quickly
@given(JOBS)
def test_job_comes_back_as_it_was(job: Job) -> None:
    parts = [codec.encode_job_frame(job), codec.encode_status(job.status), codec.encode_args(job.call.args)]
    assert codec.decode_job(parts) == job


@quickly
@given(STATUSES)
def test_status_comes_back_as_it_was(status: JobStatus) -> None:
    assert codec.decode_status(codec.encode_status(status)) == status


@quickly
@given(RESULTS)
def test_result_comes_back_as_it_was(result: ToolResult) -> None:
    back = codec.decode_result(codec.encode_result(result))
    assert back == result
    assert repr(back.value) == repr(result.value), "types, digits and the order of members too"


@quickly
@given(KEY_RECORDS)
def test_key_record_comes_back_as_it_was(record: KeyRecord) -> None:
    assert codec.decode_key_record(codec.encode_key_record(record)) == record


@quickly
@given(APPROVALS)
def test_approval_comes_back_as_it_was(approval: Approval) -> None:
    assert codec.decode_approval(codec.encode_approval(approval)) == approval


@quickly
@given(ARTIFACTS)
def test_artifact_comes_back_as_it_was(artifact: Artifact) -> None:
    assert codec.decode_artifact(codec.encode_artifact(artifact)) == artifact


@quickly
@given(PINS)
def test_pin_comes_back_as_it_was(pin: Pin) -> None:
    assert repr(codec.decode_pin(codec.encode_pin(pin))) == repr(pin), "types, digits and the order of members too"


@quickly
@given(USES)
def test_use_comes_back_as_it_was(use: ToolUse) -> None:
    assert codec.decode_use(codec.encode_use(use)) == use


RESULT = ToolResult(ok=True, call_id="c", tool="core/fs.readText")
STATUS = JobStatus("j", 1, JobState.RUNNING, 5)
STATUS_BYTES = codec.encode_status(STATUS)
CALL = Call("c", "core/fs.readText", {}, Principal("p"))
FRAME = codec.encode_job_frame(Job("j", CALL, "1", "d", "a", 1, 2, STATUS))


def test_raw_answer_of_an_upstream_is_not_kept() -> None:
    assert codec.decode_result(codec.encode_result(RESULT._replace(raw={"secret": 1}))) == RESULT


@pytest.mark.parametrize(
    "value",
    [2**63, 2**64, -(2**63) - 1, 10**4000, 1.0, -0.0, 5e-324, 1e300, "\x00\u2028😀", {"b": 1, "a": None}, [[]], "null"],
    ids=str,
)
def test_value_keeps_its_type_and_every_digit(value: Any) -> None:
    back = codec.decode_result(codec.encode_result(RESULT._replace(value=value))).value
    assert repr(back) == repr(value)


def test_value_as_deep_as_json_may_be_comes_back() -> None:
    value: Any = 0
    for _ in range(254):
        value = [value]
    assert codec.decode_result(codec.encode_result(RESULT._replace(value=value))).value == value


def test_progress_that_is_no_number_is_kept_as_sent() -> None:
    progress = Progress(step=math.nan, total=math.inf)
    back = codec.decode_status(codec.encode_status(replace(STATUS, progress=progress))).progress
    assert back is not None
    assert math.isnan(back.step)
    assert back.total == math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf, "\ud800", {1: 2}, {"a": object}], ids=repr)
def test_value_that_is_not_json_is_not_written(value: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        codec.encode_result(RESULT._replace(value=value))


def test_field_of_a_newer_version_is_passed_over_and_a_missing_one_takes_its_default() -> None:
    fields = msgspec.msgpack.decode(codec.encode_status(replace(STATUS, result=RESULT)))
    fields["of_tomorrow"] = {"deep": [1]}
    fields["result"]["of_tomorrow"] = 1
    assert "progress" not in fields
    assert codec.decode_status(msgspec.msgpack.encode(fields)) == replace(STATUS, result=RESULT)


def test_record_of_a_format_to_come_is_refused() -> None:
    fields = msgspec.msgpack.decode(codec.encode_status(STATUS))
    assert fields["v"] == 1
    with pytest.raises(UnreadableRecord):
        codec.decode_status(msgspec.msgpack.encode(fields | {"v": 2}))


@pytest.mark.parametrize(
    "change", [{"sequence": "1"}, {"state": "ASLEEP"}, {"at_unix_ms": None}, {"progress": [1.0]}], ids=str
)
def test_wrong_type_is_refused(change: dict[str, Any]) -> None:
    fields = msgspec.msgpack.decode(codec.encode_status(STATUS))
    with pytest.raises(UnreadableRecord):
        codec.decode_status(msgspec.msgpack.encode(fields | change))


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_cut_bytes_are_refused(cut: int) -> None:
    with pytest.raises(UnreadableRecord):
        codec.decode_status(codec.encode_status(STATUS)[:cut])


@pytest.mark.parametrize(
    "decode",
    [
        lambda frame: codec.decode_job([frame, STATUS_BYTES, b"{}"]),
        lambda status: codec.decode_job([FRAME, status, b"{}"]),
        lambda args: codec.decode_job([FRAME, STATUS_BYTES, args]),
        codec.decode_status,
        codec.decode_result,
        codec.decode_key_record,
        codec.decode_approval,
        codec.decode_artifact,
        codec.decode_pin,
        codec.decode_use,
    ],
)
@given(data=st.binary(max_size=40))
@settings(max_examples=30, deadline=None)
def test_any_other_bytes_are_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        decode(b"\x00" + data)


def test_bytes_of_the_first_version_are_read_for_ever() -> None:
    first = (
        b"\x87\xa1v\x01\xa6job_id\xa3j-1\xa8sequence\x07\xa5state\xa6FAILED\xaaat_unix_ms\xcd\x03\xe8"
        b"\xa8progress\x85\xa4step\xcb?\xf0\x00\x00\x00\x00\x00\x00\xa5total\xc0\xa4unit\xa4rows\xa7message\xa0\xa5eta_s"
        b"\xc0\xa6result\x86\xa1v\x01\xa2ok\xc2\xa7call_id\xa1c\xa4tool\xa1t\xa5error\x83\xa4kind\xadNETWORK_ERROR"
        b'\xa7message\xa9It broke.\xa7details\xc4\x0c{"host":"a"}\xacdurations_us\x81\xa7execute\x07'
    )
    error = ToolError(ErrorKind.NETWORK_ERROR, "It broke.", details={"host": "a"})
    result = ToolResult(False, "c", "t", error=error, durations_us={StepName.EXECUTE: 7})
    status = JobStatus("j-1", 7, JobState.FAILED, 1_000, Progress(1.0, unit="rows"), result)
    assert codec.decode_status(first) == status


def test_pin_without_its_definition_is_refused() -> None:
    fields = msgspec.msgpack.decode(codec.encode_pin(Pin("s", "s/t", "d", {}, PinState.APPROVED)))
    for damage in ({"definition": b"[]"}, {"definition": b"{"}, {"state": "FINE"}, {"v": 2}):
        with pytest.raises(UnreadableRecord):
            codec.decode_pin(msgspec.msgpack.encode(fields | damage))


FORMS: list[tuple[codec.Form[Any], type]] = [
    (codec.VIOLATION, Violation),
    (codec.ERROR, ToolError),
    (codec.EVIDENCE, Evidence),
    (codec.RESULT, ToolResult),
    (codec.STATUS, JobStatus),
    (codec.BUDGET, BudgetRequest),
    (codec.CONTEXT, ExecContext),
    (codec.CALL, Call),
    (codec.JOB, Job),
    (codec.KEY, KeyRecord),
    (codec.ANSWERING, Approval),
    (codec.PIN, Pin),
]

_NOT_STORED = ("raw", "blames_upstream", "unread", "unread_bytes")
"""Debugging output, what concerns the breaker of the very call, and how its arguments came."""


@pytest.mark.parametrize(("form", "domain"), FORMS)
def test_every_field_of_the_domain_is_written_in_its_order(form: codec.Form[Any], domain: Any) -> None:
    if issubclass(domain, msgspec.Struct):
        fields: Any = domain.__struct_fields__
    else:
        fields = domain._fields if issubclass(domain, tuple) else [each.name for each in dataclasses.fields(domain)]
    assert list(form.record.__struct_fields__) == [name for name in fields if name not in _NOT_STORED]


def test_approval_from_before_tools_asked_questions_is_read_and_written_as_it_was() -> None:
    first = (
        b"\xde\x00\r\xa1v\x01\xabapproval_id\xa5apr-1\xa7binding\x85\xa9principal\xa1p\xa4tool\xa1t\xabtool_digest\xa1d"
        b"\xabargs_digest\xa1a\xafpolicy_revision\xa1r\xa5state\xa7PENDING\xactool_version\xa31.0\xb1args_summary_json"
        b"\xa2{}\xa7rule_id\xa1x\xa6reason\xa1y\xa7purpose\xa0\xa7call_id\xa1c\xaarequest_id\xa0"
        b"\xb4requested_at_unix_ms\x01\xb2expires_at_unix_ms\x02"
    )
    approval = Approval(
        "apr-1", Binding("p", "t", "d", "a", "r"), ApprovalState.PENDING, "1.0", "{}", "x", "y", "", "c", "", 1, 2
    )
    assert codec.decode_approval(first) == approval
    assert codec.encode_approval(approval) == first


def test_reader_that_knows_no_questions_refuses_an_approval_that_answers_one() -> None:
    binding = Binding("p", "t", "d", "a", "r", question_digest="q")
    approval = Approval(
        "apr-1",
        binding,
        ApprovalState.PENDING,
        "1.0",
        "{}",
        "x",
        "y",
        "",
        "c",
        "",
        1,
        2,
        question=Question("?", {}, "s"),
    )
    written = codec.encode_approval(approval)
    assert codec.decode_approval(written) == approval
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.Decoder(codec.RULED.record).decode(written)
