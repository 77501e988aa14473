"""The audit log as log records of OpenTelemetry, sent to a collector over OTLP/gRPC (extra `otlp`).

It uses the protocol's generated stubs, not the SDK's log pipeline, which drops records when its queue is full and does
not report what the collector has accepted. Source: OTLP 1.x, section "OTLP/gRPC": partial success, retryable codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import LogsServiceStub
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from toolhub_service.stores.audit.export import Batch

_TIMEOUT_S: Final = 20.0
_PRINCIPAL: Final = 5
_NAMED: Final = {
    "toolhub.audit.writer": 1,
    "toolhub.audit.type": 4,
    "toolhub.principal": _PRINCIPAL,
    "toolhub.tool": 6,
    "toolhub.call_id": 7,
    "toolhub.request_id": 8,
    "toolhub.audit.mac": 11,
}
"""Attributes and their indexes in a row; empty ones are left out."""


class CollectorUnavailable(Exception):
    """The collector has not accepted the batch; the message has the code, never what was sent."""


class OtlpSink:
    """Implements `Sink`. The body of a record is the line that `toolhub audit export` prints."""

    name: Final = "otlp"

    def __init__(
        self,
        endpoint: str,
        service: Mapping[str, str],
        headers: str = "",
        tenant_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`http://` speaks plaintext, anything else TLS with the system's CAs.

        `headers`: as in OTEL_EXPORTER_OTLP_HEADERS, `name=value` with commas between. `tenant_of` returns a principal's
        tenant, or an empty text.
        """
        self._tenant_of = tenant_of
        target = endpoint.partition("://")[2].rstrip("/") or endpoint
        plain = endpoint.startswith("http://")
        self._channel = (
            grpc.insecure_channel(target) if plain else grpc.secure_channel(target, grpc.ssl_channel_credentials())
        )
        self._stub: Any = LogsServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._resource = Resource(attributes=[_attribute(name, value) for name, value in service.items()])
        pairs = [pair.partition("=") for pair in headers.split(",") if "=" in pair]
        self._metadata = [(name.strip().lower(), value.strip()) for name, _, value in pairs]

    def send(self, batch: Batch) -> int:
        rows = zip(batch.rows, batch.lines, strict=True)
        records = [_record(row, line, self._tenant_of(row[_PRINCIPAL])) for row, line in rows]
        logs = ScopeLogs(scope=InstrumentationScope(name="toolhub.audit"), log_records=records)
        request = ExportLogsServiceRequest(resource_logs=[ResourceLogs(resource=self._resource, scope_logs=[logs])])
        try:
            answer = self._stub.Export(request, timeout=_TIMEOUT_S, metadata=self._metadata)
        except grpc.RpcError as away:
            # Only the code: gRPC's own message may repeat parts of the request.
            raise CollectorUnavailable(f"the collector answered {away.code().name}") from None
        # Rejected for good, as OTLP specifies: sending them again would not help.
        # A collector may be wrong: it cannot have rejected fewer than none, or more than were sent.
        return min(max(0, int(answer.partial_success.rejected_log_records)), len(records))

    def close(self) -> None:
        self._channel.close()


def _record(row: tuple[Any, ...], line: bytes, tenant: str) -> LogRecord:
    attributes = [_attribute(name, str(row[place])) for name, place in _NAMED.items() if row[place]]
    if tenant:
        attributes.append(_attribute("toolhub.tenant", tenant))
    attributes.append(KeyValue(key="toolhub.audit.sequence", value=AnyValue(int_value=row[2])))
    return LogRecord(
        # The field is unsigned, and a clock may have been before 1970.
        time_unix_nano=max(0, row[3]) * 1_000_000,
        severity_number=SeverityNumber.SEVERITY_NUMBER_INFO,
        severity_text="INFO",
        body=AnyValue(string_value=line.decode("utf-8", "replace").rstrip("\n")),
        attributes=attributes,
    )


def _attribute(name: str, value: str) -> KeyValue:
    return KeyValue(key=name, value=AnyValue(string_value=value))
