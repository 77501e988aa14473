"""`toolhub approvals` where a tool asks: the question is shown as its words, and answered by options or by typing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.fakes.asking_adapter import CANARY, COLOUR, a_question
from tests.unit.cli.approvals.test_commands import cli, typed
from tests.unit.runtime.approvals.question_harness import QuestionHarness, asking
from tests.unit.transport.approval_server import ApprovalHub, approval_hub
from toolhub_service.cli.approvals.commands import parse_answer
from toolhub_service.cli.approvals.view import describe_field
from toolhub_service.domain.approval import ApprovalState


@pytest.fixture
def harness() -> QuestionHarness:
    return asking(a_question("Which colour?\u202e Say \x1b[31mred.", COLOUR))


@pytest.fixture
async def hub(harness: QuestionHarness) -> AsyncIterator[ApprovalHub]:
    async with approval_hub(harness.harness) as serving:
        yield serving


async def test_question_is_shown_as_the_tools_words_and_its_fields(
    harness: QuestionHarness, hub: ApprovalHub, tmp_path: Path
) -> None:
    approval_id = await harness.asks()
    shown = await typed(hub, tmp_path, "show", approval_id)
    assert "untrusted text of the tool" in shown.text
    assert "Which colour?\\u202e Say \\u001b[31mred." in shown.text
    assert "colour (string, required): red | green" in shown.text
    assert 'password (string, optional, default "none")' in shown.text
    listed = json.loads((await cli(hub, "show", approval_id)).stdout)
    assert listed["question"]["schema"] == COLOUR
    assert CANARY not in shown.text + json.dumps(listed)


@pytest.mark.parametrize(
    "words",
    [
        ("--answer", "colour=green"),
        ("--answer-json", '{"colour":"green"}'),
        ("--answer", "colour=green", "--answer", "password=none"),
    ],
)
async def test_answer_of_the_command_line_lets_the_call_go_on(
    harness: QuestionHarness, hub: ApprovalHub, words: tuple[str, ...]
) -> None:
    approval_id = await harness.asks()
    done = await cli(hub, "approve", approval_id, *words)
    assert done.exit_code == 0, done.stderr
    assert (await harness.call(approval_id)).ok
    assert harness.adapter.done == [{"colour": "green", "password": "none"}]


async def test_an_answer_that_does_not_fit_is_refused_with_a_reason_and_decides_nothing(
    harness: QuestionHarness, hub: ApprovalHub
) -> None:
    approval_id = await harness.asks()
    refused = await cli(hub, "approve", approval_id, "--answer", "colour=blue")
    assert refused.exit_code != 0
    assert "does not match the question" in refused.stderr
    nothing = await cli(hub, "approve", approval_id)
    assert "needs an answer" in nothing.stderr
    assert await harness.harness.state(approval_id) is ApprovalState.PENDING


async def test_terminal_asks_for_each_field_then_whether_it_may_run(
    harness: QuestionHarness, hub: ApprovalHub, tmp_path: Path
) -> None:
    approval_id = await harness.asks()
    words, after = ("approve", approval_id), "green: "
    no = await typed(hub, tmp_path, *words, keys=b"red\n\nn\n", after=after)
    assert "Nothing was decided" in no.text
    assert await harness.harness.state(approval_id) is ApprovalState.PENDING
    yes = await typed(hub, tmp_path, *words, keys=b"\nblue\nred\nopen\ny\n", after=after)
    assert yes.code == 0, yes.text
    assert "This field is required." in yes.text
    assert "Choose one of: red, green" in yes.text
    assert (await harness.call(approval_id)).ok
    assert harness.adapter.done == [{"colour": "red", "password": "open"}]


@pytest.mark.parametrize(
    ("name", "declared", "expected"),
    [
        ("n", {"type": "integer", "description": "How many."}, "n (integer, required): How many."),
        ("n", {"type": ["integer", "string"], "default": 2}, "n (string, optional, default 2)"),
        ("n", {"enum": [1, "a"]}, "n (string, required): 1 | a"),
        ("a\x1bb", {"type": "null"}, "a\\u001bb (null, required)"),
    ],
)
def test_field_is_described_in_a_line(name: str, declared: Any, expected: str) -> None:
    assert describe_field(name, declared, is_required=True) == expected


def test_two_answers_are_wrong_usage() -> None:
    with pytest.raises(click.UsageError):
        parse_answer(["a=1"], "{}", {})
    assert parse_answer([], "", {}) == b""
