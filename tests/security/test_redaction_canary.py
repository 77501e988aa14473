"""A canary in arguments, headers, names and errors appears in no log, span, metric label or audit row."""

from __future__ import annotations

import base64
import io
import logging
import time
from pathlib import Path
from urllib.parse import quote

import pytest
import structlog
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.ports.audit_log_suite import EVERYTHING, called
from tests.unit.stores.audit.logs_in import files_in, started_log, verified
from tests.unit.telemetry.calls import ALLOWED, asked, granted, settled
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.guards.secrets import Redactor
from toolhub_service.telemetry.calls import CallTelemetry
from toolhub_service.telemetry.logs import configure_logging, logger
from toolhub_service.telemetry.metrics import Metrics
from toolhub_service.telemetry.tracing import Tracing

KNOWN = 'can"ary/+\\ known 5f3a91'
UNKNOWN = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
"""Not known to the redactor; found by its shape."""
NAMED = "n4med-c4nary"
"""Neither known nor of a telling shape; the names it stands under give it away."""


def spellings() -> list[bytes]:
    raw = KNOWN.encode()
    seen = [raw, quote(KNOWN, safe="").encode(), base64.b64encode(raw)[:24], b"known 5f3a91"]
    return [*seen, UNKNOWN.encode(), NAMED.encode()]


def assert_clean(sink: str, data: bytes) -> None:
    for spelling in spellings():
        assert spelling not in data, (sink, spelling)


@pytest.mark.promise("secrets.nowhere")
async def test_a_canary_appears_in_no_log_span_label_or_audit_row(tmp_path: Path) -> None:
    redactor = Redactor([KNOWN])
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging(level="DEBUG", form="json", redactor=redactor, stream=stream)
    exporter = InMemorySpanExporter()
    tracing = Tracing(service_name="test", exporter=exporter, sample_ratio=1.0, redactor=redactor)
    metrics = Metrics(version="1")
    observer = CallTelemetry(metrics, tracing, logger("calls"), access_log=True)
    log = await started_log(tmp_path, redactor=redactor)
    args = {
        "url": f"https://agent:{NAMED}@example.com/?q={quote(KNOWN)}",
        "headers": {"Authorization": f"Bearer {NAMED}", "X-Note": KNOWN},
        "env": {"API_KEY": NAMED, "GIT": UNKNOWN, "B64": base64.b64encode(f"u:{KNOWN}".encode()).decode()},
        KNOWN: UNKNOWN,
    }
    tool = f"core/{KNOWN}"
    call = asked(f"call-{UNKNOWN}", tool=tool, **args)

    rpc = tracing.rpc(f"toolhub.v1.ToolService/{'Invoke'}", [("authorization", f"Bearer {NAMED}")])
    summary = redactor.json_text(args)
    await log.append_durably(called(1, principal=KNOWN, tool=tool, args_summary=summary, purpose=f"token={NAMED}"))
    await log.append_durably(called(2, args_summary=repr(args), attributes={"API_KEY": NAMED, "note": UNKNOWN}))
    with observer.executing(granted(call)):
        logger("adapter").info("request", args=args, text=str(args))
    observer.on_crash(call, RuntimeError(f"password={NAMED} {KNOWN} {UNKNOWN}"))
    observer.on_settled_call(
        settled(call, error=ErrorKind.INTERNAL, verdict=ALLOWED, spec=None, start_ns=time.perf_counter_ns())
    )
    rpc.end("INTERNAL", f"secret: {NAMED}, {KNOWN}, {UNKNOWN}")
    shown = repr(await log.read(EVERYTHING, after=None, limit=9))
    exported = b"".join([line async for line in log.export(EVERYTHING)])
    await log.close()
    tracing.flush()
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()

    assert verified(tmp_path).events_checked == 2
    assert len(exporter.get_finished_spans()) == 11
    assert stream.getvalue().count("\n") == 3
    for path in files_in(tmp_path)[:2]:
        assert_clean(path.name, path.read_bytes())
    assert_clean("logs", stream.getvalue().encode())
    assert_clean("spans", "".join(span.to_json() for span in exporter.get_finished_spans()).encode())
    assert_clean("metrics", metrics.exposition())
    assert_clean("audit", shown.encode() + exported)
    tracing.close()
