"""The RPC being served, for interceptors and servicers: method, verified principal, deadline and ids of its calls.

A ContextVar carries it: interceptor and handler run in the same task, and each RPC has a context of its own.
It is set once and never reset, for a reset in an async generator may run in another context (grpc/grpc#42295).
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


class Caller(msgspec.Struct, eq=False):
    """Who makes an RPC: one object for all of its tasks, so that each sees the rights of now."""

    principal: Principal
    face: str = ""
    """The face that the RPC names in its metadata; empty: the hub's own names."""


CALLER: ContextVar[Caller] = ContextVar("toolhub_caller")
"""Set by the auth interceptor alone, which keeps it in step with the policy."""


def current_principal() -> Principal:
    """The verified caller. Raises LookupError outside of an authenticated RPC: never answer without one."""
    return CALLER.get().principal


def caller_id() -> str:
    """Whose RPC it is; empty for one that needs no credential."""
    caller = CALLER.get(None)
    return caller.principal.id if caller is not None else ""


def caller_share() -> str:
    """By what its part of common rooms is counted: its tenant's, or its own; empty for one without credential."""
    caller = CALLER.get(None)
    return caller.principal.share if caller is not None else ""


# Layers


HOOKS: Final = ("enter", "received", "sent", "failure", "leave")


class MessageCount(Protocol):
    value: int


class Layer:
    """Subclasses override what concerns them; what `enter` returns comes back in the other hooks. Hooks never wait."""

    hooks: ClassVar[tuple[str, ...]] = ()
    """Those of `HOOKS` that the class overrides."""

    def __init_subclass__(cls) -> None:
        cls.hooks = tuple(hook for hook in HOOKS if getattr(cls, hook) is not getattr(Layer, hook))

    def concerns(self, hook: str, method: Method) -> bool:
        """Whether the layer has something to do at one of its `hooks` in the method's RPCs; asked once."""
        return hook in self.hooks

    def counters(self, hook: str, method: Method) -> Sequence[MessageCount]:
        """What counts the messages that come, at the hook `received`, or leave, at `sent`; asked once. The front counts
        in place: a hook that does no more would be a function more for each message."""
        return ()

    def enter(self, method: Method, context: ServicerContext) -> Any:
        """Before the handler. Raise to refuse the RPC."""

    def received(self, method: Method, state: Any, message: Any) -> None:
        """Each request message. Raise to refuse it."""

    def sent(self, method: Method, state: Any) -> None:
        """Each response message of a generator or unary handler."""

    def failure(self, method: Method, context: ServicerContext, error: Exception) -> Exception:
        """The error that the next layer out, and in the end the caller, gets instead of `error`."""
        return error

    def leave(self, method: Method, state: Any, context: ServicerContext, error: BaseException | None) -> None:
        """After the RPC, whatever happened; cancellation too. Only when `enter` returned."""
