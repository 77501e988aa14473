"""Exceptions never reach the wire: each becomes a status with ErrorInfo, a defect INTERNAL without its text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.rpc import Layer, Method, ServicerContext
from toolhub_service.transport.status import RpcFailure, from_hub_failure


class ErrorsLayer(Layer):
    """`crashed(method, error)` receives defects with their traceback, for the log.

    Errors of servicers pass `redact`, because they may contain what the caller sent; errors of layers have fixed texts.
    """

    def __init__(self, crashed: Callable[[str, Exception], None], redact: Callable[[str], str] = str) -> None:
        self._crashed = crashed
        self._redact = redact

    def failure(self, method: Method, context: ServicerContext, error: Exception) -> RpcFailure:
        if isinstance(error, RpcFailure):
            return error
        failure = self._failure_of(method, error)
        return replace(
            failure,
            message=self._redact(failure.message),
            metadata={name: self._redact(value) for name, value in failure.metadata.items()},
        )

    def _failure_of(self, method: Method, error: Exception) -> RpcFailure:
        if isinstance(error, HubFailure):
            return from_hub_failure(error)
        if isinstance(error, ToolFailure):
            cause = error.error
            bound = {name: str(cause.details[name]) for name in ("limit", "quota") if name in cause.details}
            return RpcFailure(cause.kind, cause.message, bound, retry_after_s=cause.retry_after_s)
        self._crashed(method.path, error)
        return RpcFailure(Reason.INTERNAL, "The hub failed. The operator finds the cause in its log.")
