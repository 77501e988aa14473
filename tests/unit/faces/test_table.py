"""The tables of the faces against the hub's own tools, and what translation makes of anything at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub_service.app.offline import configured_tools
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, Violation
from toolhub_service.domain.result import ToolResult
from toolhub_service.faces.countbot import countbot
from toolhub_service.faces.local_tools import CODES, LOCAL_TOOLS, code_of
from toolhub_service.faces.table import USER, Face, translate
from toolhub_service.settings.document import Settings

FACES = (LOCAL_TOOLS, countbot({"mine": "acme/mine"}))
ROWS = [(face, row) for face in FACES for row in face.tools.values()]
CALL = Call("call_1", "", {}, Principal("local"))


def test_every_kind_of_error_has_one_of_the_eight_codes() -> None:
    assert set(CODES) == set(ErrorKind)
    assert set(CODES.values()) == {
        *("PERMISSION_DENIED", "NOT_FOUND", "INVALID_INPUT", "ALREADY_EXISTS"),
        *("TIMEOUT", "EXECUTION_ERROR", "NETWORK_ERROR", "IO_ERROR"),
    }
    for cause, code in (("HTTP_TIMEOUT", "TIMEOUT"), ("TIMEOUT", "TIMEOUT"), ("RUNNER_DIED", "EXECUTION_ERROR")):
        assert code_of(ToolError(ErrorKind.OUTCOME_UNKNOWN, "?", details={"cause": cause})) == code


async def test_every_row_fits_the_schema_of_the_tool_that_does_its_work(tmp_path: Path) -> None:
    specs = {spec.name: spec for spec in await configured_tools(Settings(data_dir=str(tmp_path)))}
    missing = set()
    for _, row in ROWS:
        for case in row.rows().values():
            if case.passes:
                continue
            if case.tool not in specs:
                missing.add(case.tool)
                continue
            schema: Any = specs[case.tool].input_schema
            sent = {argument.to for argument in case.arguments.values() if argument.to != USER} | set(case.fixed)
            assert sent <= set(schema["properties"]), case
            assured = {each.to for each in case.arguments.values() if each.required or each.default is not None}
            assert set(schema.get("required", ())) <= assured | set(case.fixed), case
            for argument in case.arguments.values():
                assert argument.default is None or argument.schema.get("default") in (argument.default, None), case
    assert missing == set()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(ROWS), st.data())
def test_any_arguments_are_translated_or_refused_with_a_reason(case: tuple[Face, Any], data: st.DataObject) -> None:
    face, row = case
    names = [name for each in row.rows().values() for name in each.arguments] + [row.chooser or "x", "text", "confirm"]
    args = data.draw(st.dictionaries(st.sampled_from(names) | st.text(max_size=8), JSON, max_size=5))
    _, error, _ = translate(row, args)
    assert error is None or error.kind is ErrorKind.INPUT_SCHEMA_INVALID
    asked = face.ask(CALL._replace(tool=row.name, args=args))
    assert asked.tool in {each.tool for each in row.rows().values()}
    assert asked.args_error is None or asked.args == {}
    failed = ToolResult(False, "call_1", asked.tool, error=asked.args_error or ToolError(ErrorKind.IO_ERROR, "no"))
    assert face.answer(row.name, failed).value
    value = data.draw(JSON)
    assert face.answer(row.name, ToolResult(True, "call_1", asked.tool, value=value)).ok


def test_large_arguments_are_translated_where_they_are_read() -> None:
    broken = ToolError(ErrorKind.INVALID_INPUT, "not JSON")
    large = CALL._replace(tool="FileRead", unread_bytes=9, unread=lambda: ({"path": "a", "user_id": "ann"}, None))
    asked = LOCAL_TOOLS.ask(large)
    assert asked.unread is not None
    assert (asked.unread(), asked.context.user_id, asked.args) == (({"path": "a"}, None), "ann", {})
    failed = LOCAL_TOOLS.ask(large._replace(unread=lambda: ({}, broken)))
    assert failed.unread is not None
    assert failed.unread() == ({}, broken)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`/timeoutMs` must be at most 60,000.", "`/timeout` must be at most 60,000."),
        ("Raise timeoutMs of core/http.request, or send no body.", "Raise timeout of HTTPRequest, or send no body."),
        ("The text of a URL is bodyless and headersX.", "The text of a URL is bodyless and headersX."),
        ("It is too large. Raise maxBytes, or request less.", "It is too large. Request less."),
        ("Read it with core/fs.readText.", "Read it with FileRead."),
        ("It is too large: use core/http.downloadFile.", "It is too large: use another tool."),
    ],
)
def test_an_error_uses_the_names_of_the_face(message: str, expected: str) -> None:
    error = ToolError(ErrorKind.INVALID_INPUT, message, violations=(Violation("/timeoutMs/0", "maximum", message),))
    answer = LOCAL_TOOLS.answer("HTTPRequest", ToolResult(False, "c", "core/http.request", error=error))
    assert answer.error is not None
    assert (answer.error.message, answer.error.violations[0].path) == (expected, "/timeout/0")


def test_a_tool_that_the_hub_lacks_is_not_available_and_a_name_that_the_face_lacks_is_not_found() -> None:
    face = countbot()
    missing = ToolError(ErrorKind.TOOL_NOT_FOUND, "There is no tool named 'core/web.screenshot'.")
    answer = face.answer("screenshot", ToolResult(False, "c", "core/web.screenshot", error=missing))
    assert answer.error is not None
    assert (answer.error.kind, answer.error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, False)
    assert face.ask(CALL._replace(tool="screenshot", args={"type": "web", "url": "u"})).tool == "core/web.screenshot"
    unknown = face.answer("snapshot", ToolResult(False, "c", "countbot:snapshot", error=missing))
    assert unknown.error is not None
    assert unknown.error.kind is ErrorKind.TOOL_NOT_FOUND
    assert face.ask(CALL._replace(tool="core/fs.readText")).tool == "countbot:core/fs.readText"


async def test_a_screenshot_that_only_pages_can_have_speaks_of_pages_alone_and_wants_its_type(tmp_path: Path) -> None:
    catalog = {spec.name: spec for spec in await configured_tools(Settings(data_dir=str(tmp_path)))}
    row = countbot().tools["screenshot"]
    web = row.tool_for_model(lambda tool: catalog[tool] if tool == "core/web.screenshot" else None)
    assert web is not None
    assert web.description == "Take a picture of a web page and save it in the workspace."
    schema: Any = web.input_schema
    assert schema["properties"]["type"] == {"type": "string", "enum": ["web"]}
    assert schema["required"] == ["url", "type"]
    assert "desktop" not in str(schema)
    both: Any = row.tool_for_model(catalog.get)
    region = both.input_schema["properties"]["region"]["description"]
    assert region == "With type desktop: `full`, or left,top,width,height. With type web: `full` or `visible`."
