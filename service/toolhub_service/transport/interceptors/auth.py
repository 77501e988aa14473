"""Identity, only from a verified credential: the first authenticator that recognises one decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import grpc

from toolhub_service.domain.principal import Principal
from toolhub_service.transport.interceptors.layer import Layer
from toolhub_service.transport.rpc import Method, ServicerContext, set_principal
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


class AuthLayer(Layer):
    """UNAUTHENTICATED with advice when no authenticator knows the caller."""

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = tuple(authenticators)

    def enter(self, method: Method, context: ServicerContext) -> None:
        if method.is_open:
            return
        sent = context.invocation_metadata() or ()
        metadata = dict(sent)
        if len(metadata) < len(sent) and sum(key in CREDENTIAL_ENTRIES for key, _ in sent) > 1:
            raise RpcFailure(
                grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REFUSED", "Several credentials were sent; send one."
            )
        for authenticator in self._authenticators:
            principal = authenticator.authenticate(metadata, context)
            if principal is not None:
                set_principal(principal)
                return
        advice = " ".join(authenticator.advice for authenticator in self._authenticators)
        if any(entry in metadata for entry in CREDENTIAL_ENTRIES):
            told = f"This hub takes no such credential: leave it out. {advice}".rstrip()
            raise RpcFailure(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REFUSED", told)
        raise RpcFailure(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_MISSING", f"No credential was sent. {advice}")
