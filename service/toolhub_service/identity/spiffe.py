"""X.509-SVIDs: the holder that a certificate names, verified against the bundle of that trust domain only.

The handshake has verified the chain against all CAs that the hub trusts together, so a trust domain could sign ids of
another. So each chain is verified once more, against the CAs of the id's own trust domain, and again when those change.
SPIFFE-ID and X509-SVID, version 1.0 (https://spiffe.io/docs/latest/spiffe-specs/).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cryptography import x509

NOT_INSTALLED: Final = "cryptography is not installed: toolhub extras install spiffe"
CLIENT_CA: Final = ""
"""Key, among trust domains, of the CAs that may sign host names."""

_ID_MAX_CHARS: Final = 2_048
_ID: Final = re.compile(r"spiffe://([a-z0-9._-]{1,255})((?:/[A-Za-z0-9._-]+)+)")
_REMEMBERED: Final = 4_096


def is_installed() -> bool:
    return find_spec("cryptography") is not None


def trust_domain_of(uri: str) -> str:
    """Return the trust domain of a workload's SPIFFE id; empty for anything else, such as the id of a trust domain
    itself."""
    found = _ID.fullmatch(uri) if len(uri) <= _ID_MAX_CHARS else None
    # SPIFFE-ID §2.2 forbids dot segments: a proxy that resolves them would read another id.
    if found is None or any(part in (".", "..") for part in found[2].split("/")):
        return ""
    return found[1]


class Peer(NamedTuple):
    """What the certificate of the other end of a connection proves."""

    sha256: str
    """sha256 of the certificate (DER), hex."""
    end_s: float
    """Seconds since the epoch at which it ceases to be valid."""
    spiffe_id: str = ""
    """Verified; empty: the certificate has none."""
    problem: str = ""
    """Why its SPIFFE id is not accepted."""
    hosts: frozenset[str] = frozenset()
    """DNS names, if one of the CAs that may sign host names has signed it."""


class Peers:
    """Caches the result for each chain until that expires or any CA is replaced."""

    def __init__(self, trusted: Callable[[], Mapping[str, bytes]], now_s: Callable[[], float]) -> None:
        """`trusted` returns CAs (PEM) by trust domain, and those of `CLIENT_CA`; a new object whenever they change."""
        self._trusted = trusted
        self._now_s = now_s
        self._seen: Mapping[str, bytes] = {}
        self._stores: dict[str, list[x509.Certificate]] = {}
        self._found: dict[tuple[bytes, ...], Peer] = {}

    def peer(self, chain: tuple[bytes, ...]) -> Peer:
        """Return the peer of a chain: PEM, the certificate of the peer first, as accepted by the handshake."""
        trusted = self._trusted()
        # By identity, because comparing the CAs on each call would cost more than verifying.
        if trusted is not self._seen:
            self._seen = trusted
            self._found.clear()
            self._stores.clear()
        found = self._found.get(chain)
        if found is None:
            if len(self._found) >= _REMEMBERED:
                # The oldest is dropped: clients with ever new certificates cannot grow this.
                self._found.pop(next(iter(self._found)))
            found = self._found[chain] = self._read_peer(chain)
        if found.end_s <= self._now_s() and found.sha256:  # an unreadable one has its own problem
            return Peer("", found.end_s, problem="The certificate of the connection has expired: connect again.")
        return found

    def _read_peer(self, chain: Sequence[bytes]) -> Peer:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding

        try:
            leaf, *others = x509.load_pem_x509_certificates(b"\n".join(chain))
            names = _names(leaf)
        except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension) as unreadable:
            return Peer("", 0.0, problem=f"The certificate cannot be read: {type(unreadable).__name__}.")
        digest = hashlib.sha256(leaf.public_bytes(Encoding.DER)).hexdigest()
        end_s, spiffe_id, problem = leaf.not_valid_after_utc.timestamp(), "", ""
        uris = names.get_values_for_type(x509.UniformResourceIdentifier) if names else []
        # In any case: `SPIFFE:` must not pass as a certificate without an id.
        if any(uri.lower().startswith("spiffe:") for uri in uris):
            try:
                end_s, spiffe_id = self._svid_end_s(leaf, others, uris), uris[0]
            except _NotVouchedFor as refused:
                problem = str(refused)
        hosts: frozenset[str] = frozenset()
        if names and CLIENT_CA in self._seen:
            # Only the ordinary CA may sign host names; without them the SPIFFE id is still accepted.
            with suppress(_NotVouchedFor):
                end_s = min(end_s, self._end_s(leaf, others, CLIENT_CA))
                # RFC 4343: host names are compared without case.
                hosts = frozenset(host.lower() for host in names.get_values_for_type(x509.DNSName))
        return Peer(digest, end_s, spiffe_id, problem, hosts)

    def _svid_end_s(self, leaf: x509.Certificate, others: Sequence[x509.Certificate], uris: Sequence[str]) -> float:
        if len(uris) != 1:
            raise _NotVouchedFor(f"The certificate has {len(uris)} URIs; an X.509-SVID has one.")
        domain = trust_domain_of(uris[0])
        if not domain:
            raise _NotVouchedFor("The URI of the certificate is not the SPIFFE id of a workload.")
        if domain not in self._seen:
            raise _NotVouchedFor(f"The hub has no bundle of the trust domain {domain}.")
        try:
            return self._end_s(leaf, others, domain)
        except _NotVouchedFor as refused:
            message = f"The bundle of {domain} does not vouch for the certificate: {refused}."
            raise _NotVouchedFor(message) from None

    def _end_s(self, leaf: x509.Certificate, others: Sequence[x509.Certificate], domain: str) -> float:
        """Return when the first of the chain expires. Raises _NotVouchedFor where no CA of the domain has signed it."""
        from cryptography import x509
        from cryptography.x509.verification import ExtensionPolicy, PolicyBuilder, Store, VerificationError

        _check_client(leaf)
        if domain not in self._stores:
            self._stores[domain] = x509.load_pem_x509_certificates(self._seen[domain])
        # The relevant parts of a leaf are checked above: SVIDs need not have everything that web certificates have.
        policy = PolicyBuilder().store(Store(self._stores[domain])).time(datetime.fromtimestamp(self._now_s(), UTC))
        policy = policy.extension_policies(
            ca_policy=ExtensionPolicy.webpki_defaults_ca(), ee_policy=ExtensionPolicy.permit_all()
        )
        try:
            chain = policy.build_client_verifier().verify(leaf, list(others)).chain
        except VerificationError as refused:
            # The rest says where in the library it happened, which does not help an operator.
            raise _NotVouchedFor(str(refused).partition(" (encountered")[0]) from None
        # An intermediate that expires sooner limits what the leaf can prove.
        return min(each.not_valid_after_utc.timestamp() for each in chain)


class _NotVouchedFor(Exception):
    """Why a certificate is not accepted."""


def _names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    from cryptography import x509

    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def _check_client(leaf: x509.Certificate) -> None:
    """Raises _NotVouchedFor where the certificate cannot identify a client (X509-SVID, 4 and 5.2)."""
    from cryptography import x509

    found = {type(extension.value): extension.value for extension in leaf.extensions}
    basic, usage, purposes = (found.get(kind) for kind in (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage))
    if isinstance(basic, x509.BasicConstraints) and basic.ca:
        raise _NotVouchedFor("it is a CA's")
    if isinstance(usage, x509.KeyUsage) and (usage.key_cert_sign or usage.crl_sign or not usage.digital_signature):
        raise _NotVouchedFor("its key usage is another")
    if isinstance(purposes, x509.ExtendedKeyUsage) and x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH not in purposes:
        raise _NotVouchedFor("it is not for clients")
