"""`x-forwarded-client-cert`: what an Envoy says of the certificate of its own client.

https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_conn_man/headers#x-forwarded-client-cert
Elements are parted by commas, pairs of an element by semicolons; a value with any of `,;=` stands in double quotes, in
which `\\"` is a quote. Each proxy appends: the last element alone is by the proxy that sends the request.
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
    """The header is not as Envoy writes it; the message says where, and repeats nothing of it."""


def last_element(header: str) -> dict[str, list[str]]:
    """Values by key, in lower case, of the last element. Raises XfccInvalid, whatever element is at fault."""
    if len(header) > _MAX_CHARS:
        raise XfccInvalid(f"it is longer than {_MAX_CHARS:,} characters")
    # A control character could be read otherwise by the proxy than here.
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
        # Only quoted values have escapes: a backslash in a plain one stands for itself.
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
