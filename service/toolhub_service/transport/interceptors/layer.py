"""What one interceptor does around an RPC. stack.py joins them and runs them for all four kinds of RPC."""

from __future__ import annotations

from typing import Any

from toolhub_service.transport.rpc import Method, ServicerContext


class Layer:
    """Subclasses override what concerns them; what `enter` returns comes back in the other hooks. Hooks never wait."""

    def enter(self, method: Method, context: ServicerContext) -> Any:
        """Before the handler. Raise to refuse the RPC."""

    def received(self, method: Method, state: Any, message: Any) -> None:
        """Each request message. Raise to refuse it."""

    def sent(self, method: Method, state: Any) -> None:
        """Each response message of a generator or unary handler."""

    def failure(self, method: Method, context: ServicerContext, error: Exception) -> Exception:
        """The error that the next layer out, and in the end the caller, is told instead of `error`."""
        return error

    def leave(self, method: Method, state: Any, context: ServicerContext, error: BaseException | None) -> None:
        """After the RPC, whatever happened; cancellation too. Only when `enter` returned."""
