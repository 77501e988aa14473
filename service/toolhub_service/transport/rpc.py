"""The RPC being served, for interceptors and servicers: method, verified principal, deadline and ids of its calls.

A ContextVar carries it: interceptor and handler run in the same task, and each RPC has its own context. It is set once
and never reset, because a reset in an async generator may run in another context (grpc/grpc#42295).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

import grpc.aio
import msgspec

from toolhub_service.domain.call import Principal

ServicerContext = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Method:
    """The parts of `/package.Service/Rpc`."""

    path: str
    service: str
    name: str
    kind: str
    """unary, server_stream, client_stream or bidi_stream: go-grpc-middleware's `grpc_type`."""
    takes_stream: bool = False
    """Whether the client sends a stream."""
    is_open: bool = field(init=False)
    """Health and reflection: callable by probes and tools without a credential."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_open", self.service.startswith(("grpc.health.", "grpc.reflection.")))


class Caller(msgspec.Struct, eq=False):
    """The caller of an RPC: one object for all of its tasks, so that each sees the current rights."""

    principal: Principal
    face: str = ""
    """The face that the RPC names in its metadata; empty for the hub's own names."""


CALLER: ContextVar[Caller] = ContextVar("toolhub_caller")
"""Set only by the auth interceptor, which keeps it in step with the policy."""


def current_principal() -> Principal:
    """Return the verified caller. Raises LookupError outside of an authenticated RPC: never answer without one."""
    return CALLER.get().principal


def caller_id() -> str:
    """Return the caller's id; empty for an RPC that needs no credential."""
    caller = CALLER.get(None)
    return caller.principal.id if caller is not None else ""


def caller_share() -> str:
    """Return the key for shared limits: the caller's tenant, or its own; empty for an RPC without credential."""
    caller = CALLER.get(None)
    return caller.principal.share if caller is not None else ""


# Layers


HOOKS: Final = ("enter", "on_request", "on_response", "failure", "leave")


class MessageCount(Protocol):
    value: int


class Layer:
    """Subclasses override the hooks they need; what `enter` returns is passed to the other hooks. Hooks never wait."""

    hooks: ClassVar[tuple[str, ...]] = ()
    """The `HOOKS` that the class overrides."""

    def __init_subclass__(cls) -> None:
        cls.hooks = tuple(hook for hook in HOOKS if getattr(cls, hook) is not getattr(Layer, hook))

    def concerns(self, hook: str, method: Method) -> bool:
        """Return whether the layer's `hook` has something to do in the method's RPCs; called once."""
        return hook in self.hooks

    def counters(self, hook: str, method: Method) -> Sequence[MessageCount]:
        """Return the counters of messages for the hook `on_request` or `on_response`; called once. The front counts in
        place, because a hook that only counts would cost one more function call per message."""
        return ()

    def enter(self, method: Method, context: ServicerContext) -> Any:
        """Called before the handler. Raise to refuse the RPC."""

    def on_request(self, method: Method, state: Any, message: Any) -> None:
        """Called with each request message. Raise to refuse it."""

    def on_response(self, method: Method, state: Any) -> None:
        """Called with each response message of a generator or unary handler."""

    def failure(self, method: Method, context: ServicerContext, error: Exception) -> Exception:
        """Return the error that the next outer layer, and finally the caller, gets instead of `error`."""
        return error

    def leave(self, method: Method, state: Any, context: ServicerContext, error: BaseException | None) -> None:
        """Called after the RPC, cancelled or not, but only when `enter` returned."""
