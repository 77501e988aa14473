"""The very bytes of records, written before forms were made from domain types: a field that is renamed, or moved, shows
here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from toolhub_service.domain.approval import Approval, ApprovalState, Binding
from toolhub_service.domain.artifact import Artifact, ArtifactRef
from toolhub_service.domain.call import BudgetRequest, Call, ExecContext, Mode, Principal, Question, Role
from toolhub_service.domain.credential import CredentialKind, CredentialState, StoredCredential
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, Upstream, Violation
from toolhub_service.domain.job import Job, JobStatus, RemoteMark
from toolhub_service.domain.key import KeyRecord
from toolhub_service.domain.pin import Pin, PinChange, PinState
from toolhub_service.domain.result import Evidence, EvidenceType, JobRef, JobState, Progress, StepName, ToolResult
from toolhub_service.domain.tool import ToolUse
from toolhub_service.stores import codec

VIOLATION = Violation("/a", "type", "It is no number.", {"type": "number"}, "Say 1.")
ERROR = ToolError(
    ErrorKind.UPSTREAM_ERROR, "It broke.", True, 1.5, (VIOLATION,), {"host": "a", "big": 2**70}, Upstream(503, "busy")
)
EVIDENCE = Evidence(EvidenceType.FILE, "out.txt", "written", 7, "e" * 4, {"k": "v"})
REF = ArtifactRef("a1", "text/plain", 3, "f" * 4, "out.txt", 9)
RESULT = ToolResult(
    ok=False,
    call_id="c1",
    tool="core/fs.readText",
    value={"b": [1, None, 2**64], "a": 1.0},
    error=ERROR,
    evidence=(EVIDENCE,),
    artifacts=(REF,),
    job=JobRef("j1", JobState.FAILED),
    tool_version="1.0",
    tool_digest="d" * 4,
    attempts=2,
    replayed=True,
    truncated=True,
    defaults_applied=("/b",),
    durations_us={StepName.EXECUTE: 5},
)
STATUS = JobStatus("j1", 3, JobState.FAILED, 11, Progress(1.0, 2.0, "rows", "half", 0.5), RESULT, (REF,))
CALL = Call(
    call_id="c1",
    tool="core/fs.readText",
    args={"path": "a"},
    principal=Principal("p", frozenset({Role.AGENT}), may_impersonate=True),
    context=ExecContext("r", "t", "s", "a", "u", frozenset({"x"}), BudgetRequest(1.0, 2, 3), {"l": "1"}),
    args_error=ERROR,
    purpose="why",
    idempotency_key="k",
    mode=Mode.SUBMIT,
    plan_digest="pd",
    approval_id="apr",
    deadline_s=4.0,
    job_id="j1",
    names_artifacts=True,
)
JOB = Job(
    job_id="j1",
    call=CALL,
    tool_version="1.0",
    tool_digest="d" * 4,
    args_digest="g" * 4,
    created_at_unix_ms=10,
    deadline_unix_ms=20,
    status=STATUS,
    version=4,
    state_since_unix_ms=11,
    approval_id="apr",
    runner="run",
    runs=1,
    begun=True,
    remote=RemoteMark("key", "id", accepted=True, endpoint="e", details={"d": "1"}),
    cancel_reason="enough",
    expires_at_unix_ms=30,
    trace_parent="00-1",
    cancelled_by="p",
)
BINDING = Binding("p", "t", "d", "a", "r", "j", "ag", "us", "q", "w", "s")
ASKED = Question("How many?", {"type": "object"}, "state")
RULED = Approval(
    approval_id="apr",
    binding=BINDING,
    state=ApprovalState.USED,
    tool_version="1.0",
    args_summary_json="{}",
    rule_id="rule",
    reason="because",
    purpose="why",
    call_id="c1",
    request_id="r",
    requested_at_unix_ms=1,
    expires_at_unix_ms=2,
    approvers=("boss",),
    decided_at_unix_ms=3,
    decided_by="boss",
    comment="fine",
    used_at_unix_ms=4,
    used_by_call_id="c2",
    version=3,
)
ANSWERING = Approval(
    **{name: getattr(RULED, name) for name in RULED.__struct_fields__}
    | {"question": ASKED, "round": 1, "covers_rule_id": "rule", "answer": {"n": 2**64}}
)
PIN = Pin(
    source="s",
    tool="s/t",
    digest="d",
    definition={"name": "t", "n": 2**64},
    state=PinState.APPROVED,
    change=PinChange.CHANGED,
    previous_digest="p",
    renamed_from="s/o",
    findings=("odd",),
    seen_at_unix_ms=1,
    decided_at_unix_ms=2,
    decided_by="op",
    comment="ok",
    version=2,
    registered=True,
    endpoint="https://a",
)
KEY = KeyRecord("o", "c1", "a", "d", 1, 2, RESULT)
ARTIFACT = Artifact("a1", "text/plain", 3, "f" * 4, 1, 2, "n", "p", "c1", "t")
USE = ToolUse("tenant", "tool", "agent", "why", 5)

JOB_BEFORE_TOKENS = (
    b"\xde\x00\x13\xa1v\x01\xa6job_id\xa2j1\xa4call\xde\x00\x0e\xa7call_id\xa2c1\xa4tool\xb0core/fs.readText"
    b"\xa4args\xc4\x00\xa9principal\x83\xa2id\xa1p\xa5roles\x91\xa5agent\xafmay_impersonate\xc3\xa7co"
    b"ntext\x88\xaarequest_id\xa1r\xa7task_id\xa1t\xaasession_id\xa1s\xa8agent_id\xa1a\xa7user_id\xa1"
    b"u\xabpermissions\x91\xa1x\xa6budget\x83\xa9timeout_s\xcb?\xf0\x00\x00\x00\x00\x00\x00\xabmax_re"
    b"tries\x02\xaemax_tool_calls\x03\xa6labels\x81\xa1l\xa11\xaaargs_error\x87\xa4kind\xaeUPSTREAM_E"
    b"RROR\xa7message\xa9It broke.\xa9retryable\xc3\xadretry_after_s\xcb?\xf8\x00\x00\x00\x00\x00\x00"
    b"\xaaviolations\x91\x85\xa4path\xa2/a\xa7keyword\xa4type\xa7message\xb0It is no number.\xa8expec"
    b'ted\xc4\x11{"type":"number"}\xa4hint\xa6Say 1.\xa7details\xc4){"host":"a","big":118059162071741'
    b"1303424}\xa8upstream\x82\xa6status\xcd\x01\xf7\xa7excerpt\xa4busy\xa7purpose\xa3why\xafidempote"
    b"ncy_key\xa1k\xa4mode\xa6SUBMIT\xabplan_digest\xa2pd\xabapproval_id\xa3apr\xaadeadline_s\xcb@"
    b"\x10\x00\x00\x00\x00\x00\x00\xa6job_id\xa2j1\xafnames_artifacts\xc3\xactool_version\xa31.0\xabt"
    b"ool_digest\xa4dddd\xabargs_digest\xa4gggg\xb2created_at_unix_ms\n\xb0deadline_unix_ms\x14\xa7ve"
    b"rsion\x04\xb3state_since_unix_ms\x0b\xabapproval_id\xa3apr\xa6runner\xa3run\xa4runs\x01\xa5begu"
    b"n\xc3\xa6remote\x85\xa3key\xa3key\xa9remote_id\xa2id\xa8accepted\xc3\xa8endpoint\xa1e\xa7detail"
    b"s\x81\xa1d\xa11\xadcancel_reason\xa6enough\xb2expires_at_unix_ms\x1e\xactrace_parent\xa400-1"
    b"\xaccancelled_by\xa1p"
)
"""As hubs wrote it that did not know tokens, and as it is written for a principal without one."""
JOB_WITH_EMPTY_FACTS = JOB_BEFORE_TOKENS.replace(b"\xa9principal\x83", b"\xa9principal\x86").replace(
    b"may_impersonate\xc3", b"may_impersonate\xc3\xa6issuer\xa0\xa6actors\x90\xabpermissions\xc0"
)
"""As hubs wrote it that knew tokens first, issuer, actors and permissions even where there were none."""

CREDENTIAL = StoredCredential(
    "t",
    "p",
    "s",
    CredentialKind.OAUTH,
    "k",
    b"\x00\xff",
    "g",
    1,
    2,
    CredentialState.LOGIN_NEEDED,
    3,
    ("a",),
    "h",
    4,
    5,
)

KEPT: dict[str, tuple[Callable[[Any], bytes], Any, bytes]] = {
    "job": (codec.encode_job_frame, JOB, JOB_BEFORE_TOKENS),
    "status": (
        codec.encode_status,
        STATUS,
        (
            b"\x88\xa1v\x01\xa6job_id\xa2j1\xa8sequence\x03\xa5state\xa6FAILED\xaaat_unix_ms\x0b\xa8progress"
            b"\x85\xa4step\xcb?\xf0\x00\x00\x00\x00\x00\x00\xa5total\xcb@\x00\x00\x00\x00\x00\x00\x00\xa4unit"
            b"\xa4rows\xa7message\xa4half\xa5eta_s\xcb?\xe0\x00\x00\x00\x00\x00\x00\xa6result\xde\x00\x10\xa1"
            b'v\x01\xa2ok\xc2\xa7call_id\xa2c1\xa4tool\xb0core/fs.readText\xa5value\xc4+{"b":[1,null,18446744'
            b'073709551616],"a":1.0}\xa5error\x87\xa4kind\xaeUPSTREAM_ERROR\xa7message\xa9It broke.\xa9retrya'
            b"ble\xc3\xadretry_after_s\xcb?\xf8\x00\x00\x00\x00\x00\x00\xaaviolations\x91\x85\xa4path\xa2/a"
            b'\xa7keyword\xa4type\xa7message\xb0It is no number.\xa8expected\xc4\x11{"type":"number"}\xa4hint'
            b'\xa6Say 1.\xa7details\xc4){"host":"a","big":1180591620717411303424}\xa8upstream\x82\xa6status'
            b"\xcd\x01\xf7\xa7excerpt\xa4busy\xa8evidence\x91\x86\xa4type\xa4FILE\xa3ref\xa7out.txt\xa7summar"
            b"y\xa7written\xb2created_at_unix_ms\x07\xa6sha256\xa4eeee\xaaattributes\x81\xa1k\xa1v\xa9artifac"
            b"ts\x91\x86\xabartifact_id\xa2a1\xa6sha256\xaatext/plain\xaasize_bytes\x03\xaamedia_type\xa4ffff"
            b"\xa4name\xa7out.txt\xb2expires_at_unix_ms\t\xa3job\x82\xa6job_id\xa2j1\xa5state\xa6FAILED\xacto"
            b"ol_version\xa31.0\xabtool_digest\xa4dddd\xa8attempts\x02\xa8replayed\xc3\xa9truncated\xc3\xb0de"
            b"faults_applied\x91\xa2/b\xacdurations_us\x81\xa7execute\x05\xa9artifacts\x91\x86\xabartifact_id"
            b"\xa2a1\xa6sha256\xaatext/plain\xaasize_bytes\x03\xaamedia_type\xa4ffff\xa4name\xa7out.txt\xb2ex"
            b"pires_at_unix_ms\t"
        ),
    ),
    "key": (
        codec.encode_key_record,
        KEY,
        (
            b"\x88\xa1v\x01\xa5owner\xa1o\xa7call_id\xa2c1\xabargs_digest\xa1a\xabtool_digest\xa1d\xb3lease_u"
            b"ntil_unix_ms\x01\xb2expires_at_unix_ms\x02\xa6result\xde\x00\x10\xa1v\x01\xa2ok\xc2\xa7call_id"
            b'\xa2c1\xa4tool\xb0core/fs.readText\xa5value\xc4+{"b":[1,null,18446744073709551616],"a":1.0}\xa5'
            b"error\x87\xa4kind\xaeUPSTREAM_ERROR\xa7message\xa9It broke.\xa9retryable\xc3\xadretry_after_s"
            b"\xcb?\xf8\x00\x00\x00\x00\x00\x00\xaaviolations\x91\x85\xa4path\xa2/a\xa7keyword\xa4type\xa7mes"
            b'sage\xb0It is no number.\xa8expected\xc4\x11{"type":"number"}\xa4hint\xa6Say 1.\xa7details\xc4)'
            b'{"host":"a","big":1180591620717411303424}\xa8upstream\x82\xa6status\xcd\x01\xf7\xa7excerpt\xa4b'
            b"usy\xa8evidence\x91\x86\xa4type\xa4FILE\xa3ref\xa7out.txt\xa7summary\xa7written\xb2created_at_u"
            b"nix_ms\x07\xa6sha256\xa4eeee\xaaattributes\x81\xa1k\xa1v\xa9artifacts\x91\x86\xabartifact_id"
            b"\xa2a1\xa6sha256\xaatext/plain\xaasize_bytes\x03\xaamedia_type\xa4ffff\xa4name\xa7out.txt\xb2ex"
            b"pires_at_unix_ms\t\xa3job\x82\xa6job_id\xa2j1\xa5state\xa6FAILED\xactool_version\xa31.0\xabtool"
            b"_digest\xa4dddd\xa8attempts\x02\xa8replayed\xc3\xa9truncated\xc3\xb0defaults_applied\x91\xa2/b"
            b"\xacdurations_us\x81\xa7execute\x05"
        ),
    ),
    "ruled": (
        codec.encode_approval,
        RULED,
        (
            b"\xde\x00\x14\xa1v\x01\xabapproval_id\xa3apr\xa7binding\x8b\xa9principal\xa1p\xa4tool\xa1t\xabto"
            b"ol_digest\xa1d\xabargs_digest\xa1a\xafpolicy_revision\xa1r\xa6job_id\xa1j\xa8agent_id\xa2ag\xa7"
            b"user_id\xa2us\xafquestion_digest\xa1q\xa9workspace\xa1w\xa5state\xa1s\xa5state\xa4USED\xactool_"
            b"version\xa31.0\xb1args_summary_json\xa2{}\xa7rule_id\xa4rule\xa6reason\xa7because\xa7purpose"
            b"\xa3why\xa7call_id\xa2c1\xaarequest_id\xa1r\xb4requested_at_unix_ms\x01\xb2expires_at_unix_ms"
            b"\x02\xa9approvers\x91\xa4boss\xb2decided_at_unix_ms\x03\xaadecided_by\xa4boss\xa7comment\xa4fin"
            b"e\xafused_at_unix_ms\x04\xafused_by_call_id\xa2c2\xa7version\x03"
        ),
    ),
    "answering": (
        codec.encode_approval,
        ANSWERING,
        (
            b"\xde\x00\x18\xa1v\x02\xabapproval_id\xa3apr\xa7binding\x8b\xa9principal\xa1p\xa4tool\xa1t\xabto"
            b"ol_digest\xa1d\xabargs_digest\xa1a\xafpolicy_revision\xa1r\xa6job_id\xa1j\xa8agent_id\xa2ag\xa7"
            b"user_id\xa2us\xafquestion_digest\xa1q\xa9workspace\xa1w\xa5state\xa1s\xa5state\xa4USED\xactool_"
            b"version\xa31.0\xb1args_summary_json\xa2{}\xa7rule_id\xa4rule\xa6reason\xa7because\xa7purpose"
            b"\xa3why\xa7call_id\xa2c1\xaarequest_id\xa1r\xb4requested_at_unix_ms\x01\xb2expires_at_unix_ms"
            b"\x02\xa9approvers\x91\xa4boss\xb2decided_at_unix_ms\x03\xaadecided_by\xa4boss\xa7comment\xa4fin"
            b"e\xafused_at_unix_ms\x04\xafused_by_call_id\xa2c2\xa7version\x03\xa8question\x83\xa7message\xa9"
            b'How many?\xa6schema\xc4\x11{"type":"object"}\xaccontinuation\xa5state\xa5round\x01\xaecovers_ru'
            b'le_id\xa4rule\xa6answer\xc4\x1a{"n":18446744073709551616}'
        ),
    ),
    "pin": (
        codec.encode_pin,
        PIN,
        (
            b'\xde\x00\x11\xa1v\x01\xa6source\xa1s\xa4tool\xa3s/t\xa6digest\xa1d\xaadefinition\xc4%{"name":"t'
            b'","n":18446744073709551616}\xa5state\xa8APPROVED\xa6change\xa7CHANGED\xafprevious_digest\xa1p'
            b"\xacrenamed_from\xa3s/o\xa8findings\x91\xa3odd\xafseen_at_unix_ms\x01\xb2decided_at_unix_ms\x02"
            b"\xaadecided_by\xa2op\xa7comment\xa2ok\xa7version\x02\xaaregistered\xc3\xa8endpoint\xa9https://a"
        ),
    ),
    "artifact": (
        codec.encode_artifact,
        ARTIFACT,
        (
            b"\x8b\xa1v\x01\xabartifact_id\xa2a1\xa6sha256\xaatext/plain\xaasize_bytes\x03\xa9principal\xa4ff"
            b"ff\xb2created_at_unix_ms\x01\xb2expires_at_unix_ms\x02\xaamedia_type\xa1n\xa4name\xa1p\xa7task_"
            b"id\xa2c1\xa7call_id\xa1t"
        ),
    ),
    "credential": (
        codec.encode_credential,
        CREDENTIAL,
        (
            b"\x8f\xa6tenant\xa1t\xa9principal\xa1p\xa6source\xa1s\xa4kind\xa5OAUTH\xa6key_id\xa1k\xa6sealed\xc4\x02\x00\xff\xaageneration\xa1g\xb2crea"
            b"ted_at_unix_ms\x01\xb2changed_at_unix_ms\x02\xa5state\xacLOGIN_NEEDED\xb2expires_at_unix_ms\x03\xa6scope"
            b"s\x91\xa1a\xaarenewed_by\xa1h\xb5renewed_until_unix_ms\x04\xa7version\x05"
        ),
    ),
    "use": (
        codec.encode_use,
        USE,
        (b"\x86\xa1v\x01\xa6tenant\xa6tenant\xa4tool\xa4tool\xa5agent\xa5agent\xa7purpose\xa3why\xaaat_unix_ms\x05"),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_record_is_written_as_it_was_before(name: str) -> None:
    encode, record, kept = KEPT[name]
    assert encode(record) == kept


def test_stored_records_are_read_whole() -> None:
    for job in (JOB_BEFORE_TOKENS, JOB_WITH_EMPTY_FACTS):
        assert codec.decode_job([job, KEPT["status"][2], codec.encode_args(CALL.args)]) == JOB
    assert codec.decode_key_record(KEPT["key"][2]) == KEY
    assert codec.decode_approval(KEPT["ruled"][2]) == RULED
    assert codec.decode_approval(KEPT["answering"][2]) == ANSWERING
    assert codec.decode_pin(KEPT["pin"][2]) == PIN
    assert codec.decode_artifact(KEPT["artifact"][2]) == ARTIFACT
    assert codec.decode_use(KEPT["use"][2]) == USE
    assert codec.decode_credential(KEPT["credential"][2]) == CREDENTIAL
