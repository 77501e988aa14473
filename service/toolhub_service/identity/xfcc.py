"""`x-forwarded-client-cert`: what an Envoy says of its own client's certificate.

https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_conn_man/headers#x-forwarded-client-cert Elements
are separated by commas, pairs of an element by semicolons; a value that contains one of `,;=` is in double quotes, in
which `\\"` is a quote. Each proxy appends an element: only the last one comes from the proxy that sends the request.
"""

from __future__ import annotations

import re
from typing import Final

HEADER: Final = "x-forwarded-client-cert"

_MAX_CHARS: Final = 16 * 1024
_ELEMENTS_MAX: Final = 16
_PAIRS_MAX: Final = 64
_PAIR: Final = re.compile(r'(By|Hash|Cert|Chain|Subject|URI|DNS)=(?:"((?:[^"\\]|\\.)*)"|([^",;=]*))', re.IGNORECASE)


class XfccInvalid(ValueError):
    """The header is not in Envoy's format; the message says where, and repeats nothing of it."""


def last_element(header: str) -> dict[str, list[str]]:
    """Return the values of the last element by key, in lower case. Raises XfccInvalid for an error in any element."""
    if len(header) > _MAX_CHARS:
        raise XfccInvalid(f"it is longer than {_MAX_CHARS:,} characters")
    # The proxy could interpret a control character differently.
    if not header.isascii() or not header.isprintable():
        raise XfccInvalid("it has characters that are not printable ASCII")
    element: dict[str, list[str]] = {}
    elements, pairs, place = 1, 0, 0
    while True:
        found = _PAIR.match(header, place)
        if found is None:
            raise XfccInvalid(f"no pair of a known key and its value at character {place + 1}")
        pairs += 1
        if elements > _ELEMENTS_MAX or pairs > _PAIRS_MAX:
            raise XfccInvalid(f"it has more than {_ELEMENTS_MAX} elements or {_PAIRS_MAX} pairs")
        quoted, plain = found[2], found[3]
        # Only quoted values have escapes: a backslash in an unquoted one is literal.
        value = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        element.setdefault(found[1].lower(), []).append(value)
        place = found.end()
        if place == len(header):
            return element
        if header[place] == ",":
            elements, element = elements + 1, {}
        elif header[place] != ";":
            raise XfccInvalid(f"neither `;` nor `,` at character {place + 1}")
        place += 1
