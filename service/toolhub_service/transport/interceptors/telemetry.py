"""What every RPC is known by: its place in a trace, and go-grpc-middleware's server metrics."""

from __future__ import annotations

from time import perf_counter

import grpc

from toolhub_service.telemetry.counters import Count, SharedCount
from toolhub_service.telemetry.metrics import Metrics, RpcMetrics
from toolhub_service.telemetry.tracing import RpcTrace, Tracing
from toolhub_service.transport.rpc import Layer, Method, ServicerContext

State = tuple[RpcMetrics, float, RpcTrace]


class TelemetryLayer(Layer):
    """W3C trace context in (`traceparent`, `tracestate`, `baggage`), one span an RPC when the trace is sampled; RPCs
    started, handled by code, seconds, messages in and out. Labels are the kind, service and method of the contract,
    never free text."""

    def __init__(self, tracing: Tracing, metrics: Metrics) -> None:
        self._tracing = tracing
        self._metrics = metrics
        self._of_path: dict[str, RpcMetrics] = {}

    def counters(self, hook: str, method: Method) -> tuple[Count | SharedCount, ...]:
        """Messages."""
        metrics = self._of(method)
        return {"received": (metrics.received,), "sent": (metrics.sent,)}.get(hook, ())

    def enter(self, method: Method, context: ServicerContext) -> State:
        metrics = self._of_path.get(method.path) or self._of(method)
        trace = self._tracing.rpc(method.path[1:], context.invocation_metadata() or ())
        metrics.started.value += 1
        return metrics, perf_counter(), trace

    def leave(self, method: Method, state: State, context: ServicerContext, error: BaseException | None) -> None:
        metrics, began_s, trace = state
        metrics.handled["OK" if error is None else code_name(context, error)].value += 1
        metrics.seconds.observe(perf_counter() - began_s)
        if trace.span is not None:
            trace.end(code_name(context, error), context.details() if error is not None else "")

    def _of(self, method: Method) -> RpcMetrics:
        found = self._of_path.get(method.path)
        if found is None:
            found = self._of_path[method.path] = self._metrics.rpc(method.kind, method.service, method.name)
        return found


def code_name(context: ServicerContext, error: BaseException | None) -> str:
    """The status the client sees, by its canonical name."""
    if error is None:
        return "OK"
    if not isinstance(error, Exception):
        return "CANCELLED"
    code: object = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
