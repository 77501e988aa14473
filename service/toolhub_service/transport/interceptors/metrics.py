"""go-grpc-middleware's server metrics: started, handled by code, seconds, messages in and out."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import grpc

from toolhub_service.telemetry.metrics import Metrics, RpcMetrics
from toolhub_service.transport.rpc import Layer, Method, ServicerContext

State = tuple[RpcMetrics, float]


class MetricsLayer(Layer):
    """Labels are the kind, service and method of the contract, never free text."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._of_path: dict[str, RpcMetrics] = {}

    def enter(self, method: Method, context: ServicerContext) -> State:
        of_method = self._of_path.get(method.path)
        if of_method is None:
            of_method = self._of_path[method.path] = self._metrics.rpc(method.kind, method.service, method.name)
        of_method.started.value += 1
        return of_method, perf_counter()

    def received(self, method: Method, state: State, message: Any) -> None:
        state[0].received.value += 1

    def sent(self, method: Method, state: State) -> None:
        state[0].sent.value += 1

    def leave(self, method: Method, state: State, context: ServicerContext, error: BaseException | None) -> None:
        of_method, began_s = state
        of_method.handled["OK" if error is None else code_name(context, error)].value += 1
        of_method.seconds.observe(perf_counter() - began_s)


def code_name(context: ServicerContext, error: BaseException | None) -> str:
    """The status the client sees, by its canonical name."""
    if error is None:
        return "OK"
    if not isinstance(error, Exception):
        return "CANCELLED"
    code: object = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
