"""What executions of a real n8n hold that one would not think: measured on 2.8.4, in no recording."""

from __future__ import annotations

from typing import Any

import pytest

from toolhub_service.adapters.n8n.resources import (
    RESPOND,
    AnswerNotKept,
    Execution,
    error_of,
    execution_of,
    result_of,
)

REQUEST = {"headers": {"x-hub-token": "of the operator"}, "params": {}, "query": {}, "body": {"n": 1}}


def ended(parameters: dict[str, Any], kind: str = RESPOND, **more: Any) -> Execution:
    """Its last node is `Respond`, which passes on what it got: the request."""
    node = {"name": "Respond", "type": kind, "parameters": parameters}
    run = {"data": {"main": [[{"json": REQUEST}]]}}
    data = {"resultData": {"lastNodeExecuted": "Respond", "runData": {"Respond": [run]}, **more}}
    told: dict[str, Any] = {"id": "7", "status": "success", "data": data, "workflowData": {"nodes": [node]}}
    execution = execution_of(told)
    assert execution is not None
    return execution


@pytest.mark.parametrize("answers_with", ["json", "text", "noData", "redirect", "jwt", "binary"])
def test_what_a_respond_node_got_is_not_taken_for_what_it_answered(answers_with: str) -> None:
    with pytest.raises(AnswerNotKept):
        result_of(ended({"respondWith": answers_with, "responseBody": "={{ 1 }}"}))


@pytest.mark.parametrize("parameters", [{}, {"respondWith": "firstIncomingItem"}, {"respondWith": "allIncomingItems"}])
def test_respond_node_that_answers_with_what_it_got_is_the_result(parameters: dict[str, Any]) -> None:
    assert result_of(ended(parameters)) == REQUEST


def test_any_other_last_node_is_the_result() -> None:
    assert result_of(ended({"respondWith": "json"}, "n8n-nodes-base.set")) == REQUEST


def test_error_that_names_no_node_is_of_the_one_that_ran_last() -> None:
    assert error_of(ended({}, error={"message": "boom [line 1]"})) == ("boom [line 1]", "Respond")
    named = {"message": "boom", "node": {"name": "Boom"}}
    assert error_of(ended({}, error=named)) == ("boom", "Boom")


def test_execution_that_has_waited_began_when_it_was_created() -> None:
    times = {
        "createdAt": "2026-11-22T07:36:14.522Z",
        "startedAt": "2026-11-22T07:37:24.596Z",
        "stoppedAt": "2026-11-22T07:37:24.634Z",
    }
    execution = execution_of({"id": "2", "status": "success", **times})
    assert execution is not None
    assert execution.duration_ms == 70_112
