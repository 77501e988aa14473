"""The contract and the domain use the same words, so that converting is renaming and never deciding."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Protocol

import pytest

from toolhub.v1 import (
    approval_pb2,
    call_pb2,
    error_pb2,
    error_reason_pb2,
    event_pb2,
    job_state_pb2,
    pin_pb2,
    result_pb2,
    source_pb2,
    step_pb2,
    tool_pb2,
)
from toolhub_service.domain.approval import ApprovalState
from toolhub_service.domain.call import Mode
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.event import EventType
from toolhub_service.domain.pin import PinState
from toolhub_service.domain.result import EvidenceType, JobState, StepName
from toolhub_service.domain.source import SourceState, Trust
from toolhub_service.domain.tool import ArgumentRole, IdempotencyMode, ToolKind, ToolState
from toolhub_service.transport.convert.records import to_decision

ROOT = Path(__file__).parents[3]


class WireEnum(Protocol):
    """What a generated enum is asked here: its names in order of number."""

    def keys(self) -> list[str]: ...


def words(wire: WireEnum, prefix: str) -> list[str]:
    names = wire.keys()
    assert names[0] == f"{prefix}UNSPECIFIED"
    return [name.removeprefix(prefix) for name in names[1:]]


PAIRS: list[tuple[WireEnum, str, type[Enum]]] = [
    (approval_pb2.ApprovalState, "APPROVAL_STATE_", ApprovalState),
    (error_pb2.ErrorKind, "ERROR_KIND_", ErrorKind),
    (event_pb2.EventType, "EVENT_TYPE_", EventType),
    (job_state_pb2.JobState, "JOB_STATE_", JobState),
    (result_pb2.EvidenceType, "EVIDENCE_TYPE_", EvidenceType),
    (source_pb2.SourceState, "SOURCE_STATE_", SourceState),
    (source_pb2.SourceTrust, "SOURCE_TRUST_", Trust),
    (pin_pb2.PinState, "PIN_STATE_", PinState),
    (step_pb2.StepName, "STEP_NAME_", StepName),
    (tool_pb2.ArgumentRole, "ARGUMENT_ROLE_", ArgumentRole),
    (tool_pb2.IdempotencyMode, "IDEMPOTENCY_MODE_", IdempotencyMode),
    (tool_pb2.ToolKind, "TOOL_KIND_", ToolKind),
    (tool_pb2.ToolState, "TOOL_STATE_", ToolState),
    (call_pb2.InvokeMode, "INVOKE_MODE_", Mode),
]
INTERNAL: set[Enum] = {Mode.SUBMIT}
"""Words of the domain alone: a submission has an RPC of its own."""


@pytest.mark.promise("contract.same-words")
@pytest.mark.parametrize(("wire", "prefix", "domain"), PAIRS, ids=[domain.__name__ for _, _, domain in PAIRS])
def test_an_enum_has_the_same_words_on_the_wire_and_in_the_domain(
    wire: WireEnum, prefix: str, domain: type[Enum]
) -> None:
    assert set(words(wire, prefix)) == {member.name for member in domain if member not in INTERNAL}


def test_a_decision_is_reported_as_the_state_that_follows_it() -> None:
    decisions = words(approval_pb2.Decision, "DECISION_")
    states = [to_decision(approval_pb2.Decision.Value(f"DECISION_{word}")) for word in decisions]
    assert list(zip(decisions, states, strict=True)) == [
        ("APPROVE", ApprovalState.APPROVED),
        ("REJECT", ApprovalState.REJECTED),
    ]


@pytest.mark.parametrize("state", JobState, ids=lambda state: state.name)
def test_the_contract_names_the_final_states_of_a_job(state: JobState) -> None:
    text = (ROOT / "proto" / "toolhub" / "v1" / "job_state.proto").read_text()
    final = re.search(r"State of a job\. (.+) are final\.", text)
    assert final is not None
    assert state.is_final == (state.name in re.findall("[A-Z_]+", final[1]))


def test_the_steps_stand_in_the_same_order() -> None:
    assert words(step_pb2.StepName, "STEP_NAME_") == [step.name for step in StepName]


@pytest.mark.promise("contract.reasons")
def test_every_reason_of_a_failed_rpc_is_a_word_of_the_contract() -> None:
    assert set(words(error_reason_pb2.ErrorReason, "ERROR_REASON_")) == {reason.name for reason in Reason}
