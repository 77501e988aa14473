"""Page tokens and cursors of every list: each is sealed for the caller and the question that it continues.

The place where a page begins is readable, because it holds nothing secret; the seal in front of it (HMAC-SHA256, 128
bits) is over place, caller and question. So a token that somebody else got, that belongs to another list or filter, or
that was made up, is refused before it reaches a store. Hubs with the same plan.key accept each other's tokens.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Final

_PURPOSE: Final = b"page tokens"
_SEAL_BYTES: Final = 16
_SEAL_CHARS: Final = 22
"""Of the seal as base64url without padding."""


class PageSeal:
    def __init__(self, key: bytes) -> None:
        """`key` may serve other purposes, too: the one used here is derived from it."""
        self._key = hmac.digest(key, _PURPOSE, sha256)

    def seal(self, place: str, principal_id: str, question: str) -> str:
        """Return the token of the page at a place; empty for an empty place, which is the end."""
        return f"{self._seal(place, principal_id, question)}{place}" if place else ""

    def open(self, token: str, principal_id: str, question: str) -> str | None:
        """Return the place of a token, empty for an empty one; None when it was not sealed for this caller and
        question."""
        if not token:
            return ""
        seal, place = token[:_SEAL_CHARS], token[_SEAL_CHARS:]
        expected = self._seal(place, principal_id, question)
        return place if place and hmac.compare_digest(seal.encode("utf-8", "replace"), expected.encode()) else None

    def _seal(self, place: str, principal_id: str, question: str) -> str:
        parts = [part.encode("utf-8", "surrogatepass") for part in (principal_id, question, place)]
        # With their lengths, so that no two triples have the same bytes.
        document = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return urlsafe_b64encode(hmac.digest(self._key, document, sha256)[:_SEAL_BYTES]).decode().rstrip("=")
