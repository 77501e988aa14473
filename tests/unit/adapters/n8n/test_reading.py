"""Recorded answers of real servers, and what is read from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures import load_json
from tests.unit.adapters.n8n.n8n_harness import redact
from toolhub_service.adapters.n8n.answers import Unreadable, at, execution_id_in, read
from toolhub_service.adapters.n8n.client import Reply, message_of, quote_foreign
from toolhub_service.adapters.n8n.execution import (
    AnswerNotKept,
    Execution,
    NoData,
    error_of,
    execution_of,
    has_key,
    result_of,
    unix_ms,
)
from toolhub_service.adapters.n8n.failures import is_in_workflow, is_not_registered
from toolhub_service.adapters.n8n.workflow import RESPOND, id_of, is_path, webhooks_of

CALLS = ("transcript_calls.json", "transcript_calls2.json")


def _recorded(begin: str) -> Iterator[dict[str, Any]]:
    """Recorded requests that begin so and were answered whole."""
    for name in (*CALLS, "transcript_setup.json"):
        for one in load_json("n8n", name):
            if str(one.get("req", "")).startswith(begin) and "resp" in one:
                yield one


def _answer(one: dict[str, Any]) -> Reply:
    headers = {"content-type": one["ctype"]} if one.get("ctype") else {}
    if one.get("xid"):
        headers["x-execution-id"] = one["xid"]
    return Reply(one["status"], headers, one["resp"].encode())


def _whole(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


class TestRecordedExecutions:
    def test_executions_are_read(self) -> None:
        answers = [_whole(one["resp"]) for one in _recorded("GET /api/v1/executions/") if one["status"] == 200]
        read_ones = [execution_of(one) for one in answers if one is not None]
        assert len(read_ones) > 10
        for execution in read_ones:
            assert execution is not None
            assert execution.started_unix_ms
            assert execution.is_over is (execution.status in {"success", "error", "canceled", "crashed"})
        assert {"success", "running"} <= {execution.status for execution in read_ones if execution}

    def test_the_result_is_that_of_the_last_node(self) -> None:
        (items,) = (one["value"] for one in load_json("n8n", "transcript_calls3.json") if "output is" in one["label"])
        runs = {"Webhook": [{"data": {"main": [[{"json": {}}]]}}], "Out": [{"data": {"main": [items]}}]}
        execution = _execution({"resultData": {"lastNodeExecuted": "Out", "runData": runs}})
        assert result_of(execution) == {
            "echo": {"seconds": 4},
            "idem": "k-9",
            "executionId": "15",
            "workflowId": "hubAsync00000001",
        }

    def test_the_beginning_of_an_execution_carries_the_key(self) -> None:
        (one,) = _recorded("GET /api/v1/executions/15?includeData=true")
        webhook = one["resp"].partition('"Webhook":')[2].partition(',"Respond":')[0]
        execution = _execution({"resultData": {"runData": {"Webhook": json.loads(webhook)}}})
        assert has_key(execution, "k-9")
        assert not has_key(execution, "k-8")

    def test_answers_of_webhooks_are_json_by_their_content(self) -> None:
        values = [read(_answer(one)).value for one in _recorded("POST /webhook/hub-") if one["status"] < 300]
        assert len(values) > 10
        assert all(value is None or isinstance(value, dict) for value in values)

    def test_executions_are_named_in_pages_of_html_and_in_headers(self) -> None:
        named = {one["label"]: one for one in _recorded("POST /webhook/")}
        for label, expected in (("immediate with id expr", "6"), ("wait respond", "7"), ("async 202", "15")):
            answer = _answer(named[label])
            assert execution_id_in(answer, read(answer).value, "/executionId") == expected
        header = _answer(named["wait respond"])
        assert execution_id_in(header, {}, "/nowhere") == "7"

    def test_failures_are_distinguished_by_kind(self) -> None:
        named = {one["label"]: _answer(one) for one in _recorded("POST /webhook/")}
        assert is_in_workflow(named["error lastNode"])
        assert is_not_registered(named["inactive"])
        assert is_not_registered(named["unknown path"])
        for answer in named.values():
            words = quote_foreign(message_of(answer.body)[0], redact)
            assert "node_modules" not in words
            assert "stacktrace" not in words

    def test_the_webhooks_of_workflows_are_found(self) -> None:
        found = {
            webhook.path: (webhook.method, webhook.response_mode, webhook.names_execution)
            for name in ("hubAsync00000001", "hubImmediateId01", "hubLastNode00001", "hubErrorresponse")
            for webhook in webhooks_of(load_json("n8n", "workflows", f"{name}.json"))
        }
        assert found == {
            "hub-async": ("POST", "responseNode", True),
            "hub-immediate-id": ("POST", "onReceived", True),
            "hub-last": ("POST", "lastNode", False),
            "hub-error-responseNode": ("POST", "responseNode", False),
        }


def _execution(data: Any, **more: Any) -> Any:
    return execution_of({"id": 7, "status": "success", "data": data, **more})


class TestExecutions:
    def test_a_key_is_found_before_anything_has_run_and_in_custom_data(self) -> None:
        entry = {"data": {"main": [[{"json": {"headers": {"x-idempotency-key": "k-1"}}}]]}}
        assert has_key(_execution({"executionData": {"nodeExecutionStack": [entry]}}), "k-1")
        assert has_key(_execution({}, customData={"idem": "k-1"}), "k-1")
        assert not has_key(_execution({}, customData={"idem": "k-2"}), "k-1")

    @pytest.mark.parametrize(
        ("outputs", "expected"), [([[]], None), ([[], [{"json": {"b": 1}}]], {"b": 1}), ([None], None)]
    )
    def test_the_first_output_that_gave_something_counts(self, outputs: Any, expected: Any) -> None:
        run = {"data": {"main": outputs}}
        data = {"resultData": {"lastNodeExecuted": "A", "runData": {"A": [run]}}}
        assert result_of(_execution(data)) == expected

    def test_missing_data_gives_neither_result_nor_error(self) -> None:
        with pytest.raises(NoData):
            result_of(_execution({}))
        assert error_of(_execution({})) == ("", "")

    @pytest.mark.parametrize("value", [None, "", "a/b", "..", -1, 1.5, True, [], "x" * 65, "é"])
    def test_an_invalid_id_is_none(self, value: Any) -> None:
        assert id_of(value) == ""

    def test_times_that_are_none_are_not_known(self) -> None:
        assert unix_ms("2026-11-21T20:55:20.334Z") == 1_795_294_520_334
        assert unix_ms("yesterday") is None


class TestMessages:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("boom\n    at f (/opt/n8n/a.ts:1:2)\n    at g", "boom"),
            ("no such file /srv/n8n/key.pem, sorry", "no such file [path], sorry"),
            ("see https://api.example.com/usr/1 for s3cret", "see https://api.example.com/usr/1 for ***"),
            ("C:\\Users\\n8n\\x.js failed", "[path] failed"),
            ("a\x00b\x1b[31m", "a b [31m"),
        ],
    )
    def test_traces_and_paths_are_left_out(self, text: str, shown: str) -> None:
        assert quote_foreign(text, redact) == shown

    def test_a_page_is_its_text_and_json_goes_without_its_traces(self) -> None:
        assert message_of(b"<html><style>x</style><h1>502 &amp; more</h1></html>")[0] == "502 & more"
        assert message_of(b'{"a":{"stack":"x","b":1},"hint":"y"}')[0] == '{"a": {"b": 1}}'


class TestAnswers:
    @pytest.mark.parametrize(
        ("body", "value"),
        [
            (b" \n", None),
            (b"0", 0),
            (b'"text"', "text"),
            (b"true", True),
            (b"3 apples", {"text": "3 apples"}),
            (b"the end", {"text": "the end"}),
        ],
    )
    def test_json_where_it_is_json_else_text(self, body: bytes, value: Any) -> None:
        assert read(Reply(200, {}, body)).value == value

    def test_a_broken_object_is_neither_a_file_nor_a_text(self) -> None:
        with pytest.raises(Unreadable):
            read(Reply(200, {}, b'{"a":1,"a"}'))

    @pytest.mark.parametrize(
        ("body", "value"),
        [
            (rb'{"a":"bad \ud83d half"}', {"a": "bad \ufffd half"}),
            (b'[{"a":NaN}]', [{"a": None}]),
            (b'{"a":"caf\xe9"}', {"a": "caf\ufffd"}),
            (b'{"a":1,"a":2}', {"a": 2}),
        ],
    )
    def test_json_that_strict_parsers_refuse_is_repaired_with_a_remark(self, body: bytes, value: Any) -> None:
        found = read(Reply(200, {}, body))
        assert (found.value, len(found.repairs)) == (value, 1)

    @pytest.mark.parametrize(
        ("pointer", "found"),
        [("", {"a": [{"b/c": 1}]}), ("/a/0/b~1c", 1), ("/a/01", None), ("/a/-", None), ("/x/y", None)],
    )
    def test_pointers_lead_to_values_or_nowhere(self, pointer: str, found: Any) -> None:
        assert at({"a": [{"b/c": 1}]}, pointer) == found


@pytest.mark.parametrize(
    ("path", "fits"), [("a/b-c_d.e~f", True), ("a//b", False), ("/a", False), ("a/..", False), ("a b", False)]
)
def test_paths_are_plain_words(path: str, fits: bool) -> None:
    assert is_path(path) is fits


REQUEST = {"headers": {"x-hub-token": "of the operator"}, "params": {}, "query": {}, "body": {"n": 1}}


def ended(parameters: dict[str, Any], kind: str = RESPOND, **more: Any) -> Execution:
    """Its last node is `Respond`, which passes on what it got: the request."""
    node = {"name": "Respond", "type": kind, "parameters": parameters}
    run = {"data": {"main": [[{"json": REQUEST}]]}}
    data = {"resultData": {"lastNodeExecuted": "Respond", "runData": {"Respond": [run]}, **more}}
    execution_fields: dict[str, Any] = {"id": "7", "status": "success", "data": data, "workflowData": {"nodes": [node]}}
    execution = execution_of(execution_fields)
    assert execution is not None
    return execution


@pytest.mark.parametrize("answers_with", ["json", "text", "noData", "redirect", "jwt", "binary"])
def test_the_input_of_a_respond_node_is_not_taken_for_its_answer(answers_with: str) -> None:
    with pytest.raises(AnswerNotKept):
        result_of(ended({"respondWith": answers_with, "responseBody": "={{ 1 }}"}))


@pytest.mark.parametrize("parameters", [{}, {"respondWith": "firstIncomingItem"}, {"respondWith": "allIncomingItems"}])
def test_respond_node_that_answers_with_what_it_got_is_the_result(parameters: dict[str, Any]) -> None:
    assert result_of(ended(parameters)) == REQUEST


def test_the_output_of_another_last_node_is_the_result() -> None:
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
