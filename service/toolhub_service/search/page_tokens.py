"""Opaque page tokens (AIP-158): where the next page begins, bound to the request and to the catalog it came from.

base64url of a JSON array [format, fingerprint, revision, place]. A token carries no authority: a forged one only
starts elsewhere in a list that is filtered for its caller anyway.
"""

from __future__ import annotations

import binascii
import json
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

import msgspec

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1_000
UNCOUNTED: Final = sys.maxsize
"""The size of pages that only their bytes bound."""
_FORMAT: Final = 1
_REVISION_CHARS: Final = 16
_TOKEN_MAX_CHARS: Final = 1_024


class Place(msgspec.Struct, frozen=True):
    """The content of a token."""

    revision: str
    """The first 16 digits of the catalog's revision."""
    after: str
    """The last name of the page before, or for a search the number of hits before it."""

    def is_of(self, revision: str) -> bool:
        return self.revision == revision[:_REVISION_CHARS]


def page_size_of(asked: int, default: int = PAGE_SIZE_DEFAULT) -> int:
    """Return the page size: 0 means the default, above 1,000 means 1,000.

    Raises HubFailure INVALID_ARGUMENT when negative.
    """
    if asked < 0:
        raise HubFailure(Reason.PAGE_SIZE_INVALID, "page_size must not be negative")
    return min(asked, PAGE_SIZE_MAX) if asked else default


def write_token(fingerprint: str, revision: str, after: str) -> str:
    document = json.dumps([_FORMAT, fingerprint, revision[:_REVISION_CHARS], after], separators=(",", ":"))
    return urlsafe_b64encode(document.encode()).decode().rstrip("=")


def read_token(token: str, fingerprint: str) -> Place | None:
    """Return the token's place, None for the first page.

    Raises HubFailure INVALID_ARGUMENT for a broken token or one of another request.
    """
    if not token:
        return None
    try:
        padded = token[:_TOKEN_MAX_CHARS] + "=" * (-len(token) % 4)
        # A caller may have made it up, so each part is validated below.
        format_, asked, revision, after = json.loads(urlsafe_b64decode(padded))
    except (ValueError, TypeError, binascii.Error, RecursionError) as broken:
        raise refuse_token("it is not one that the hub gave out") from broken
    if format_ != _FORMAT or not isinstance(revision, str) or not isinstance(after, str):
        raise refuse_token("it is not one that the hub gave out")
    if asked != fingerprint:
        raise refuse_token("it belongs to a question with another filter, query or caller")
    return Place(revision, after)


def refuse_token(why: str) -> HubFailure:
    message = f"page_token cannot be used: {why}; begin again without a token"
    return HubFailure(Reason.PAGE_TOKEN_INVALID, message)
