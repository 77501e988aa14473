"""Identity, only from a verified credential: the first authenticator that recognises one decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import grpc

from toolhub_service.domain.principal import Principal
from toolhub_service.transport.interceptors.layer import Layer
from toolhub_service.transport.interceptors.policy import check_kept, roles_used
from toolhub_service.transport.rpc import Caller, Method, ServicerContext, set_principal
from toolhub_service.transport.status import RpcFailure

CREDENTIAL_ENTRIES = ("authorization", "x-api-key")
"""Metadata in which a credential may come."""


class Authenticator(Protocol):
    """One kind of credential."""

    @property
    def advice(self) -> str:
        """How a caller presents this credential."""
        ...

    def authenticate(self, metadata: Mapping[str, str | bytes], context: ServicerContext) -> Principal | None:
        """The caller; None when the RPC carries no such credential. Raises RpcFailure when it carries a bad one."""
        ...


def _differ(metadata: Mapping[str, str | bytes]) -> bool:
    """Whether both entries are there and say something else."""
    bearer, key = (str(metadata.get(entry, "")) for entry in CREDENTIAL_ENTRIES)
    return bool(bearer and key) and key != (bearer[7:].strip() if bearer[:7].lower() == "bearer " else bearer)


class StreamRights:
    """What a stream was opened with: a credential that holds, and the roles that its policy gave."""

    __slots__ = ("_authenticate", "_caller", "_method", "_roles")

    def __init__(self, method: Method, caller: Caller, authenticate: Callable[[], Principal | None]) -> None:
        self._method = method
        self._caller = caller
        self._authenticate = authenticate
        self._roles = roles_used(method, caller.principal)

    def check(self) -> None:
        """Raises RpcFailure when the key was revoked or the policy of now no longer opens the stream."""
        principal = self._authenticate()
        # A policy describes a principal once: another object is the word of another policy.
        if principal is not None and principal is not self._caller.principal:
            check_kept(self._method, principal, self._roles)
            self._caller.principal = principal


class AuthLayer(Layer):
    """UNAUTHENTICATED with advice when no authenticator knows the caller."""

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = tuple(authenticators)

    def enter(self, method: Method, context: ServicerContext) -> StreamRights | None:
        """For a stream, what is asked again at each message."""
        if method.is_open:
            return None
        sent = context.invocation_metadata() or ()
        metadata = dict(sent)
        is_doubled = len(metadata) < len(sent) and sum(key in CREDENTIAL_ENTRIES for key, _ in sent) > 1
        if is_doubled or ("x-api-key" in metadata and _differ(metadata)):
            raise RpcFailure(
                grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REFUSED", "Several credentials were sent; send one."
            )
        for authenticator in self._authenticators:
            principal = authenticator.authenticate(metadata, context)
            if principal is not None:
                caller = set_principal(principal)
                if method.kind == "unary":
                    return None
                return StreamRights(method, caller, partial(authenticator.authenticate, metadata, context))
        advice = " ".join(authenticator.advice for authenticator in self._authenticators)
        if any(entry in metadata for entry in CREDENTIAL_ENTRIES):
            told = f"This hub takes no such credential: leave it out. {advice}".rstrip()
            raise RpcFailure(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REFUSED", told)
        raise RpcFailure(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_MISSING", f"No credential was sent. {advice}")

    def received(self, method: Method, state: StreamRights | None, message: Any) -> None:
        """Rights that were withdrawn end the streams that were opened with them, at their next message."""
        if state is not None:
            state.check()

    def sent(self, method: Method, state: StreamRights | None) -> None:
        """The same for what is only listened to; an upload that was taken is answered."""
        if state is not None and method.kind != "client_stream":
            state.check()
