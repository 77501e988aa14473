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


@dataclass(slots=True, eq=False)
class Caller:
    """Who makes an RPC: one object for all of its tasks, so that each sees the rights of now."""

    principal: Principal


_caller: ContextVar[Caller] = ContextVar("toolhub_caller")


def set_principal(principal: Principal) -> Caller:
    """Called by the auth interceptor alone, which keeps what it returns in step with the policy."""
    caller = Caller(principal)
    _caller.set(caller)
    return caller


def current_caller() -> Caller:
    """For what outlives a reload of the policy. Raises LookupError outside of an authenticated RPC."""
    return _caller.get()


def current_principal() -> Principal:
    """The verified caller. Raises LookupError outside of an authenticated RPC: never answer without one."""
    return _caller.get().principal


def caller_id() -> str:
    """Whose RPC it is, for shares of what all have in common; empty for one that needs no credential."""
    caller = _caller.get(None)
    return caller.principal.id if caller is not None else ""
