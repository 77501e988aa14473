"""The vault of callers' credentials: its store, and its keys as configured."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolhub_service.adapters.caller_auth import per_user_terms
from toolhub_service.adapters.callers import CallersOfHosts
from toolhub_service.app.config_files.editing import SecretFileInvalid, read_or_make_key
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.wiring.deps import Deps
from toolhub_service.app.wiring.stores import Stores
from toolhub_service.credentials.sealing import NOT_INSTALLED, KeyUnfit, SealingKeys, is_installed, key_of
from toolhub_service.credentials.secret import PerUserTerms
from toolhub_service.credentials.vault import Vault
from toolhub_service.domain.call import TenantDirectory
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import StartReason
from toolhub_service.guards.secrets import Redactor
from toolhub_service.sections.source_config import SourceValues
from toolhub_service.settings.credentials_section import SealingKey
from toolhub_service.settings.document import Settings

OWN_KEY_ID = "own"
"""Id of the key that the hub has made for itself."""
_KEY_MAX_BYTES = 4_096


def make_vault(deps: Deps, stores: Stores, tenants: TenantDirectory) -> Vault:
    """Return the vault. Raises HubFailure when a configured key cannot be used.

    Without a configured key, one is made when a source first needs it.
    """
    settings, keys = deps.settings, named_keys(deps.settings)
    return Vault(
        stores.credentials, lambda: keys or sealing_keys(settings), deps.clock, deps.randomness, tenants.tenancy_of
    )


def named_keys(settings: Settings) -> SealingKeys | None:
    """Return the keys of `credentials.keys`; None when the hub uses its own. Raises HubFailure."""
    if not settings.credentials.keys:
        return None
    try:
        return sealing_keys(settings)
    except ValueError as unfit:
        raise HubFailure(StartReason.SEALING_KEY_UNUSABLE, f"credentials.keys: {unfit}.") from unfit


def open_hosts(deps: Deps, vault: Vault) -> CallersOfHosts | None:
    """Return the hosts of `credentials.hosts`; None when there are none. Raises HubFailure."""
    if not deps.settings.credentials.hosts:
        return None
    with _hosts_refused():
        return CallersOfHosts(vault, _host_terms(deps.settings, deps.redactor))


def check_hosts(settings: Settings) -> None:
    """Raise HubFailure as `open_hosts` does, without making a key."""
    with _hosts_refused():
        if _host_terms(settings, Redactor()) and not makes_own_key(settings):
            sealing_keys(settings)


def makes_own_key(settings: Settings) -> bool:
    """Return whether the hub makes a key for itself when one is first needed."""
    is_shared = settings.stores.redis_url or settings.stores.postgres_url
    has_key = settings.credentials.keys or Paths(settings).credentials_key.exists()
    return is_installed() and not (is_shared or has_key)


def _host_terms(settings: Settings, redactor: Redactor) -> list[PerUserTerms]:
    """Return on which terms callers' credentials go to each host. Raises ValueError."""
    values, hosts = SourceValues(redactor), settings.credentials.hosts
    found = (per_user_terms(host.name, host.auth, host.url.rstrip("/"), values, "") for host in hosts)
    return [terms for terms in found if terms is not None]


@contextmanager
def _hosts_refused() -> Iterator[None]:
    try:
        yield
    except ValueError as unfit:
        raise HubFailure(StartReason.SEALING_KEY_UNUSABLE, f"credentials.hosts: {unfit}.") from unfit


def sealing_keys(settings: Settings) -> SealingKeys:
    """Return the configured keys, or the hub's own. Raises ValueError, whose text holds nothing of a key."""
    if not is_installed():
        raise ValueError(NOT_INSTALLED)
    named, stores = settings.credentials.keys, settings.stores
    if named:
        return SealingKeys({key.id: _key(key, settings.credentials.command_timeout_s) for key in named})
    if stores.redis_url or stores.postgres_url:
        raise ValueError(
            "`auth.per_user` needs `credentials.keys` in the hub's settings: hubs that share a store share its keys"
        )
    path = Paths(settings).credentials_key
    try:
        return SealingKeys({OWN_KEY_ID: read_or_make_key(path)})
    except OSError as unreadable:
        raise ValueError(f"{path}: {unreadable.strerror}") from unreadable
    except SecretFileInvalid as invalid:
        raise ValueError(str(invalid)) from invalid


def _key(key: SealingKey, timeout_s: float) -> bytes:
    """Return the key. Raises ValueError."""
    try:
        return key_of(_text(key, timeout_s))
    except KeyUnfit as unfit:
        raise ValueError(f"{key.id}: {unfit}") from None


def _text(key: SealingKey, timeout_s: float) -> str:
    if key.env:
        held = os.environ.get(key.env)
        if held is None:
            raise ValueError(f"{key.id}: the environment variable {key.env} is not set for the hub")
        return held
    if key.command:
        return _run_command(key, timeout_s)
    try:
        with Path(key.file).expanduser().open("rb") as file:
            return file.read(_KEY_MAX_BYTES).decode("ascii", "replace")
    except OSError as unreadable:
        raise ValueError(f"{key.id}: the file {key.file} cannot be read: {unreadable.strerror}") from unreadable


def _run_command(key: SealingKey, timeout_s: float) -> str:
    """Return the command's output; its errors are shown to nobody, because they may hold the key."""
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own command line, without a shell
            key.command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{key.id}: `{key.command[0]}` did not end within {timeout_s:g} s") from None
    except OSError as unstarted:
        raise ValueError(f"{key.id}: `{key.command[0]}` cannot be started: {unstarted.strerror}") from None
    if done.returncode:
        raise ValueError(f"{key.id}: `{key.command[0]}` failed with exit code {done.returncode}")
    return done.stdout[:_KEY_MAX_BYTES].decode("ascii", "replace")
