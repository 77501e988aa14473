"""Observation of every RPC: its trace (W3C `traceparent`, `tracestate`, `baggage`) and its metrics."""

from __future__ import annotations

from time import perf_counter

import grpc

from toolhub_service.telemetry.counters import Count, SharedCount
from toolhub_service.telemetry.metrics import Metrics, RpcMetrics
from toolhub_service.telemetry.tracing import RpcTrace, Tracing
from toolhub_service.transport.rpc import CALLER, Layer, Method, ServicerContext

State = tuple[RpcMetrics, float]


class TracingLayer(Layer):
    """The outermost layer, so that the work of all others belongs to the trace. One span per RPC when the trace is
    sampled."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def concerns(self, hook: str, method: Method) -> bool:
        """Where nothing is recorded, there is no span to end."""
        return super().concerns(hook, method) and (hook != "leave" or self._tracing.tracer is not None)

    def enter(self, method: Method, context: ServicerContext) -> RpcTrace:
        return self._tracing.rpc(method.path[1:], context.invocation_metadata() or ())

    def leave(self, method: Method, state: RpcTrace, context: ServicerContext, error: BaseException | None) -> None:
        if state.span is not None:
            caller = CALLER.get(None)
            details = context.details() if error is not None else ""
            state.end(code_name(context, error), details, None if caller is None else caller.principal)


class MetricsLayer(Layer):
    """go-grpc-middleware's server metrics: started, handled by code, seconds, messages in and out.

    Labels are the kind, service and method of the contract, never free text.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._of_path: dict[str, RpcMetrics] = {}

    def counters(self, hook: str, method: Method) -> tuple[Count | SharedCount, ...]:
        """Counters of messages, for the hooks `on_request` and `on_response`."""
        metrics = self._of(method)
        return {"on_request": (metrics.received,), "on_response": (metrics.sent,)}.get(hook, ())

    def enter(self, method: Method, context: ServicerContext) -> State:
        metrics = self._of_path.get(method.path) or self._of(method)
        metrics.started.value += 1
        return metrics, perf_counter()

    def leave(self, method: Method, state: State, context: ServicerContext, error: BaseException | None) -> None:
        metrics, began_s = state
        metrics.handled["OK" if error is None else code_name(context, error)].value += 1
        metrics.seconds.observe(perf_counter() - began_s)

    def _of(self, method: Method) -> RpcMetrics:
        found = self._of_path.get(method.path)
        if found is None:
            found = self._of_path[method.path] = self._metrics.rpc(method.kind, method.service, method.name)
        return found


def code_name(context: ServicerContext, error: BaseException | None) -> str:
    """Return the canonical name of the status that the client sees."""
    if error is None:
        return "OK"
    if not isinstance(error, Exception):
        return "CANCELLED"
    code: object = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
