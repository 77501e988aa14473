"""Certificates made on the spot, and TLS contexts and settings of a hub that use and trust them."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def server_and_client_tls(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server that is `name` and of a client that trusts it; files are written to `folder`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    both = folder / "server.pem"
    both.write_bytes(private + pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(both)
    return server, ssl.create_default_context(cadata=pem.decode())


@dataclass(frozen=True)
class Signed:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority made for one test; with `above`, one that another has signed."""

    def __init__(self, *, uris: Sequence[str] = (), above: Authority | None = None) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._above = above or self
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test authority {id(self)}")])
        self._certificate = self._above._build(self._name, self._key, dns=(), uris=uris, lifetime_s=3_600, is_ca=True)
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def sign(
        self,
        name: str,
        *,
        dns: Sequence[str] = ("localhost",),
        uris: Sequence[str] = (),
        begins_in_s: float = -3_600,
        lifetime_s: float = 3_600,
        is_ca: bool = False,
    ) -> Signed:
        """The chain without the root; both times are from now on."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._build(
            subject, key, dns=dns, uris=uris, begins_in_s=begins_in_s, lifetime_s=lifetime_s, is_ca=is_ca
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        chain = b"" if self._above is self else self.pem
        return Signed(certificate.public_bytes(serialization.Encoding.PEM) + chain, private)

    def _build(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        dns: Sequence[str],
        uris: Sequence[str],
        lifetime_s: float,
        is_ca: bool,
        begins_in_s: float = -3_600,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        begin = now + dt.timedelta(seconds=begins_in_s)
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begin)
        builder = builder.not_valid_after(now + dt.timedelta(seconds=lifetime_s))
        builder = builder.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        if key is not self._key:
            signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(signer, critical=False)
        builder = builder.add_extension(_usage(is_ca=is_ca), critical=True)
        if not is_ca:
            both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        names = [*map(x509.DNSName, dns), *map(x509.UniformResourceIdentifier, uris)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def tls_settings(
    folder: Path, authority: Authority, *, client_ca: Authority | None = None, signed: Signed | None = None
) -> dict[str, Any]:
    signed = signed or authority.sign("localhost")
    (folder / "hub.pem").write_bytes(signed.certificate)
    (folder / "hub.key").write_bytes(signed.key)
    tls = {"certificate_file": str(folder / "hub.pem"), "key_file": str(folder / "hub.key")}
    if client_ca is not None:
        (folder / "clients.pem").write_bytes(client_ca.pem)
        tls["client_ca_file"] = str(folder / "clients.pem")
    return {"server": {"listen": "localhost:0", "tls": tls}}
