from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import httpx2
import pytest
import structlog

from tests.fakes.http_server import always, response, serving
from tests.unit.telemetry.calls import asked, granted, settled
from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, refuse
from toolhub_service.guards.foreign_text import is_hidden
from toolhub_service.guards.secrets import Redactor
from toolhub_service.telemetry.audit import AuditTelemetry
from toolhub_service.telemetry.calls import CallTelemetry
from toolhub_service.telemetry.logs import configure_logging, logger
from toolhub_service.telemetry.metrics import Metrics
from toolhub_service.telemetry.trace_context import TraceContext, attached
from toolhub_service.telemetry.tracing import Tracing

CANARY = "log-canary-90210"
HIDDEN = "hunter2"


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """What JSON logging at INFO writes; the former set-up is put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging(level="INFO", form="json", redactor=Redactor([CANARY]), stream=stream)
    yield stream
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def lines(output: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


def observer(**options: Any) -> CallTelemetry:
    tracing = Tracing(service_name="test", redactor=Redactor())
    return CallTelemetry(Metrics(version="1"), tracing, logger("calls"), **options)


async def test_a_line_is_json_and_carries_its_trace_id(output: io.StringIO) -> None:
    with attached(TraceContext("a" * 32, "b" * 16, False)):
        logger("hub").warning("something", size_bytes=3)
    (line,) = lines(output)
    assert [*line][:3] == ["time", "level", "event"]
    assert line.pop("time").endswith("Z")
    assert line == {
        "event": "something",
        "level": "warning",
        "logger": "hub",
        "size_bytes": 3,
        "trace_id": "a" * 32,
    }


def test_a_level_below_the_configured_one_writes_nothing(output: io.StringIO) -> None:
    logger("hub").debug("quiet")
    logging.getLogger("httpx").info("HTTP Request: GET https://example.com")
    assert output.getvalue() == ""


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        configure_logging(level="LOUD", form="json", redactor=Redactor())


def test_lines_of_other_libraries_are_redacted_too(output: io.StringIO) -> None:
    logging.getLogger("grpc").error("failed with %s for %s", {"authorization": "Bearer abc"}, CANARY)
    (line,) = lines(output)
    assert (line["logger"], line["level"]) == ("grpc", "error")
    assert "Bearer abc" not in output.getvalue()
    assert CANARY not in output.getvalue()


def test_a_secret_is_hidden_wherever_in_a_line_it_stands(output: io.StringIO) -> None:
    class Odd:
        def __repr__(self) -> str:
            return f"Odd({CANARY})"

    log = logger("hub")
    event = f"event {CANARY}"
    log.info(event, token="t0p", nested={"deep": [CANARY, {"password": "pw"}]}, odd=Odd(), raw=CANARY.encode())
    log.info("url", url=f"https://user:{CANARY}@example.com/?sig=s1g", **{CANARY: 1})
    for secret in (CANARY, "t0p", '"pw"', "s1g"):
        assert secret not in output.getvalue()
    assert len(lines(output)) == 2


def test_a_traceback_is_shown_without_its_secrets(output: io.StringIO) -> None:
    def fail(password: str) -> None:
        raise RuntimeError(f"cannot log in with password={password} and {CANARY}")

    try:
        fail(HIDDEN)
    except RuntimeError as error:
        observer().on_crash(asked("call-3"), error)
    (line,) = lines(output)
    assert (line["event"], line["level"], line["call_id"]) == ("call_crashed", "error", "call-3")
    assert "RuntimeError" in line["exception"]
    assert "in fail" in line["exception"]
    assert "hunter2" not in output.getvalue()
    assert CANARY not in output.getvalue()


def test_a_call_that_a_broken_audit_log_does_not_take_is_named_and_is_no_defect(output: io.StringIO) -> None:
    broken = refuse(ErrorKind.IO_ERROR, "The audit log cannot be written.", component="audit", cause="disk")
    observer().on_crash(asked("call-4"), broken)
    (line,) = lines(output)
    assert (line["event"], line["call_id"], line["cause"]) == ("call_not_recorded", "call-4", "disk")
    assert "exception" not in line


def test_a_call_writes_no_line_unless_the_access_log_is_on(output: io.StringIO) -> None:
    observer().on_settled_call(settled(asked()))
    observer().on_settled_call(settled(asked(), error=ErrorKind.TIMEOUT))
    assert output.getvalue() == ""
    observer(access_log=True).on_settled_call(settled(asked(), error=ErrorKind.TIMEOUT))
    (line,) = lines(output)
    assert (line["event"], line["outcome"], line["principal"]) == ("call_settled", "TIMEOUT", "agent-a")
    assert line["duration_ms"] == 45.0


def test_a_log_line_of_a_call_names_its_user_where_the_call_does(output: io.StringIO) -> None:
    call = asked()
    whom = {"user_id": "alice", "agent_id": "scout", "task_id": "t-1", "session_id": "s-1"}
    observer(access_log=True).on_settled_call(settled(call._replace(context=call.context._replace(**whom))))  # type: ignore[arg-type]
    observer(access_log=True).on_settled_call(settled(call))
    vouched = Principal("corp:ann", issuer="corp", tenant="acme", actors=("corp:bot",))
    observer(access_log=True).on_settled_call(settled(call._replace(principal=vouched)))
    spoken, silent, acted = lines(output)
    facts = {"issuer": "corp", "tenant": "acme", "actors": "corp:bot"}
    assert {name: acted[name] for name in facts} == facts
    assert not facts.keys() & silent.keys()
    assert {name: spoken[name] for name in whom} == whom
    assert not whom.keys() & silent.keys()


def test_a_retry_and_a_refusing_disk_are_reported(output: io.StringIO) -> None:
    observer().on_retry(granted(asked()), ToolError(ErrorKind.UPSTREAM_ERROR, "x"), 1)
    AuditTelemetry(Metrics(version="1"), logger("audit")).audit_failed("OperationalError: database or disk is full")
    assert [line["event"] for line in lines(output)] == ["call_retried", "audit_write_failed"]


def test_a_checkpoint_leaves_with_the_logs_as_it_was_signed(output: io.StringIO) -> None:
    signed = json.dumps(
        {"number": 1, "kind": "open", "writer": "hub-1", "head": "0" * 64, "key_id": "abc", "mac": "f" * 64}
    )
    AuditTelemetry(Metrics(version="1"), logger("audit")).witness(signed)
    assert lines(output)[0]["checkpoint"] == signed


async def test_no_level_makes_libraries_write_what_they_send_and_receive() -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging(level="debug", form="json", redactor=Redactor(), stream=stream)
    try:
        answer = response(b"{}", set_cookie="sid=cookie-canary", x_api_key="field-canary")
        async with serving(always(answer)) as server:
            for library in (httpx, httpx2):
                async with library.AsyncClient() as client:
                    await client.get(server.url("/?token=url-canary"), headers={"x-token": "sent-canary"})
        for name in ("httpcore.http11", "httpcore2.connection", "websockets.client", "urllib3.connectionpool", "hpack"):
            logging.getLogger(name).debug("received a frame-canary")
        logger("hub").debug("own", count=1)
    finally:
        root.handlers[:], root.level = handlers, level
        structlog.reset_defaults()
    assert "canary" not in stream.getvalue()
    assert '"event":"own"' in stream.getvalue()


def test_the_console_format_is_readable() -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging(level="debug", form="console", redactor=Redactor([CANARY]), stream=stream)
    logger("hub").info("ready", port=50051, secret=CANARY)
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
    assert "ready" in stream.getvalue()
    assert "port=50051" in stream.getvalue()
    assert CANARY not in stream.getvalue()


HOSTILE = ("\x1b[2J", "\x9b2J", "\u202etxt", "\u2028x", "\x07", "\U000e0041")


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_log_line_acts_on_a_terminal_or_forges_another(form: Literal["json", "console"], text: str) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging(level="debug", form=form, redactor=Redactor([]), stream=stream)
    forged = f"a{text}\n2026-01-01 [info     ] forged"
    log = logger("hub")
    log.info(forged, tool=forged, plain=text, values=[text], key=text)
    logging.getLogger("library").warning("%s", forged)
    log.error("failed", exc_info=ValueError(forged))
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
    written = stream.getvalue()
    assert not any(map(is_hidden, written)), ascii(written)
    assert [line for line in written.splitlines() if line.startswith("2026-01-01 [info")] == []
