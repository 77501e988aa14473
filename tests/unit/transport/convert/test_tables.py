"""Tables of conversion: what they convert, and what they refuse when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import pytest

from toolhub.v1 import artifact_pb2, artifact_service_pb2, audit_service_pb2, job_state_pb2, progress_pb2
from toolhub_service.domain.result import JobState
from toolhub_service.transport.convert.tables import Reader, Writer


class Eta(NamedTuple):
    step: float
    total: float
    unit: str
    message: str
    eta_s: float | None
    details_json: bytes = b""


@dataclass(frozen=True)
class Ref:
    job_id: str
    state: JobState


class Owner(msgspec.Struct):
    principal: str
    name: str = "not this one"


class File(msgspec.Struct):
    artifact_id: str
    sha256: str
    size_bytes: int
    media_type: str
    name: str
    created_at_unix_ms: int
    expires_at_unix_ms: int


FILE = File("a", "b", 3, "text/plain", "note", 1_700_000_000_123, 0)


def test_spans_and_times_take_the_units_of_the_domain() -> None:
    write = Writer(progress_pb2.Progress, Eta)
    assert write(Eta(1, 2, "s", "", 1.5)).eta.ToMilliseconds() == 1_500
    assert not write(Eta(1, 2, "s", "", None)).HasField("eta")
    artifact = Writer(artifact_pb2.Artifact, File, apart={"principal", "task_id", "call_id"})(FILE)
    assert artifact.created_at.ToMilliseconds() == 1_700_000_000_123
    assert not artifact.HasField("expires_at")


def test_enums_go_by_their_table_both_ways() -> None:
    message = Writer(job_state_pb2.JobRef, Ref)(Ref("j", JobState.RUNNING))
    assert message.state == job_state_pb2.JOB_STATE_RUNNING
    read = Reader(Ref, job_state_pb2.JobRef)
    assert read(message) == Ref("j", JobState.RUNNING)
    with pytest.raises(KeyError):
        read(job_state_pb2.JobRef(job_id="j"))


def test_first_source_that_has_a_field_fills_it_and_code_what_is_apart() -> None:
    write = Writer(artifact_pb2.Artifact, File, Owner, apart={"task_id", "call_id"})
    message = write(FILE, Owner("ann"), task_id="t")
    assert (message.principal, message.name, message.task_id, message.call_id) == ("ann", "note", "t", "")


def test_field_without_a_counterpart_is_refused_when_the_table_is_made() -> None:
    with pytest.raises(TypeError, match="principal"):
        Writer(artifact_pb2.Artifact, File)
    with pytest.raises(TypeError, match="artifact_id"):
        Reader(File, artifact_service_pb2.ArtifactHeader)


class Finding(NamedTuple):
    writer: str
    sequence: int
    reason: str


class Findings(NamedTuple):
    events_checked: int
    writers: int
    faults: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.faults


def test_declared_differences_are_allowed_properties_count_and_messages_nest() -> None:
    write = Writer(
        audit_service_pb2.VerifyAuditResponse,
        Findings,
        apart={"first_bad"},
        renamed={"writers_checked": "writers"},
        nested={"faults": Writer(audit_service_pb2.ChainFault, Finding)},
    )
    message = write(Findings(3, 2, (Finding("a", 1, "torn"),)))
    assert (message.ok, message.events_checked, message.writers_checked) == (False, 3, 2)
    assert [(fault.writer, fault.sequence) for fault in message.faults] == [("a", 1)]
    with pytest.raises(TypeError, match="writers_checked"):
        Writer(audit_service_pb2.VerifyAuditResponse, Findings, apart={"first_bad", "faults"})
