"""Checks accepted credentials, the remaining life of API keys, certificates and trusted CAs, and the sealing of
callers' credentials."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from toolhub_service.app.certificates import CERTIFICATE, LiveCertificates, Validity
from toolhub_service.app.config_files.key_file import KeyFileInvalid
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.config_files.sources_file import read_sources
from toolhub_service.app.doctor import Finding, fail, ok, warn
from toolhub_service.app.key_care import expires_soon
from toolhub_service.app.listening import (
    SVID_DOCTOR_S,
    ListenRefused,
    connection_age_s,
    open_certificates,
)
from toolhub_service.app.offline import OfflineRefused, policy_file_of, policy_of
from toolhub_service.app.wiring.credentials import makes_own_key, sealing_keys
from toolhub_service.identity.api_keys import StoredKey
from toolhub_service.identity.spiffe import is_installed
from toolhub_service.policy.parsing import InvalidPolicy
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import SettingsInvalid

_NAME: Final = "credentials"
# Renewal is usual with a third of the life left (Let's Encrypt), or half of it (SPIRE).
_LATE_SHARE: Final = 0.2
_LATE_MAX_S: Final = 14 * 86_400.0


def auth_check(settings: Settings) -> Iterator[Finding]:
    """Report what is accepted, and the most urgent problem of API keys; unreadable ones keep the hub from starting."""
    with suppress(OSError, KeyFileInvalid):
        yield _auth(settings, Paths(settings).key_file().read())


def _auth(settings: Settings, keys: Mapping[str, StoredKey]) -> Finding:
    modes = ", ".join(settings.auth.modes)
    if settings.auth.modes == ("api-key",) and not keys:
        return warn("auth", "api-key, and there is no key yet", "Make one: `toolhub keys create NAME`.")
    if found := next(_expired_keys(keys), None):
        return found
    if unknown := _principals_without_rights(settings, sorted({key.name for key in keys.values()})):
        text = f"keys of principals that the policy does not name, which may do nothing: {', '.join(unknown)}"
        return warn("auth", text, "Name them under `grants` or `roles` in policy.yaml, or revoke their keys.")
    return ok("auth", f"{modes}; API keys: {len(keys)}")


def _expired_keys(keys: Mapping[str, StoredKey]) -> Iterator[Finding]:
    """Yield keys that may still be in use and have expired, or expire soon."""
    now_s = time.time()
    for text, ids in (
        ("expired", [key_id for key_id, key in keys.items() if key.has_expired(now_s) and not key.replaced_by]),
        ("expire soon", [key_id for key_id, key in keys.items() if expires_soon(key, now_s)]),
    ):
        if ids:
            advice = "`toolhub keys rotate KEY` makes the next one; `toolhub keys revoke KEY` if nobody needs it."
            yield warn("auth", f"API keys that {text}: {', '.join(ids)}", advice)


def _principals_without_rights(settings: Settings, names: list[str]) -> list[str]:
    """Return the principals to which the policy grants nothing; none when it cannot be read, which is reported
    elsewhere."""
    try:
        policy = policy_of(policy_file_of(settings))
    except (InvalidPolicy, OfflineRefused):
        return []
    return [name for name in names if not policy.principal(name).roles]


def certificate_checks(settings: Settings) -> Iterator[Finding]:
    """Report on each certificate; `auth` reports unusable files, with which the hub does not start."""
    try:
        certificates = open_certificates(settings, SVID_DOCTOR_S)
    except ListenRefused:
        return
    validities = certificates.validities
    if endpoint := settings.auth.spiffe.workload_api:
        yield _workload_api(settings, endpoint, certificates)
    for name, validity in validities.items():
        yield _validity_finding(f"tls {name.replace('_', ' ')}", validity, time.time())
    if not {"spiffe", "xfcc"}.isdisjoint(settings.auth.modes):
        yield from _of_clients(settings, validities)


def _workload_api(settings: Settings, endpoint: str, certificates: LiveCertificates) -> Finding:
    """Check the Workload API.

    `auth` reports a missing SVID; a missing bundle leaves a trust domain without accepted clients.
    """
    without = [each.name for each in settings.auth.spiffe.trust_domains if each.name not in certificates.trusted]
    if without:
        text = f"{endpoint} gives no bundle of {', '.join(without)}: nobody of it can be known"
        return warn("workload api", text, "Federate the hub's entry with it, or set its bundle_file.")
    return ok(
        "workload api", f"{certificates.spiffe_id} by {endpoint}; trusts {', '.join(sorted(certificates.trusted))}"
    )


def _of_clients(settings: Settings, validities: Mapping[str, Validity]) -> Iterator[Finding]:
    name, domains = "client certificates", settings.auth.spiffe.trust_domains
    if not is_installed():  # `auth` reports it
        return
    own = validities.get(CERTIFICATE)
    age_s = connection_age_s(settings)
    # A connection is authenticated once: it must not outlive the certificate presented at its start.
    if own is not None and own.end_s - own.begin_s < 2 * age_s:
        text = f"connections live for {age_s:,.0f} s, and the hub's own certificate for less than twice as long"
        advice = "Where those of clients do so, too, set server.max_connection_age_s to less than half of it."
        yield warn(name, text, advice)
        return
    named = ", ".join(domain.name for domain in domains) or "none"
    yield ok(name, f"trust domains: {named}; proxies: {len(settings.auth.xfcc.proxies)}")


def _validity_finding(name: str, validity: Validity, now_s: float) -> Finding:
    left_s, until = validity.end_s - now_s, datetime.fromtimestamp(validity.end_s, UTC).isoformat(" ", "seconds")
    if left_s <= 0:
        return fail(name, f"expired at {until}", "Put a new one in its place: a running hub takes it by itself.")
    if validity.begin_s > now_s:
        return fail(name, "holds in the future only", "Set this machine's clock (NTP), or put another in its place.")
    if left_s < min(_LATE_MAX_S, _LATE_SHARE * (validity.end_s - validity.begin_s)):
        left = f"{left_s / 86_400:.0f} days" if left_s >= 2 * 86_400 else f"{left_s / 3_600:.0f} hours"
        return warn(
            name, f"expires at {until}, in {left}", "See to whoever renews it: by now it should have been replaced."
        )
    return ok(name, f"holds until {until}")


def credential_checks(settings: Settings) -> Iterator[Finding]:
    """Check that callers' credentials can be sealed: readable keys, and the library.

    Nothing when no source or setting uses it.
    """
    sources = _per_user_sources(settings)
    own = Paths(settings).credentials_key
    if not sources and not settings.credentials.keys:
        return
    if makes_own_key(settings):
        yield ok(_NAME, f"{', '.join(sources)}: the hub makes {own} when it starts")
        return
    try:
        keys = sealing_keys(settings)
    except ValueError as unfit:
        yield fail(_NAME, str(unfit), "Correct credentials.keys: docs/credentials.md tells how.")
        return
    yield ok(_NAME, f"sealed under {keys.current}" + (f", for {', '.join(sources)}" if sources else ""))


def _per_user_sources(settings: Settings) -> list[str]:
    """Return the sources with per-user credentials; an invalid file is reported elsewhere."""
    hosts = [host.name for host in settings.credentials.hosts]
    try:
        entries = read_sources(Paths(settings).sources).sources
    except SettingsInvalid:
        return hosts
    return hosts + [name for name, entry in entries.items() if getattr(getattr(entry, "auth", None), "per_user", None)]
