"""W3C trace context in (`traceparent`, `tracestate`, `baggage`), and one span an RPC when the trace is sampled."""

from __future__ import annotations

from toolhub_service.telemetry.tracing import RpcTrace, Tracing
from toolhub_service.transport.interceptors.metrics import code_name
from toolhub_service.transport.rpc import CALLER, Layer, Method, ServicerContext


class TracingLayer(Layer):
    """The outermost layer: what all others do belongs to the trace."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def enter(self, method: Method, context: ServicerContext) -> RpcTrace:
        return self._tracing.rpc(method.path[1:], context.invocation_metadata() or ())

    def leave(self, method: Method, state: RpcTrace, context: ServicerContext, error: BaseException | None) -> None:
        if state.span is not None:
            caller = CALLER.get(None)
            details = context.details() if error is not None else ""
            state.end(code_name(context, error), details, None if caller is None else caller.principal)
