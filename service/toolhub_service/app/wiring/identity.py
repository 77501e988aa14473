"""Wires authentication: by API keys, tokens or certificates, or none.

For tokens nothing is fetched, and no library loaded, before the first one arrives.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from toolhub_service.app.listening import ListenRefused
from toolhub_service.app.wiring.deps import Deps
from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.ports import AccessObserver
from toolhub_service.identity import spiffe
from toolhub_service.identity.api_keys import KnownKeys
from toolhub_service.identity.keys import NOT_INSTALLED, FetchFailed, check_url, is_installed
from toolhub_service.identity.spiffe import Peers
from toolhub_service.identity.token import IssuerTerms
from toolhub_service.identity.tokens import Tokens
from toolhub_service.identity.xfcc import HEADER
from toolhub_service.policy.live import LivePolicy
from toolhub_service.settings.auth_section import Issuer, Jwt
from toolhub_service.settings.document import Settings
from toolhub_service.telemetry import names
from toolhub_service.telemetry.counters import Count, SharedCount
from toolhub_service.telemetry.metrics import count_of
from toolhub_service.transport.interceptors.auth import (
    ApiKeys,
    Authenticator,
    AuthLayer,
    BearerTokens,
    DescribePrincipal,
    InsecureLocal,
    peer_address,
)
from toolhub_service.transport.interceptors.mutual_tls import (
    ClientCertificates,
    ForwardedCertificates,
    Proxies,
    SpiffePrincipals,
)


def issuer_terms(settings: Settings) -> list[IssuerTerms]:
    """Return the terms. Raises ListenRefused for a URL from which no key may be fetched."""
    return [_issuer_terms(issuer, settings.auth.jwt) for issuer in settings.auth.jwt.issuers]


def check_credentials(settings: Settings) -> list[IssuerTerms]:
    """Return the terms of the issuers. Raises ListenRefused when tokens or certificates are wanted and unusable."""
    terms = issuer_terms(settings)
    if terms and not is_installed():
        raise ListenRefused(f"auth.modes has jwt, and {NOT_INSTALLED}.")
    if {"spiffe", "xfcc"} & set(settings.auth.modes) and not spiffe.is_installed():
        raise ListenRefused(f"auth.modes has spiffe or xfcc, and {spiffe.NOT_INSTALLED}.")
    return terms


class Credentials(msgspec.Struct, frozen=True):
    """The accepted credentials, by entrance."""

    keys: KnownKeys
    tokens: Tokens
    grpc: AuthLayer
    mcp: AuthLayer


def make_credentials(deps: Deps, policy: LivePolicy, access: AccessObserver) -> Credentials:
    """Return the authenticators.

    Raises KeyFileInvalid, and ListenRefused when tokens or certificates are wanted and unusable.
    """
    terms, url = check_credentials(deps.settings), deps.settings.server.mcp.public_url
    tokens, who = Tokens(terms, deps.clock), describe(policy)
    by_certificate = _by_certificate(deps, who, access)
    keys = KnownKeys(deps.paths.key_file().read(), who, lambda: deps.clock.unix_ms() / 1_000, policy.tenancy)
    # No API key may have the name of a principal that another credential creates: `spiffe:` begins every SPIFFE id.
    others = tokens.names | ({"spiffe"} if by_certificate else set())
    local: dict[str, Authenticator] = {"insecure-local": InsecureLocal(who)}

    authentications = deps.observing.metrics.family(names.AUTHENTICATIONS)

    def count_for(*labels: str) -> Count | SharedCount:
        return count_of(authentications.labels(*labels))

    def layer(audiences: frozenset[str] | None, *, needs_tls_1_3: bool = False) -> AuthLayer:
        kinds: dict[str, Authenticator] = {
            **({} if by_certificate else local),  # asked first where nothing but an entry of metadata could be one
            "jwt": BearerTokens(tokens, who, policy.again, audiences),  # before keys: it ignores what is no token
            "api-key": ApiKeys(keys, others),
            **by_certificate,
            **local,
        }
        accepted = [kind for mode, kind in kinds.items() if mode in deps.settings.auth.modes]
        return AuthLayer(accepted, needs_tls_1_3=needs_tls_1_3, counted=count_for)

    tls = deps.settings.server.tls
    needs_tls_1_3 = deps.settings.has_tls and tls.min_version == "1.3"
    return Credentials(keys, tokens, layer(None, needs_tls_1_3=needs_tls_1_3), layer(frozenset({url}) if url else None))


def _by_certificate(deps: Deps, who: DescribePrincipal, access: AccessObserver) -> dict[str, Authenticator]:
    """Return the authenticators by client certificate, by mode, in the order in which they are tried."""
    auth, domains = deps.settings.auth, deps.settings.auth.spiffe.trust_domains
    if not {"spiffe", "xfcc"} & set(auth.modes):
        return {}
    peers = Peers(lambda: deps.certificates.trusted, lambda: deps.clock.unix_ms() / 1_000)
    principals = SpiffePrincipals(who, {domain.name: domain.tenant for domain in domains})
    proxies = Proxies(auth.xfcc.proxies)
    named = frozenset(auth.xfcc.trust_domains or (domain.name for domain in domains))

    def count_ignored(peer: str) -> None:
        access.count_refusal(peer_address(peer), HEADER, "CREDENTIAL_IGNORED")

    return {
        "xfcc": ForwardedCertificates(peers, proxies, named, principals, count_ignored),
        "spiffe": ClientCertificates(peers, principals, proxies),
    }


def describe(policy: LivePolicy) -> Callable[[str], Principal]:
    """Return a function from a name to its roles and rights under the policy in force at that time."""
    return policy.principal


def _issuer_terms(issuer: Issuer, jwt: Jwt) -> IssuerTerms:
    try:
        check_url("issuer", issuer.issuer)
        if issuer.jwks_url:
            check_url("jwks_url", issuer.jwks_url)
    except FetchFailed as unfit:
        raise ListenRefused(f"auth.jwt.issuers: {issuer.name}: {unfit}.") from unfit
    return IssuerTerms(
        name=issuer.name,
        issuer=issuer.issuer,
        audiences=frozenset(issuer.audiences),
        algorithms=frozenset(issuer.algorithms),
        types=frozenset(kind.lower().removeprefix("application/") for kind in issuer.types),
        jwks_url=issuer.jwks_url,
        ca_file=issuer.ca_file,
        principal_claim=issuer.principal_claim,
        tenant_claim=issuer.tenant_claim,
        groups_claim=issuer.groups_claim,
        required_scopes=frozenset(issuer.required_scopes),
        required_claims={claim: frozenset(values) for claim, values in issuer.required_claims.items()},
        roles={held: frozenset(map(Role, names)) for held, names in issuer.roles.items()},
        capabilities={held: frozenset(globs) for held, globs in issuer.capabilities.items()},
        leeway_s=jwt.leeway_s,
        max_lifetime_s=jwt.max_lifetime_s,
        refresh_s=jwt.refresh_s,
        grace_s=jwt.grace_s,
    )
