"""Opaque page tokens (AIP-158): where the next page begins, bound to what was asked and to the catalog it came from.

base64url of a JSON array [format, fingerprint, revision, place]. A token carries no authority: whoever forges one
starts elsewhere in a list that is filtered for them anyway.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Final

from toolhub_service.domain.errors import HubFailure, HubStatus

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1_000
_FORMAT: Final = 1
_REVISION_CHARS: Final = 16
_TOKEN_MAX_CHARS: Final = 1_024


@dataclass(frozen=True, slots=True)
class Place:
    """What a token says."""

    revision: str
    """The first 16 digits of the catalog's revision."""
    after: str
    """The last name of the page before, or for a search the number of hits before."""

    def is_of(self, revision: str) -> bool:
        return self.revision == revision[:_REVISION_CHARS]


def page_size_of(asked: int) -> int:
    """0 means 100, more than 1,000 means 1,000. Raises HubFailure INVALID_ARGUMENT when negative."""
    if asked < 0:
        raise HubFailure(HubStatus.INVALID_ARGUMENT, "PAGE_SIZE_INVALID", "page_size must not be negative")
    return min(asked or PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)


def write_token(fingerprint: str, revision: str, after: str) -> str:
    document = json.dumps([_FORMAT, fingerprint, revision[:_REVISION_CHARS], after], separators=(",", ":"))
    return urlsafe_b64encode(document.encode()).decode().rstrip("=")


def read_token(token: str, fingerprint: str) -> Place | None:
    """None for the first page. Raises HubFailure INVALID_ARGUMENT for a broken token or one of another question."""
    if not token:
        return None
    try:
        padded = token[:_TOKEN_MAX_CHARS] + "=" * (-len(token) % 4)
        format_, asked, revision, after = json.loads(urlsafe_b64decode(padded))
    except (ValueError, TypeError, binascii.Error, RecursionError) as broken:
        raise _refused("it is not one that the hub gave out") from broken
    if format_ != _FORMAT or not isinstance(revision, str) or not isinstance(after, str):
        raise _refused("it is not one that the hub gave out")
    if asked != fingerprint:
        raise _refused("it belongs to a question with another filter, query or caller")
    return Place(revision, after)


def _refused(why: str) -> HubFailure:
    message = f"page_token cannot be used: {why}; begin again without a token"
    return HubFailure(HubStatus.INVALID_ARGUMENT, "PAGE_TOKEN_INVALID", message)
