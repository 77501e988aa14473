"""A server that asks in the middle of a call: declined, answered by defaults, or put to a person."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fakes.mcp_harness import McpHarness, mcp_tool, over_http, over_stdio
from tests.fakes.mcp_servers.scripted import Script
from tests.ports.adapter_suite import granted
from toolhub_service.adapters.mcp.kind import Elicitation
from toolhub_service.adapters.mcp.questions.elicitation import Questions
from toolhub_service.domain.call import Question, QuestionAsked, Reply
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, Upstream, refuse
from toolhub_service.domain.json import JsonObject


@asynccontextmanager
async def asking(elicitation: Elicitation) -> AsyncIterator[McpHarness]:
    async with over_http(Script(), elicitation=elicitation) as harness:
        yield harness


async def question_of(harness: McpHarness, name: str, reply: Reply | None = None) -> Question:
    with pytest.raises(QuestionAsked) as caught:
        await harness.run(name, reply=reply)
    return caught.value.question


async def answered(harness: McpHarness, name: str, reply: Reply | None = None) -> object:
    return json.loads((await harness.value(name, reply=reply))["text"])


async def test_declined_questions_let_the_server_finish() -> None:
    async with asking("decline") as harness:
        assert await answered(harness, "ask") == [{"action": "decline"}, "sealed-1"]


async def test_defaults_are_filled_in_where_there_are_any() -> None:
    async with asking("defaults") as harness:
        assert await answered(harness, "ask") == [{"action": "accept", "content": {"colour": "blue"}}, "sealed-1"]


async def test_a_person_is_asked_and_the_call_goes_on_with_the_answer() -> None:
    async with asking("ask") as harness:
        question = await question_of(harness, "ask")
        assert question.message == "Which colour?"
        assert question.schema == {
            "type": "object",
            "properties": {"colour": {"type": "string", "default": "blue"}},
            "required": ["colour"],
            "additionalProperties": False,
        }
        reply = Reply({"colour": "red"}, question.continuation)
        assert await answered(harness, "ask", reply) == [
            {"action": "accept", "content": {"colour": "red"}},
            "sealed-1",
        ]
        assert len(harness.script.calls) == 2


async def test_the_answer_may_come_to_another_process() -> None:
    async with over_stdio("modern", elicitation="ask") as first:
        question = await question_of(first, "ask")
    async with over_stdio("modern", elicitation="ask") as second:
        reply = Reply(None, question.continuation)
        assert await answered(second, "ask", reply) == [{"action": "decline"}, "sealed-1"]


async def test_several_questions_are_asked_one_after_another_and_sent_together() -> None:
    async with asking("ask") as harness:
        first = await question_of(harness, "choose")
        assert (first.message, first.schema) == ("Sure?", {})
        second = await question_of(harness, "choose", Reply({}, first.continuation))
        assert second.message == "Really?"
        assert len(harness.script.calls) == 1
        answer = await answered(harness, "choose", Reply(None, second.continuation))
        assert answer == {"first": {"action": "accept", "content": {}}, "second": {"action": "decline"}}


async def test_opening_a_page_is_declined_even_where_people_are_asked() -> None:
    async with asking("ask") as harness:
        assert (await harness.run("page")).value == {"text": "decline"}


@pytest.mark.parametrize("elicitation", ["decline", "ask", "defaults"])
async def test_asking_for_a_model_ends_the_call_with_advice(elicitation: Elicitation) -> None:
    async with asking(elicitation) as harness:
        with pytest.raises(ToolFailure) as caught:
            await harness.run("model")
    error = caught.value.error
    assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, False)
    assert "model" in error.message


async def test_a_server_that_asks_without_end_is_abandoned() -> None:
    async with asking("decline") as harness:
        with pytest.raises(ToolFailure) as caught:
            await harness.run("stubborn")
        assert caught.value.error.kind is ErrorKind.UPSTREAM_ERROR
        assert len(harness.script.calls) == 9


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object"}}}},
        {"type": "object", "properties": {"a": "text"}},
        {"type": "object", "properties": {"a": {"type": "string", "description": "x" * 20_000}}},
    ],
)
async def test_a_form_with_nested_fields_is_declined(schema: JsonObject) -> None:
    asked: JsonObject = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": schema}}
    async with asking("ask") as harness:
        questions = Questions(harness.call("ask"), "ask", str)
        questions.take({"inputRequests": {"k": asked}})
    assert questions.answers == {"k": {"action": "decline"}}


async def test_only_what_is_known_of_a_form_reaches_the_person() -> None:
    rule: JsonObject = {"type": "string", "pattern": "(a+)+$", "$ref": "https://evil.example", "enum": ["a"]}
    form: JsonObject = {"type": "object", "properties": {"a": rule}, "allOf": [], "required": ["a", "b"]}
    asked: JsonObject = {
        "method": "elicitation/create",
        "params": {"message": "pw=hunter2 \x07ok", "requestedSchema": form},
    }
    async with asking("ask") as harness:
        with pytest.raises(QuestionAsked) as caught:
            Questions(harness.call("ask"), "ask", str.upper).take({"inputRequests": {"k": asked}})
    question = caught.value.question
    assert question.schema["properties"] == {"a": {"type": "string", "enum": ["a"]}}
    assert question.schema["required"] == ["a"]
    assert "\x07" not in question.message


def questions_of(state: str | None) -> Questions:
    questions = Questions(granted(mcp_tool("ask")), "ask", str)
    questions.state = state
    return questions


def refusal(message: str, code: int = -32602) -> ToolFailure:
    return refuse(ErrorKind.UPSTREAM_ERROR, "", upstream=Upstream(status=code, excerpt=message))


async def test_a_refused_state_begins_the_call_anew_once_a_run() -> None:
    asked = questions_of("sealed")
    asked.given_answers = {"digest": {"action": "decline"}}
    assert asked.restarts(refusal("Invalid or expired requestState"))
    assert (asked.state, asked.answers, asked.earlier_answers) == (None, {}, asked.given_answers)
    asked.state = "sealed again"
    assert not asked.restarts(refusal("Invalid or expired requestState"))


@pytest.mark.parametrize(
    ("state", "failure"),
    [
        (None, refusal("requestState is missing")),
        ("sealed", refusal("no such dish")),
        ("sealed", refusal("requestState", code=-32603)),
        ("sealed", refuse(ErrorKind.OUTCOME_UNKNOWN, "requestState")),
    ],
)
async def test_other_failures_do_not_restart_the_call(state: str | None, failure: ToolFailure) -> None:
    assert not questions_of(state).restarts(failure)
