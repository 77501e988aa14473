"""Knobs of credentials: which kinds are accepted, and the issuers of tokens."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from toolhub_service.sections.source_config import Section

# No HMAC: anyone who can verify such a signature can also make it.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
RoleName = Literal["agent", "operator", "approver", "auditor"]
Held = Annotated[str, Meta(pattern=r"^(\*|(scope|group):[\x21-\x7e]+)$", max_length=255)]

# Prefixes of other kinds of principals, and of selectors of the policy.
_RESERVED = ("actor", "group", "issuer", "local", "spiffe")
_UNPAIRED = "auth.modes with {0} and auth.{1} go together: name {2} there, or leave out both"


class Issuer(Section, frozen=True):
    name: Annotated[
        str, Meta(pattern=r"^[a-z][a-z0-9-]{0,31}$", description="Its principals are `name:subject` in the policy.")
    ]
    issuer: Annotated[
        str, Meta(min_length=1, max_length=2_048, description="The claim `iss`, to the letter; an https:// URL.")
    ]
    audiences: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1, description="The claim `aud` must hold one of them; over MCP server.mcp.public_url, if set."
        ),
    ]
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1, description="Accepted signatures.")] = (
        "RS256",
        "ES256",
        "EdDSA",
        "PS256",
    )
    # By default no `JWT`: an ID token, which is made for the client and not for the hub, may have that type.
    types: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1, description="Accepted `typ`: `at+jwt` (RFC 9068); `JWT` too where its access tokens say so."
        ),
    ] = ("at+jwt",)
    jwks_url: Annotated[str, Meta(description="Where its keys are; empty: by discovery.")] = ""
    ca_file: Annotated[str, Meta(description="PEM CAs to trust for it; empty: the system's.")] = ""
    principal_claim: Annotated[str, Meta(min_length=1, description="Claim that names the principal.")] = "sub"
    tenant_claim: Annotated[
        str, Meta(description="Claim that names a tenant: principals are `name:tenant/subject`; empty: none.")
    ] = ""
    groups_claim: Annotated[
        str, Meta(min_length=1, description="Claim with the groups; a path such as `realm_access.roles` will do.")
    ] = "groups"
    login_client_id: Annotated[
        str, Meta(description="Public client that `toolhub login` logs in as; empty: one that it registers.")
    ] = ""
    required_scopes: Annotated[tuple[str, ...], Meta(description="Scopes without which a token is refused.")] = ()
    required_claims: Annotated[
        dict[str, tuple[str, ...]], Meta(description="By claim: values of which it must have one, as `env: [prod]`.")
    ] = msgspec.field(default_factory=dict)
    roles: Annotated[
        dict[Held, tuple[RoleName, ...]],
        Meta(description="By `scope:NAME`, `group:NAME` or `*`: roles at most, of those in the policy; empty: all."),
    ] = msgspec.field(default_factory=dict)
    capabilities: Annotated[
        dict[Held, tuple[str, ...]],
        Meta(description="Likewise: capabilities (globs) at most, of those granted by the policy; empty: all."),
    ] = msgspec.field(default_factory=dict)


class Jwt(Section, frozen=True):
    issuers: Annotated[
        tuple[Issuer, ...],
        Meta(description="Issuers whose tokens are accepted; see [authentication](authentication.md)."),
    ] = ()
    leeway_s: Annotated[float, Meta(description="Seconds by which clocks may differ.", ge=0, le=60)] = 30.0
    max_lifetime_s: Annotated[
        float, Meta(description="Longest time from `iat` to `exp` of a token, seconds; 0: any.", ge=0)
    ] = 86_400.0
    refresh_s: Annotated[
        float,
        Meta(description="Age of an issuer's keys after which they are fetched again, seconds.", ge=10, le=86_400),
    ] = 300.0
    grace_s: Annotated[
        float,
        Meta(description="Age up to which keys are used while their issuer is away, seconds.", ge=0, le=604_800),
    ] = 3_600.0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        # Two issuers with one name would create the same principals; of two with one `iss` only one would be used.
        for key in ("name", "issuer"):
            values = [getattr(issuer, key) for issuer in self.issuers]
            if len(set(values)) < len(values):
                raise ValueError(f"auth.jwt.issuers: two have the same {key}")
        # `group:x` as a principal of an issuer `group` could not be told from a selector of the policy.
        if any(issuer.name in _RESERVED for issuer in self.issuers):
            raise ValueError(f"auth.jwt.issuers: no issuer may be named {', '.join(_RESERVED[:-1])} or {_RESERVED[-1]}")


class TrustDomain(Section, frozen=True):
    name: Annotated[str, Meta(pattern=r"^[a-z0-9._-]{1,255}$", description="Without `spiffe://`, such as example.org.")]
    bundle_file: Annotated[
        str,
        Meta(description="Its CAs, PEM or a SPIFFE bundle (JSON); read again when it changes; empty: of the agent."),
    ] = ""
    tenant: Annotated[str, Meta(max_length=255, description="Tenant of its workloads; empty: none.")] = ""


class Spiffe(Section, frozen=True):
    trust_domains: Annotated[
        tuple[TrustDomain, ...],
        Meta(
            description="Whose X.509-SVIDs count as client certificates; empty with a Workload API: its own, and those "
            "that it is federated with; see [authentication](authentication.md)."
        ),
    ] = ()
    workload_api: Annotated[
        str,
        Meta(
            pattern=r"^(unix:/[^?#]*[^?#/])?$",
            description="Socket of the SPIFFE agent (Workload API), such as unix:///run/spire/sockets/agent.sock, for "
            "the hub's certificate, where server.tls has none, and bundles; empty: $SPIFFE_ENDPOINT_SOCKET, or none "
            "where server.tls.certificate_file is set.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        names = [domain.name for domain in self.trust_domains]
        if len(set(names)) < len(names):
            raise ValueError("auth.spiffe.trust_domains: two have the same name")
        without = [domain.name for domain in self.trust_domains if not domain.bundle_file]
        if without and not self.workload_api:
            raise ValueError(
                f"auth.spiffe.trust_domains: {without[0]} needs a bundle_file, or set auth.spiffe.workload_api"
            )


class Xfcc(Section, frozen=True):
    proxies: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^(spiffe://.+/.+|dns:[^*]+|sha256:[0-9a-fA-F]{64})$")], ...],
        Meta(
            description="Proxies whose x-forwarded-client-cert counts, by their own certificate: SPIFFE id, `dns:NAME` "
            "signed by server.tls.client_ca_file, or `sha256:HEX` of it (DER)."
        ),
    ] = ()
    trust_domains: Annotated[
        tuple[str, ...], Meta(description="Of which proxies may name workloads; empty: those of auth.spiffe.")
    ] = ()


class Auth(Section, frozen=True):
    modes: Annotated[
        tuple[Literal["insecure-local", "api-key", "jwt", "spiffe", "xfcc"], ...],
        Meta(description="Which credentials are accepted; insecure-local (none at all) only on loopback."),
    ] = ("insecure-local", "api-key")
    api_keys_file: Annotated[str, Meta(description="Hashed API keys; empty: <data_dir>/api-keys.yaml.")] = ""
    jwt: Jwt = Jwt()
    spiffe: Spiffe = Spiffe()
    xfcc: Xfcc = Xfcc()

    def __post_init__(self) -> None:
        """Raises ValueError."""
        # A mode without its section accepts nobody, and a section without its mode has no effect.
        if ("jwt" in self.modes) != bool(self.jwt.issuers):
            raise ValueError(_UNPAIRED.format("jwt", "jwt.issuers", "an issuer"))
        domains, by_certificate = self.spiffe.trust_domains, {"spiffe", "xfcc"} & set(self.modes)
        vouched = bool(domains or self.spiffe.workload_api)
        if ("spiffe" in self.modes and not vouched) or (vouched and not by_certificate):
            known = "a trust domain, or a workload_api beside it,"
            raise ValueError(_UNPAIRED.format("spiffe", "spiffe.trust_domains", known))
        if ("xfcc" in self.modes) != bool(self.xfcc.proxies):
            raise ValueError(_UNPAIRED.format("xfcc", "xfcc.proxies", "a proxy"))
        if self.xfcc.proxies and not (domains or self.xfcc.trust_domains):
            raise ValueError("auth.xfcc.trust_domains: name those of which proxies may name workloads")
