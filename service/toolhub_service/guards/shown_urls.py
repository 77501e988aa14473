"""The form of a URL in evidence and messages: no user name, no password, no fragment, no secret in its query."""

from __future__ import annotations

from toolhub_service.guards.secret_names import is_secret_name
from toolhub_service.guards.secrets import MARK
from toolhub_service.guards.urls import ParsedUrl

_SHOWN_MAX_CHARS = 2_000
_SECRET_NAMES = frozenset({"assertion", "code", "key", "pin", "samlresponse", "sid", "sig", "signature", "state"})


def shown_url(url: ParsedUrl) -> str:
    """Return the URL with the values of secret-looking query parameters redacted; at most 2,000 characters."""
    target, question, query = url.target.partition("?")
    values = "&".join(map(_shown_parameter, query.split("&")))
    shown = f"{url.scheme}://{url.authority}{target}{question}{values if query else ''}"
    return shown if len(shown) <= _SHOWN_MAX_CHARS else shown[:_SHOWN_MAX_CHARS] + "…"


def _shown_parameter(parameter: str) -> str:
    name, equals, _ = parameter.partition("=")
    if equals and (
        name.lower().removeprefix("x-amz-").removeprefix("x-goog-") in _SECRET_NAMES or is_secret_name(name)
    ):
        return f"{name}={MARK}"
    return parameter
