"""The spellings under which a known secret can turn up: plain, in JSON (also twice), in a repr, HTML, a URL, in hex,
and inside base64 at any of its three offsets (so that `Basic base64(user:secret)` is found without decoding).
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote, quote_plus

import orjson
import re2

_MIN_CHARS: Final = 4
"""Hiding shorter values would blank the text and protect nothing."""
_MIN_ENCODED_CHARS: Final = 6
_PERCENT_RE: Final = re.compile("%[0-9A-F]{2}")


def known_pattern(secrets: Iterable[str]) -> bytes:
    """An RE2 alternation of every spelling of the known values, the longest first."""
    spellings = {spelling for secret in secrets for spelling in _spellings(secret)}
    ordered = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
    return b"|".join(re2.escape(spelling) for spelling in ordered)


def _spellings(secret: str) -> set[bytes]:
    """The value as it stands alone and after each of the ways in which text is usually wrapped."""
    if len(secret.strip()) < _MIN_CHARS:
        return set()
    raw = secret.encode("utf-8", "surrogatepass")
    escaped = {
        orjson.dumps(raw.decode("utf-8", "replace")).decode()[1:-1],
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
    }
    escaped |= {json.dumps(once)[1:-1] for once in escaped} | {html.escape(secret)}
    quoted = {quote(raw, safe=""), quote_plus(raw), quote(raw)}
    found = {raw, *(text.encode("utf-8", "surrogatepass") for text in escaped | quoted)}
    found |= {_PERCENT_RE.sub(lambda hexadecimal: hexadecimal.group().lower(), text).encode() for text in quoted}
    if len(raw) >= _MIN_ENCODED_CHARS:
        for skip in range(3):
            found |= {_base64_core(raw, skip, base64.b64encode), _base64_core(raw, skip, base64.urlsafe_b64encode)}
        found |= {raw.hex().encode()}
    return found


def _base64_core(raw: bytes, skip: int, encode: Any) -> bytes:
    """The characters that do not depend on what stands before or after the value."""
    encoded = encode(b"\0" * skip + raw).rstrip(b"=")
    start = (0, 2, 3)[skip]
    stable = (skip + len(raw)) * 8 // 6
    return bytes(encoded[start:stable])
