"""Arguments that are kept for an approver: within bounds, no principal at the cost of another, and only on record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.ports.approval_store_suite import an_approval
from tests.unit.runtime.approvals.approval_harness import ANN, EVE, an_approval_harness
from toolhub_service.domain.approval import Approval, ApprovalState
from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.domain.event import EventType
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.approvals.reveal import REVEALED_MAX_BYTES, OpenArguments, reveal_arguments
from toolhub_service.schema.canonical_json import dumps


def of(principal: str, number: int, **changes: Any) -> Approval:
    return an_approval(f"apr-{principal}-{number}", principal=principal, args_digest=str(number), **changes)


def kept(arguments: OpenArguments, principal: str, count: int) -> list[int]:
    return [number for number in range(count) if arguments.of(of(principal, number)) is not None]


def test_the_largest_holder_loses_its_oldest_and_others_nothing() -> None:
    arguments = OpenArguments(max_bytes=100_000)
    arguments.keep(of("quiet", 0), b"{}")
    for number in range(30):
        arguments.keep(of("loud", number), b" " * 9_000)
    assert kept(arguments, "quiet", 1) == [0]
    left = kept(arguments, "loud", 30)
    assert left == list(range(30 - len(left), 30))
    assert 5 < len(left) < 11


def test_large_ones_are_remembered_as_such_and_count() -> None:
    arguments = OpenArguments(max_bytes=10_000)
    for number in range(100):
        arguments.keep(of("a", number), b" " * 70_000)
    assert arguments.of(of("a", 99)) == b""
    assert len(kept(arguments, "a", 100)) < 10


def test_arguments_up_to_the_bound_are_kept_for_a_reveal_and_no_byte_more() -> None:
    arguments = OpenArguments()
    arguments.keep(of("a", 0), b" " * REVEALED_MAX_BYTES)
    arguments.keep(of("a", 1), b" " * (REVEALED_MAX_BYTES + 1))
    assert arguments.of(of("a", 0)) == b" " * REVEALED_MAX_BYTES
    assert arguments.of(of("a", 1)) == b""


def test_expired_and_ended_approvals_make_room() -> None:
    arguments = OpenArguments(max_bytes=4_000)
    first, second = of("a", 0, expires_at_unix_ms=10), of("a", 1, expires_at_unix_ms=20)
    arguments.keep(first, b"{}")
    arguments.keep(second, b"{}")
    arguments.expire_due(10)
    assert kept(arguments, "a", 2) == [1]
    arguments.drop(second)
    arguments.drop(second)
    assert kept(arguments, "a", 2) == []
    for number in range(3):
        arguments.keep(of("b", number), b"{}")
    assert kept(arguments, "b", 3) == [0, 1, 2], "nothing that went counts"


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ({"key": "s3cret-value"}, {"key": "[secret of 12 characters]"}),
        ({"pin": 123456789012}, {"pin": "[secret of 12 characters]"}),
        ({"n": 10**30, "x": [True, None, 1.5, -0.0]}, {"n": 10**30, "x": [True, None, 1.5, -0.0]}),
        (
            {"s3cret-value": 1, "s3cret-valuf": 2},
            {"[secret of 12 characters]": 1, "[secret of 12 characters]'": 2},
        ),
        ({"n": json.loads("[" * 200 + "]" * 200)}, {"n": json.loads("[" * 200 + "]" * 200)}),
        ({"password": "hunter2 and more"}, {"password": "hunter2 and more"}),
    ],
)
def test_known_values_alone_are_hidden_and_no_member_is_lost(args: Any, shown: Any) -> None:
    redactor = Redactor(["s3cret-value", "s3cret-valuf", "123456789012"])
    assert json.loads(reveal_arguments(dumps(args), redactor)) == shown


def test_characters_that_show_nothing_are_distinguished_from_their_escapes_in_the_text() -> None:
    shown = reveal_arguments(dumps({"a": "\u202e\U000e0041\x7f", "b": "\\u202e"}), Redactor()).decode()
    assert shown == r'{"a":"\u202e\udb40\udc41\u007f","b":"\\u202e"}'


async def test_a_reader_outside_the_rule_s_approvers_reads_nothing() -> None:
    harness = an_approval_harness()
    approval_id = await harness.ask()
    with pytest.raises(HubFailure) as refused:
        await harness.approvals.reveal(EVE, approval_id)
    assert refused.value.reason.name == "NOT_AMONG_APPROVERS"
    assert harness.events(EventType.APPROVAL_REVEALED) == []


async def test_a_reveal_without_a_record_is_refused() -> None:
    harness = an_approval_harness()
    approval_id = await harness.ask()
    harness.parts.audit.broken = True
    with pytest.raises(ToolFailure):
        await harness.approvals.reveal(ANN, approval_id)


async def test_end_of_an_approval_elsewhere_drops_its_arguments() -> None:
    harness = an_approval_harness()
    approval_id = await harness.ask()
    approval, _ = await harness.approvals.reveal(ANN, approval_id)
    harness.approvals.on_event(None)
    harness.approvals.on_event(approval)
    await harness.approvals.reveal(ANN, approval_id)
    harness.approvals.on_event(replace(approval, state=ApprovalState.USED))
    with pytest.raises(HubFailure) as refused:
        await harness.approvals.reveal(ANN, approval_id)
    assert refused.value.reason.name == "ARGUMENTS_NOT_HERE"
