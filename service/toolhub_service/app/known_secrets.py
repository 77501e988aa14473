"""Secrets this process knows by value: they are hidden under whatever name and in whatever text they turn up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from toolhub_service.adapters.source_config import SECRET_MIN_CHARS, secrets_of_url
from toolhub_service.guards.secret_patterns import is_secret_name
from toolhub_service.settings.document import Settings

_URLS = (
    ("stores", "redis_url"),
    ("stores", "postgres_url"),
    ("approvals", "webhook_url"),
    ("artifacts", "bucket_url"),
    ("tracing", "otlp_endpoint"),
)
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
    return sorted({value for value in _values(settings, environment) if len(value) >= SECRET_MIN_CHARS})


def _values(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    yield from (value for name, value in environment.items() if is_secret_name(name) and name not in _INNOCENT)
    for url in secret_urls(settings).values():
        yield from secrets_of_url(url)
    yield from _SEGMENTS.findall(settings.approvals.webhook_url)
    for custom in settings.tools.custom:
        yield from (value for name, value in custom.args.items() if isinstance(value, str) and is_secret_name(name))
