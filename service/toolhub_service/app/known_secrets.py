"""Secrets this process knows by value: they are hidden under whatever name and in whatever text they turn up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urlsplit

from toolhub_service.guards.secret_names import is_secret_name
from toolhub_service.settings.document import Settings

_MIN_CHARS = 8
"""`token: none` in a configuration must not blank every `none` of a log."""
_INNOCENT = frozenset({"PWD", "OLDPWD"})
"""Working directories, whose names announce a password elsewhere."""


def known_secrets(settings: Settings, environment: Mapping[str, str]) -> list[str]:
    """Values under telling names in the environment and in arguments of custom tools, and passwords of the stores."""
    return sorted({value for value in _values(settings, environment) if len(value) >= _MIN_CHARS})


def _values(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    yield from (value for name, value in environment.items() if is_secret_name(name) and name not in _INNOCENT)
    for url in (settings.stores.redis_url, settings.stores.postgres_url):
        if password := urlsplit(url).password:
            yield from {password, unquote(password)}
    for custom in settings.tools.custom:
        yield from (value for name, value in custom.args.items() if isinstance(value, str) and is_secret_name(name))
