"""Services whose RPCs stand in the contract and are not built yet: UNIMPLEMENTED, with ErrorInfo that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor

from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.transport.rpc import ServicerContext


def unbuilt(service: ServiceDescriptor, servicer: type) -> Any:
    """A servicer that answers every RPC of `service` with UNIMPLEMENTED / NOT_BUILT."""
    behaviours = {method.name: _refusing(method.full_name) for method in service.methods}
    return type(f"Unbuilt{service.name}", (servicer,), behaviours)()


def _refusing(rpc: str) -> Callable[..., Any]:
    """A coroutine serves all four kinds: a stream handler may be one, too."""

    async def refuse(_self: Any, _request: Any, _context: ServicerContext) -> None:
        raise HubFailure(
            HubStatus.UNIMPLEMENTED, "NOT_BUILT", f"{rpc} stands in the contract and is not served yet.", rpc=rpc
        )

    return refuse
