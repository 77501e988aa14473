"""Spans made and sent by OpenTelemetry's SDK; imported only when spans are sent, because it adds 20 ms to a start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import StartReason

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

# How long one export may be retried, and so how long an absent collector can delay the shutdown.
_EXPORT_S: Final = 3


class SpanRecording:
    """The tracer, whose spans all go to one exporter."""

    def __init__(self, exporter: SpanExporter, service_name: str, service_version: str) -> None:
        self.ids = GivenIds()
        resource = Resource.create({"service.name": service_name, "service.version": service_version})
        # ALWAYS_ON, because only sampled traces create spans at all.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, id_generator=self.ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self.tracer = self._provider.get_tracer("toolhub")

    def flush(self) -> None:
        """Send queued spans. Blocks for at most 10 s."""
        self._provider.force_flush(10_000)

    def close(self) -> None:
        """Send queued spans and stop. Blocks: call it from a thread."""
        self._provider.shutdown()


class GivenIds(RandomIdGenerator):
    """Lets the sampling decision be made before the span."""

    next_trace_id = 0

    def generate_trace_id(self) -> int:
        given, self.next_trace_id = self.next_trace_id, 0
        return given or super().generate_trace_id()


def otlp_exporter(endpoint: str) -> SpanExporter:
    """Return the exporter. Raises as `exporter_class`."""
    return exporter_class()(endpoint=endpoint, insecure=endpoint.startswith("http://"), timeout=_EXPORT_S)


def exporter_class() -> type[OTLPSpanExporter]:
    """Return it. Raises HubFailure OTLP_EXPORTER_MISSING when the `otlp` extra is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        message = "Traces over OTLP need one more package: toolhub extras install otlp, or set no OTLP endpoint."
        raise HubFailure(StartReason.OTLP_EXPORTER_MISSING, message) from error
    return OTLPSpanExporter
