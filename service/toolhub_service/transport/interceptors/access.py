"""Tell the observer of RPCs that are refused for a credential or a role, wherever that is found out: when they
begin, at a message of a stream whose rights were withdrawn, or in a servicer. RPCs that are served never come here."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from toolhub_service.domain.ports import AccessObserver
from toolhub_service.transport.authenticators import key_id_of, presented_in
from toolhub_service.transport.interceptors.layer import Layer
from toolhub_service.transport.rpc import Method, ServicerContext, caller_id
from toolhub_service.transport.status import RpcFailure

REASONS: Final = frozenset({"CREDENTIAL_MISSING", "CREDENTIAL_REFUSED", "ROLE_MISSING", "PRINCIPAL_UNKNOWN"})
"""Of ErrorInfo: what is told to the observer."""

_KEY_ID: Final = re.compile(r"thk_[0-9a-f]{8}")
"""As `toolhub keys create` makes them. What else stands in its place might be a secret that was mistyped."""

_NETWORK_V6: Final = 64
"""Bits: one subscriber commands a whole /64 (RFC 6177), and would be another peer with each RPC."""


class AccessLayer(Layer):
    """Stands outside of the layers that refuse."""

    def __init__(self, observer: AccessObserver) -> None:
        self._observer = observer

    def failure(self, method: Method, context: ServicerContext, error: Exception) -> Exception:
        reason = getattr(error, "reason", "")
        if reason not in REASONS:
            return error
        metadata = dict(context.invocation_metadata() or ())
        found = _KEY_ID.fullmatch(key_id_of(presented_in(metadata)))
        wait_s = self._observer.refused(
            peer_address(context.peer()),
            method.path,
            reason,
            principal=caller_id(),
            key_id=found.group() if found else "",
        )
        return replace(error, retry_after_s=wait_s) if wait_s and isinstance(error, RpcFailure) else error


def peer_address(peer: str) -> str:
    """The address in gRPC's name of a peer (`ipv4:192.0.2.1:5000`, `ipv6:%5B::1%5D:5000`, `unix:`), without its port;
    of IPv6 the /64; `unix` for a socket, and `unknown` for what is no address."""
    scheme, _, rest = peer.partition(":")
    if scheme.startswith("unix"):
        return "unix"
    try:
        address = ipaddress.ip_address(unquote(rest).rpartition(":")[0].strip("[]"))
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), _NETWORK_V6), strict=False))
