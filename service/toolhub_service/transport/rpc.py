"""The RPC being served, for interceptors and servicers: its method and, once verified, its principal.

A ContextVar carries it: interceptor and handler run in the same task, and each RPC has a context of its own.
It is set once and never reset, for a reset in an async generator may run in another context (grpc/grpc#42295).
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from toolhub_service.domain.principal import Principal

ServicerContext = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Method:
    """`/package.Service/Rpc`, taken apart."""

    path: str
    service: str
    name: str
    kind: str
    """unary, server_stream, client_stream or bidi_stream: go-grpc-middleware's `grpc_type`."""
    takes_stream: bool = False
    """Whether the client sends a stream."""
    is_open: bool = field(init=False)
    """Health and reflection: what probes and tools may ask without a credential."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_open", self.service.startswith(("grpc.health.", "grpc.reflection.")))


_principal: ContextVar[Principal] = ContextVar("toolhub_principal")


def set_principal(principal: Principal) -> None:
    """Called by the auth interceptor alone."""
    _principal.set(principal)


def current_principal() -> Principal:
    """The verified caller. Raises LookupError outside of an authenticated RPC: never answer without one."""
    return _principal.get()
