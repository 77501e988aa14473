"""Secrets this process knows by value: they are hidden under whatever name and in whatever text they turn up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from toolhub_service.guards.secret_names import is_secret_name
from toolhub_service.settings.document import Settings

_MIN_CHARS = 8
"""`token: none` in a configuration must not blank every `none` of a log."""
_URLS = (
    ("stores", "redis_url"),
    ("stores", "postgres_url"),
    ("approvals", "webhook_url"),
    ("artifacts", "bucket_url"),
    ("tracing", "otlp_endpoint"),
)
_PASSWORD = re.compile(r"[^:/?#@]*:([^/?#@]+)@")
"""Behind a user's name. By itself, for what is no URL at all may hold a password, too."""
_NAMED = re.compile(r"(\w+)\s*=\s*('[^']*'|[^&\s;#]+)")
"""Of a query, or of what libpq takes in the place of a URL."""
_SEGMENTS = re.compile(r"(?<=/)[A-Za-z0-9_-]{16,}(?=[/?]|$)")
"""Of the path of a webhook: chat services put their token there."""
_INNOCENT = frozenset({"PWD", "OLDPWD"})
"""Working directories, whose names announce a password elsewhere."""


def secret_urls(settings: Settings) -> dict[tuple[str, str], str]:
    """Settings, by section and name, whose value may carry a password."""
    named = {(section, name): getattr(getattr(settings, section), name) for section, name in _URLS}
    return {place: url for place, url in named.items() if url}


def known_secrets(settings: Settings, environment: Mapping[str, str]) -> list[str]:
    """Values under telling names in the environment and in arguments of custom tools, and passwords in URLs."""
    return sorted({value for value in _values(settings, environment) if len(value) >= _MIN_CHARS})


def _values(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    yield from (value for name, value in environment.items() if is_secret_name(name) and name not in _INNOCENT)
    for url in secret_urls(settings).values():
        yield from secrets_of_url(url)
    yield from _SEGMENTS.findall(settings.approvals.webhook_url)
    for custom in settings.tools.custom:
        yield from (value for name, value in custom.args.items() if isinstance(value, str) and is_secret_name(name))


def secrets_of_url(url: str) -> Iterator[str]:
    """The password and what stands under telling names, as written and as meant."""
    named = (value.strip("'") for name, value in _NAMED.findall(url) if is_secret_name(name))
    for password in (*_PASSWORD.findall(url), *named):
        yield from {password, unquote(password)}
