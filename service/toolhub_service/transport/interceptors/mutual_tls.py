"""Identity from client certificates: of the connection itself, or of a proxy's client, as the proxy forwards it.

A credential in a request has priority over its connection: with an API key or token in the metadata, certificates are
ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.identity.spiffe import Peer, Peers, trust_domain_of
from toolhub_service.identity.xfcc import HEADER, XfccInvalid, last_element
from toolhub_service.transport.interceptors.auth import DescribePrincipal, credential_in
from toolhub_service.transport.rpc import ServicerContext
from toolhub_service.transport.status import RpcFailure

_REMEMBERED: Final = 4_096


class SpiffePrincipals:
    """Principals by SPIFFE id; an id keeps its object while the policy describes it by the same one."""

    def __init__(self, describe: DescribePrincipal, tenants: Mapping[str, str]) -> None:
        """`tenants` are by trust domain."""
        self._describe = describe
        self._tenants = dict(tenants)
        self._made: dict[str, tuple[Principal, Principal]] = {}

    def principal(self, spiffe_id: str) -> Principal:
        described = self._describe(spiffe_id)
        found = self._made.get(spiffe_id)
        if found is not None and found[0] is described:
            return found[1]
        if len(self._made) >= _REMEMBERED:
            self._made.pop(next(iter(self._made)))
        domain = trust_domain_of(spiffe_id)
        tenant = described.tenant or self._tenants.get(domain, "")  # the policy has priority, as it has for tokens
        principal = replace(described, issuer=f"spiffe://{domain}", tenant=tenant)
        self._made[spiffe_id] = described, principal
        return principal


class ClientCertificates:
    """Authenticates the X.509-SVID of the client's connection."""

    mode = "spiffe"
    advice = "Connect with an X.509-SVID of a trust domain in auth.spiffe as client certificate."

    def __init__(self, peers: Peers, principals: SpiffePrincipals, proxies: Proxies | None = None) -> None:
        """`proxies` are never callers themselves."""
        self._peers = peers
        self._principals = principals
        self._proxies = proxies

    def authenticate(self, metadata: Mapping[str, str | bytes], context: ServicerContext) -> Principal | None:
        if credential_in(metadata):
            return None
        chain = chain_of(context)
        if not chain:
            return None
        peer = self._peers.peer(chain)
        if peer.problem:
            raise _credential_failure(peer.problem, "certificate")
        if not peer.spiffe_id or (self._proxies is not None and self._proxies.has(peer)):
            return None
        return self._principals.principal(peer.spiffe_id)


class Proxies:
    """The proxies that are trusted to name their clients."""

    def __init__(self, listed: Sequence[str]) -> None:
        """Each entry is `spiffe://…`, `dns:NAME`, or `sha256:HEX` of a certificate (DER)."""
        self._ids = frozenset(each for each in listed if each.startswith("spiffe://"))
        self._hosts = frozenset(each[4:].lower() for each in listed if each.startswith("dns:"))
        self._digests = frozenset(each[7:].lower() for each in listed if each.startswith("sha256:"))

    def has(self, peer: Peer) -> bool:
        """Return whether the certificate is a listed proxy's. Its digest suffices where its SPIFFE id is not accepted;
        an expired one never is."""
        is_named = peer.spiffe_id in self._ids if peer.spiffe_id else False
        return is_named or bool(self._hosts & peer.hosts) or peer.sha256 in self._digests


class ForwardedCertificates:
    """Authenticates the SPIFFE id of a proxy's client, in XFCC. The header is ignored unless a listed proxy sends
    it."""

    mode = "xfcc"
    advice = "Connect through a proxy that is listed in auth.xfcc, with a client certificate."

    def __init__(
        self,
        peers: Peers,
        proxies: Proxies,
        trust_domains: frozenset[str],
        principals: SpiffePrincipals,
        ignored: Callable[[str], None],
    ) -> None:
        """`ignored` receives gRPC's peer name when its header is ignored."""
        self._peers = peers
        self._proxies = proxies
        self._trust_domains = trust_domains
        self._principals = principals
        self._ignored = ignored

    def authenticate(self, metadata: Mapping[str, str | bytes], context: ServicerContext) -> Principal | None:
        if HEADER not in metadata:
            return None
        chain = chain_of(context)
        if not chain or not self._proxies.has(self._peers.peer(chain)):
            self._ignored(context.peer())
            return None
        if credential_in(metadata):
            return None
        sent = [value for name, value in context.invocation_metadata() or () if name == HEADER]
        if len(sent) != 1:
            raise _credential_failure("The proxy has sent several x-forwarded-client-cert.", "xfcc")
        try:
            uris = last_element(str(sent[0])).get("uri", [])
        except XfccInvalid as invalid:
            raise _credential_failure(
                f"The proxy's x-forwarded-client-cert cannot be read: {invalid}.", "xfcc"
            ) from None
        if len(uris) != 1:
            message = f"The certificate of the proxy's client has {len(uris)} URIs; an X.509-SVID has one."
            raise _credential_failure(message, "xfcc")
        domain = trust_domain_of(uris[0])
        if domain not in self._trust_domains:
            raise _credential_failure("The proxy's client has no SPIFFE id of a trust domain in auth.xfcc.", "xfcc")
        return self._principals.principal(uris[0])


def chain_of(context: ServicerContext) -> tuple[bytes, ...]:
    """Return the client's certificate and those that it sent with it, as PEM; empty where it sent none."""
    known = context.auth_context()
    return (*known.get("x509_pem_cert", ()), *known.get("x509_pem_cert_chain", ()))


def _credential_failure(message: str, problem: str) -> RpcFailure:
    return RpcFailure(Reason.CREDENTIAL_REFUSED, message, {"problem": problem})
