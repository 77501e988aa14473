"""How long the certificates of the hub and the CAs that it trusts still hold, and whom they make known."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from toolhub_service.app.certificates import CERTIFICATE, LiveCertificates, Validity
from toolhub_service.app.doctor import Finding, fail, ok, warn
from toolhub_service.app.listening import SVID_DOCTOR_S, ListenRefused, connection_age_s, open_certificates
from toolhub_service.identity.spiffe import NOT_INSTALLED, is_installed
from toolhub_service.settings.document import Settings

# Who renews does so with a third of the life left (Let's Encrypt), or half of it (SPIRE).
_LATE_SHARE: Final = 0.2
_LATE_MAX_S: Final = 14 * 86_400.0


def certificate_checks(settings: Settings) -> Iterator[Finding]:
    """A finding for each; files that cannot be used are found with `auth`, for the hub does not start on them."""
    try:
        certificates = open_certificates(settings, SVID_DOCTOR_S)
    except ListenRefused:
        return
    validities = certificates.validities
    if endpoint := settings.auth.spiffe.workload_api:
        yield _agent(settings, endpoint, certificates)
    for name, validity in validities.items():
        yield _finding(f"tls {name.replace('_', ' ')}", validity, time.time())
    if not {"spiffe", "xfcc"}.isdisjoint(settings.auth.modes):
        yield _of_clients(settings, validities)


def _agent(settings: Settings, endpoint: str, certificates: LiveCertificates) -> Finding:
    """One that gives no SVID is found with `auth`; one that lacks a bundle leaves a trust domain without anybody."""
    without = [each.name for each in settings.auth.spiffe.trust_domains if each.name not in certificates.trusted]
    if without:
        text = f"{endpoint} gives no bundle of {', '.join(without)}: nobody of it can be known"
        return warn("workload api", text, "Federate the hub's entry with it, or set its bundle_file.")
    return ok(
        "workload api", f"{certificates.spiffe_id} by {endpoint}; trusts {', '.join(sorted(certificates.trusted))}"
    )


def _of_clients(settings: Settings, validities: Mapping[str, Validity]) -> Finding:
    name, domains = "client certificates", settings.auth.spiffe.trust_domains
    if not is_installed():
        return fail(name, "auth.modes has spiffe or xfcc, and cryptography is not installed", f"{NOT_INSTALLED}.")
    own = validities.get(CERTIFICATE)
    age_s = connection_age_s(settings)
    if own is not None and own.end_s - own.begin_s < 2 * age_s:
        text = f"connections live for {age_s:,.0f} s, and the hub's own certificate for less than twice as long"
        advice = "Where those of clients do so, too, set server.max_connection_age_s to less than half of it."
        return warn(name, text, advice)
    named = ", ".join(domain.name for domain in domains) or "none"
    return ok(name, f"trust domains: {named}; proxies: {len(settings.auth.xfcc.proxies)}")


def _finding(name: str, validity: Validity, now_s: float) -> Finding:
    left_s, until = validity.end_s - now_s, datetime.fromtimestamp(validity.end_s, UTC).isoformat(" ", "seconds")
    if left_s <= 0:
        return fail(name, f"expired at {until}", "Put a new one in its place: a running hub takes it by itself.")
    if validity.begin_s > now_s:
        return fail(name, "holds in the future only", "Set this machine's clock (NTP), or put another in its place.")
    if left_s < min(_LATE_MAX_S, _LATE_SHARE * (validity.end_s - validity.begin_s)):
        return warn(name, f"expires at {until}", "See to whoever renews it: by now it should have been replaced.")
    return ok(name, f"holds until {until}")
