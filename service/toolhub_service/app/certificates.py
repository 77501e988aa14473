"""Certificates and CAs of the hub's listeners, read from disk, again when the files change, or from the Workload API.

A handshake uses what is in force at its moment; existing connections go on. Files that are broken, half written, or
writable by others do not come into force: the previous ones stay, and the caller is given the problem.
"""

from __future__ import annotations

import math
import os
import re
import ssl
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

import grpc
import msgspec

from toolhub_service.app.config_files.editing import Stamp, stamp_of
from toolhub_service.identity import spiffe
from toolhub_service.identity.workload_api import X509Context
from toolhub_service.settings.document import Settings
from toolhub_service.settings.server_section import Tls

CERTIFICATE, CLIENT_CA, WORKLOAD_API = "certificate", "client_ca", "workload_api"
"""Names of what is read: the hub's own certificate with its key, its clients' CAs, and the whole Workload API
answer."""

_MAX_BYTES: Final = 1024 * 1024
# While files are being replaced they may change between two reads; the start waits for that.
_TRIES: Final = 5
_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


class CertificateInvalid(ValueError):
    """Files hold no usable certificate, key or CA; the message says which, and why."""


class _Changing(Exception):
    """The files changed while they were read."""


class Validity(NamedTuple):
    """Seconds since the epoch."""

    begin_s: float
    end_s: float


class _Held(NamedTuple):
    contents: Sequence[bytes]
    """PEM texts."""
    validity: Validity


class Change(msgspec.Struct, frozen=True):
    """The result for changed files."""

    name: str
    validity: Validity
    """The validity of what is in force now."""
    problem: str = ""
    """Why the files on disk do not come into force; empty when they do."""


class _Followed:
    """Files that belong together."""

    def __init__(
        self,
        name: str,
        files: dict[str, str],
        check: Callable[[Sequence[bytes]], _Held],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`files`: paths by the names of their settings. Raises CertificateInvalid."""
        self._now_s = now_s
        self._begins_s = math.inf
        """When a certificate that is not yet valid can come into force."""
        self.held: _Held | None = None
        self.name = name
        self._settings = dict(files)
        self._check = check
        for attempt in range(_TRIES):
            try:
                self.read()
                return
            except _Changing:
                if attempt + 1 == _TRIES:
                    raise CertificateInvalid(f"{', '.join(files.values())}: cannot be read: still changing.") from None

    @property
    def paths(self) -> list[Path]:
        return [Path(file).expanduser() for file in self._settings.values()]

    @property
    def has_changed(self) -> bool:
        """Return whether the files changed since they were last read, with or without success."""
        return self._stamps != self._stamps_now() or self._begins_s <= self._now_s()

    def read(self) -> None:
        """Read the files and put them in force. Raises CertificateInvalid or _Changing, and then changes nothing."""
        stamps = self._stamps_now()
        try:
            contents = [_content(name, path) for name, path in zip(self._settings, self.paths, strict=True)]
            held = self._check(contents)
            self._begins_s = held.validity.begin_s if held.validity.begin_s > self._now_s() else math.inf
            _check_is_no_worse(", ".join(self._settings.values()), held, self.held, self._now_s())
        except CertificateInvalid:
            if stamps != self._stamps_now():
                raise _Changing from None
            # Kept also on failure, so that the same broken files are not read and reported at every check.
            self._stamps = stamps
            raise
        if stamps != self._stamps_now():
            raise _Changing
        self._stamps, self.held = stamps, held

    def _stamps_now(self) -> list[Stamp]:
        return [stamp_of(path) for path in self.paths]


class LiveCertificates:
    """The certificates that listeners present and trust now.

    `reload` is called regularly; handshakes never wait for a disk.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        given: X509Context | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`given` by the Workload API, when that is configured. Raises CertificateInvalid."""
        self._now_s = now_s
        settings = settings or Settings()
        tls, domains = settings.server.tls, settings.auth.spiffe.trust_domains
        self._tls = tls
        # gRPC for Python asks all clients for a certificate or none; on other listeners they may have another
        # credential.
        self._certificates_are_needed = bool(tls.client_ca_file)
        self.trusted: Mapping[str, bytes] = {}
        """CAs (PEM) by trust domain, and those of `spiffe.CLIENT_CA`; a new object when they change."""
        self._listed = {domain.name: bool(domain.bundle_file) for domain in domains}
        self._lock = Lock()
        self._groups: list[_Followed] = []
        self._given: dict[str, _Held] = {}
        self.spiffe_id = ""
        """The hub's own certificate from the Workload API."""
        if tls.certificate_file:
            pair = {"server.tls.key_file": tls.key_file, "server.tls.certificate_file": tls.certificate_file}
            self._groups.append(_Followed(CERTIFICATE, pair, partial(_check_pair, _describe_files(tls)), now_s))
        if tls.certificate_file or given is not None:
            bundles = {_bundle_of(domain.name): domain.bundle_file for domain in domains if domain.bundle_file}
            if tls.client_ca_file:
                bundles = {CLIENT_CA: tls.client_ca_file, **bundles}
            for name, file in bundles.items():
                setting = "server.tls.client_ca_file" if name == CLIENT_CA else "auth.spiffe.trust_domains: bundle_file"
                self._groups.append(_Followed(name, {setting: file}, partial(_check_authorities, setting, file), now_s))
        if given is not None:
            self._given, self.spiffe_id = self._check_parts(given), given.spiffe_id
        self._publish()

    @property
    def validities(self) -> dict[str, Validity]:
        """Return the validity of what is in force, by name."""
        return {name: held.validity for name, held in self._parts_in_force.items()}

    def take(self, given: X509Context) -> list[Change]:
        """Put in force what the Workload API gives: all of it, or nothing when a part is unusable."""
        try:
            found = self._check_parts(given)
        except CertificateInvalid as invalid:
            return [Change(WORKLOAD_API, self._parts_in_force[CERTIFICATE].validity, str(invalid))]
        with self._lock:
            before, self._given, self.spiffe_id = self._given, found, given.spiffe_id
            self._publish()
        changed = [name for name, held in found.items() if name not in before or before[name].contents != held.contents]
        return [Change(name, found[name].validity) for name in changed]

    def _check_parts(self, given: X509Context) -> dict[str, _Held]:
        """Return the checked parts. Raises CertificateInvalid."""
        what = "auth.spiffe.workload_api"
        held = {} if self._tls.certificate_file else {CERTIFICATE: _check_pair(what, (given.key, given.certificate))}
        for domain, bundle in sorted(given.bundles.items()):
            # A named file applies to its trust domain; when some domains are listed, all others are ignored.
            if not self._listed or self._listed.get(domain) is False:
                name = _bundle_of(domain)
                held[name] = _check_authorities(what, name, (bundle,))
        for name, each in held.items():
            _check_is_no_worse(what, each, self._given.get(name), self._now_s())
        return held

    def reload(self, *, asked: bool, problem_of: Callable[[Path], str]) -> list[Change]:
        """Read changed files, or all when it is `asked` for. `problem_of` returns why a file must not be read."""
        changes = [
            change
            for group in self._groups
            if asked or group.has_changed
            for change in self._read_again(group, problem_of)
        ]
        if any(not change.problem for change in changes):
            with self._lock:
                self._publish()
        return changes

    def grpc_credentials(self, *, asks: bool = True) -> grpc.ServerCredentials | None:
        """Return credentials for a gRPC port, which reads what is in force at each handshake; None without TLS.

        `asks`: whether clients must present certificates, when there are CAs for them.
        """
        if not self._parts_in_force:
            return None
        given = self._configuration

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            if given is self._configuration:
                return None
            given = self._configuration
            return given

        return grpc.dynamic_ssl_server_credentials(given, fetch, asks and self._asks_clients)  # type: ignore[arg-type]  # None: as before

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the context for an asyncio listener; None without TLS."""
        if not self._parts_in_force:
            return None

        def choose(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
            connection.context = self._context  # called at each ClientHello, with or without a server name

        first = self._make_context()
        first.sni_callback = choose
        return first

    @property
    def _asks_clients(self) -> bool:
        return self._parts_in_force.keys() != {CERTIFICATE}

    @property
    def _parts_in_force(self) -> dict[str, _Held]:
        """Return all that is in force, from files and from the Workload API, by name; empty without TLS."""
        return {group.name: group.held for group in self._groups if group.held is not None} | self._given

    def _read_again(self, group: _Followed, problem_of: Callable[[Path], str]) -> Iterator[Change]:
        problem = next((found for path in group.paths if (found := problem_of(path))), "")
        try:
            if not problem:
                group.read()
        except _Changing:
            return  # the files are being written: the next check reads them whole
        except CertificateInvalid as invalid:
            problem = str(invalid)
        assert group.held is not None  # read when it was made
        yield Change(group.name, group.held.validity, problem)

    def _publish(self) -> None:
        held = self._parts_in_force
        if not held:
            return
        key, certificate = held.pop(CERTIFICATE).contents
        self.trusted = {_trusted_for(name): each.contents[0] for name, each in held.items()}
        self._authorities = b"\n".join(self.trusted.values())
        # gRPC would take an empty text for an empty list of CAs.
        trusted = self._authorities or None
        self._configuration = grpc.ssl_server_certificate_configuration([(key, certificate)], trusted)
        self._context = self._make_context()

    def _make_context(self) -> ssl.SSLContext:
        key, certificate = self._parts_in_force[CERTIFICATE].contents
        context = _pair_context(certificate, key)
        context.minimum_version = _VERSIONS[self._tls.min_version]
        if self._asks_clients:
            context.load_verify_locations(cadata=_ascii(self._authorities))
            context.verify_mode = ssl.CERT_REQUIRED if self._certificates_are_needed else ssl.CERT_OPTIONAL
            # A resumed session would let the client's certificate bypass CAs that are no longer trusted.
            context.num_tickets = 0
            context.options |= ssl.OP_NO_TICKET
        return context


def _is_current(validity: Validity, now_s: float) -> bool:
    return validity.begin_s <= now_s < validity.end_s


def _check_is_no_worse(source: str, found: _Held, before: _Held | None, now_s: float) -> None:
    """Raise CertificateInvalid when it would replace what is valid now by what is not: nobody could connect any more,
    because of a wrong file, or of a clock that is wrong here."""
    if before is None or _is_current(found.validity, now_s) or not _is_current(before.validity, now_s):
        return
    begin, end, kept = (_utc(each) for each in (*found.validity, before.validity.end_s))
    what = f"expired at {end}" if found.validity.end_s <= now_s else f"is not valid before {begin}"
    raise CertificateInvalid(
        f"{source}: what is there {what}, so what is in force stays, which is valid until {kept}. Put a valid one in "
        "its place, or set this machine's clock."
    )


def _utc(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(" ", "seconds")


def _bundle_of(domain: str) -> str:
    return f"bundle {domain}"


def _trusted_for(name: str) -> str:
    """Return the trust domain whose CAs are read under that name, or `spiffe.CLIENT_CA`."""
    return spiffe.CLIENT_CA if name == CLIENT_CA else name.removeprefix(_bundle_of(""))


def _describe_files(tls: Tls) -> str:
    return f"server.tls: {tls.certificate_file} and {tls.key_file}"


def _content(setting: str, path: Path) -> bytes:
    if path == Path():
        raise CertificateInvalid(f"{setting} is not set, and server.tls.certificate_file is: set both, or neither.")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as unreadable:
        raise CertificateInvalid(f"{setting}: {path}: {unreadable.strerror}.") from unreadable
    if len(content) > _MAX_BYTES:
        raise CertificateInvalid(f"{setting}: {path} is larger than {_MAX_BYTES:,} bytes.")
    return content


def _pair_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Return the context. Raises ValueError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # The library reads only files, and those on disk may have changed by now.
    with os.fdopen(os.memfd_create("toolhub-tls", os.MFD_CLOEXEC), "wb") as file:
        file.write(key + b"\n" + certificate)
        file.flush()
        # An empty password: OpenSSL would otherwise ask at the terminal, and a starting hub would hang.
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=lambda: "")
    return context


def _check_pair(source: str, contents: Sequence[bytes]) -> _Held:
    """Check the pair. `source` names its origin in messages: gRPC's own error would only say that it cannot listen."""
    key, certificate = contents
    try:
        _pair_context(certificate, key)
        return _Held(contents, _validity(certificate))
    except (ssl.SSLError, ValueError) as unfit:
        raise CertificateInvalid(
            f"{source} are not a PEM certificate and the key that belongs to it, without a passphrase."
        ) from unfit


def _check_authorities(setting: str, file: str, contents: Sequence[bytes]) -> _Held:
    """Check the CAs. The validity is that of the one that expires last: the others are being phased out."""
    try:
        pem = _bundle(contents[0]) if contents[0].lstrip().startswith(b"{") else contents[0]
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=_ascii(pem))
        found = [_validity(each) for each in _PEM.findall(pem)]
    except (ssl.SSLError, ValueError):
        found = []
    if not found:
        raise CertificateInvalid(f"{setting}: {file} holds no PEM certificate.")
    # The last to expire: until then the bundle trusts somebody.
    return _Held([pem], max(found, key=lambda each: each.end_s))


def _bundle(content: bytes) -> bytes:
    """Return the CAs of a SPIFFE bundle (SPIFFE Trust Domain and Bundle, 4) as PEM. Raises ValueError."""
    keys = msgspec.json.decode(content, type=_Bundle).keys
    # SPIFFE Trust Domain and Bundle §4.2.2: keys with another use verify tokens, not certificates.
    chains = [key.x5c for key in keys if key.use == "x509-svid"]
    return "".join(ssl.DER_cert_to_PEM_cert(b64decode(chain[0], validate=True)) for chain in chains if chain).encode()


class _Key(msgspec.Struct):
    use: str = ""
    x5c: tuple[str, ...] = ()


class _Bundle(msgspec.Struct):
    keys: tuple[_Key, ...]


def _ascii(pem: bytes) -> str:
    """Return the ASCII part: comments around certificates may be in any encoding."""
    return pem.decode("ascii", "replace")


def _validity(pem: bytes) -> Validity:
    """Return the validity of the first certificate (RFC 5280, 4.1). Raises ValueError when there is none."""
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("no certificate")
    der = ssl.PEM_cert_to_DER_cert(found.group().decode("ascii"))
    _, certificate, _ = _element(der)
    _, fields, _ = _element(certificate)
    tag, _, rest = _element(fields)
    if tag == _EXPLICIT_VERSION:
        _, _, rest = _element(rest)
    for _ in ("signature", "issuer"):
        _, _, rest = _element(rest)
    _, validity, _ = _element(rest)
    begin_tag, begin, validity = _element(validity)
    end_tag, end, _ = _element(validity)
    return Validity(_moment_s(begin_tag, begin), _moment_s(end_tag, end))


_EXPLICIT_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Return (tag, content, rest) of DER. Raises ValueError."""
    if len(der) < 2:
        raise ValueError("no certificate")
    size, start = der[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[2:start], "big")
    if len(der) < start + size:
        raise ValueError("no certificate")
    return der[0], der[start : start + size], der[start + size :]


def _moment_s(tag: int, content: bytes) -> float:
    """Return the Unix time of a UTCTime or GeneralizedTime, which RFC 5280 requires in UTC with seconds."""
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        # RFC 5280 §4.1.2.5.1: two digits from 50 on are of the last century.
        text = f"{'19' if text[:2] >= '50' else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
