"""Which credentials the hub would accept, and whether its API keys are of use."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from toolhub_service.app.doctor import Finding, fail, ok, warn
from toolhub_service.app.key_care import expires_soon
from toolhub_service.app.key_file import KeyFileInvalid
from toolhub_service.app.listening import SVID_DOCTOR_S, ListenRefused, listening_of, open_certificates
from toolhub_service.app.offline import OfflineRefused, policy_file_of, policy_of
from toolhub_service.app.paths import Paths
from toolhub_service.identity.api_keys import StoredKey
from toolhub_service.policy.parsing import InvalidPolicy
from toolhub_service.settings.document import Settings


def auth_check(settings: Settings) -> Finding:
    """What is accepted, and the most urgent thing about API keys."""
    modes = ", ".join(settings.auth.modes)
    try:
        listening_of(settings, open_certificates(settings, SVID_DOCTOR_S))
    except ListenRefused as refused:
        return fail("auth", modes, str(refused))
    try:
        keys = Paths(settings).key_file().read()
    except (OSError, KeyFileInvalid) as broken:
        return fail("auth", str(broken), "Correct or remove the file.")
    if settings.auth.modes == ("api-key",) and not keys:
        return warn("auth", "api-key, and there is no key yet", "Make one: `toolhub keys create NAME`.")
    if found := next(_ending(keys), None):
        return found
    if unknown := _unknown(settings, sorted({key.name for key in keys.values()})):
        text = f"keys of principals that the policy does not name, which may do nothing: {', '.join(unknown)}"
        return warn("auth", text, "Name them under `grants` or `roles` in policy.yaml, or revoke their keys.")
    return ok("auth", f"{modes}; API keys: {len(keys)}")


def _ending(keys: Mapping[str, StoredKey]) -> Iterator[Finding]:
    """Keys that somebody may still use, which hold no longer or not for long."""
    now_s = time.time()
    for text, ids in (
        ("expired", [key_id for key_id, key in keys.items() if key.has_expired(now_s) and not key.replaced_by]),
        ("expire soon", [key_id for key_id, key in keys.items() if expires_soon(key, now_s)]),
    ):
        if ids:
            advice = "`toolhub keys rotate KEY` makes the next one; `toolhub keys revoke KEY` if nobody needs it."
            yield warn("auth", f"API keys that {text}: {', '.join(ids)}", advice)


def _unknown(settings: Settings, names: list[str]) -> list[str]:
    """Of these principals, those that the policy gives nothing; none where it cannot be read, which is reported
    apart."""
    try:
        policy = policy_of(policy_file_of(settings))
    except (InvalidPolicy, OfflineRefused):
        return []
    return [name for name in names if not policy.principal(name).roles]
