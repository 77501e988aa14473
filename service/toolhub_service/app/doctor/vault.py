"""Whether callers' credentials can be sealed: keys that can be read, and the library for it."""

from __future__ import annotations

from collections.abc import Iterator

from toolhub_service.app.doctor import Finding, fail, ok
from toolhub_service.app.paths import Paths
from toolhub_service.app.sources_file import read_sources
from toolhub_service.app.wiring_credentials import sealing_keys
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import SettingsInvalid

_NAME = "credentials"


def credential_checks(settings: Settings) -> Iterator[Finding]:
    """Nothing where no source and no setting asks for any."""
    sources = _sources(settings)
    own = Paths(settings).credentials_key
    if not sources and not settings.credentials.keys:
        return
    if (
        not settings.credentials.keys
        and not own.exists()
        and not (settings.stores.redis_url or settings.stores.postgres_url)
    ):
        yield ok(_NAME, f"{', '.join(sources)}: the hub makes {own} when it starts")
        return
    try:
        keys = sealing_keys(settings)
    except ValueError as unfit:
        yield fail(_NAME, str(unfit), "Correct credentials.keys: docs/credentials.md tells how.")
        return
    yield ok(_NAME, f"sealed under {keys.current}" + (f", for {', '.join(sources)}" if sources else ""))


def _sources(settings: Settings) -> list[str]:
    """Those that want them; a file that is not valid is reported elsewhere."""
    hosts = [host.name for host in settings.credentials.hosts]
    try:
        entries = read_sources(Paths(settings).sources).sources
    except SettingsInvalid:
        return hosts
    return hosts + [name for name, entry in entries.items() if getattr(getattr(entry, "auth", None), "per_user", None)]
