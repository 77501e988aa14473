"""The forms in which a known secret can occur in a text.

Plain, in JSON (also twice), in a repr, HTML, a URL, in hex, and inside base64 at any of its three offsets (so that
`Basic base64(user:secret)` is found without decoding).
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

# Hiding shorter values would make the text unreadable and protect nothing.
_MIN_CHARS: Final = 4
_MIN_ENCODED_CHARS: Final = 6
_PERCENT_RE: Final = re.compile("%[0-9A-F]{2}")


def known_pattern(secrets: Iterable[str]) -> bytes:
    """Return an RE2 alternation of every form of the known values, the longest first."""
    return b"|".join(map(re2.escape, known_spellings(secrets)))


def known_spellings(secrets: Iterable[str]) -> list[bytes]:
    """Return every form of the known values, the longest first."""
    spellings = {spelling for secret in secrets for spelling in _spellings(secret)}
    return sorted(spellings, key=lambda spelling: (-len(spelling), spelling))


def _spellings(secret: str) -> set[bytes]:
    """Yield the value plain and in each of the usual encodings."""
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
        found |= {spelling.encode() for spelling in text_forms(raw)}
    return found


def text_forms(raw: bytes) -> set[str]:
    """Return the forms in which every byte, or every UTF-16 unit, is written as a number; digits of either case."""
    units = raw.decode("utf-8", "replace").encode("utf-16-be", "surrogatepass").hex()
    by_unit = "".join(rf"\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    forms = {raw.hex(), raw.hex(":"), "".join(f"%{byte:02x}" for byte in raw), by_unit}
    forms.add("".join(rf"\x{byte:02x}" for byte in raw))
    return forms | {_with_large_digits(form) for form in forms}


def _with_large_digits(form: str) -> str:
    return form.upper().replace(r"\U", r"\u").replace(r"\X", r"\x")


def _base64_core(raw: bytes, skip: int, encode: Any) -> bytes:
    """Return the characters that do not depend on what precedes or follows the value."""
    encoded = encode(b"\0" * skip + raw).rstrip(b"=")
    start = (0, 2, 3)[skip]
    stable = (skip + len(raw)) * 8 // 6
    return bytes(encoded[start:stable])
