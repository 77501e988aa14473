"""What is taken from the answers of authorization servers: tokens, lifetimes, metadata and registrations.

Every member has a type and a bound here. A server that breaks one is treated like one that has left the member out,
except where nothing can go on without it: an answer neither ends a renewal in an exception of the hub's nor makes a
record grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

TOKEN_MAX_CHARS: Final = 8_000
"""Of an access token, a refresh token or a client secret."""
SCOPE_MAX_CHARS: Final = 4_000
NAME_MAX_CHARS: Final = 2_048
"""Of a URL, an issuer, a resource or a client id."""
_LIFE_MAX_S: Final = 10 * 365 * 86_400.0
_LIFE_MAX_DIGITS: Final = 12


def lifetime_s(value: object) -> float:
    """Return `expires_in` in seconds, at most ten years; 0: it is missing, or no positive number.

    Some servers write the number as text.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _LIFE_MAX_DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return 0.0
    # Compared before it is converted: a float cannot hold an integer of 400 digits.
    if value > _LIFE_MAX_S:
        return _LIFE_MAX_S if isinstance(value, int) or isfinite(value) else 0.0
    return float(value)


def text_in(document: Mapping[str, Any], name: str, max_chars: int = NAME_MAX_CHARS) -> str:
    """Return a member; empty when it is missing, no text, or too long."""
    return bounded_text(document.get(name), max_chars)


def bounded_text(value: object, max_chars: int = NAME_MAX_CHARS) -> str:
    """Return the value; empty when it is no printable text, or too long."""
    return value if isinstance(value, str) and len(value) <= max_chars and value.isprintable() else ""


def first_text(value: object) -> str:
    """Return the first item of a list; empty when there is none, or it is no text that can be used."""
    return bounded_text(value[0]) if isinstance(value, list) and value else ""


def access_token_in(document: Mapping[str, Any]) -> str:
    """Return the access token; empty when there is none that a header can hold (RFC 6750 §2.1)."""
    token = text_in(document, "access_token", TOKEN_MAX_CHARS)
    return token if token.isascii() and " " not in token else ""


def scope_of(value: object) -> str:
    """Return scopes, from a text or a list of them (RFC 6749 §3.3); empty when it is neither, or too long."""
    named = value if isinstance(value, list) else [value]
    scope = " ".join(each for each in named if isinstance(each, str) and len(each) <= SCOPE_MAX_CHARS)
    return scope if len(scope) <= SCOPE_MAX_CHARS and scope.isascii() and scope.isprintable() else ""


def lists(document: Mapping[str, Any], name: str, item: str) -> bool:
    """Return whether a member is a list that contains the item."""
    value = document.get(name)
    return isinstance(value, list) and item in value
