"""Which header fields a caller may send, which are kept on a redirect to another origin, and which are shown to it.

Refused are the fields that frame a message (request smuggling), that speak for a hop or a proxy, that open metadata
services, or that override the method or host that policy has checked. Underscores count as hyphens, because some
servers read them so. Across origins only a short list of harmless fields is kept: an unknown field may be a credential.

Sources: RFC 9110 §5.1, §5.5, §7.6.1, §15.4; AWS IMDSv2, Google and Azure metadata documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.guards.secret_names import is_secret_name
from toolhub_service.guards.secrets import MARK

Headers = tuple[tuple[str, str], ...]
"""Names in lower case, in the order given."""

HEADERS_MAX = 64
HEADER_VALUE_MAX_BYTES = 8 * 1024
HEADERS_MAX_BYTES = 16 * 1024
SHOWN_VALUE_MAX_CHARS = 1024

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}", re.ASCII)
_VALUE = re.compile(r"[\t\x20-\x7e]*", re.ASCII)
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")

DENIED = frozenset(
    "host connection content-length transfer-encoding te trailer upgrade keep-alive expect via forwarded "
    "accept-encoding http2-settings max-forwards metadata x-google-metadata-request x-real-ip x-client-ip "
    "x-cluster-client-ip true-client-ip cf-connecting-ip client-ip x-original-url x-original-host "
    "x-rewrite-url x-host x-http-host-override x-http-method x-http-method-override x-method-override".split()
)
DENIED_PREFIXES = ("proxy-", "metadata-", "x-metadata-", "x-forwarded-", "x-aws-", "x-envoy-", ":")

SURVIVES_REDIRECT = frozenset(
    "accept accept-charset accept-language cache-control content-language content-type dnt if-match "
    "if-modified-since if-none-match if-range if-unmodified-since pragma range user-agent".split()
)


def check_request_headers(headers: Mapping[str, str]) -> Headers:
    """Return the fields as they may be sent: names in lower case, values without surrounding blanks.

    Raises ToolFailure INVALID_INPUT that names the field to leave out or correct; never its value.
    """
    if not headers:
        return ()
    if len(headers) > HEADERS_MAX:
        raise _bad(f"send at most {HEADERS_MAX} headers")
    checked: dict[str, str] = {}
    for written, value in headers.items():
        name = check_header_name(written)
        if name in checked:
            raise _bad(f"header {name} is given twice, in different spellings")
        checked[name] = check_header_value(name, value)
    if sum(len(name) + len(value) for name, value in checked.items()) > HEADERS_MAX_BYTES:
        raise _bad(f"all headers together must not exceed {HEADERS_MAX_BYTES} bytes")
    return tuple(checked.items())


def cross_origin_headers(headers: Headers) -> Headers:
    """Return the fields that may follow a redirect to another origin."""
    return tuple(field for field in headers if field[0] in SURVIVES_REDIRECT)


def bodiless_headers(headers: Headers) -> Headers:
    """Return the fields without those that describe a body, for a redirect that became GET (RFC 9110 §15.4)."""
    return tuple(field for field in headers if not field[0].startswith("content-"))


def shown_response_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the response fields shown to a caller: at most 64, values cut at 1,024 characters, secrets redacted."""
    shown: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1").lower()
        if name in shown:
            shown[name] = hide_header_value(name, f"{shown[name]}, {raw_value.decode('latin-1')}")
        elif len(shown) < HEADERS_MAX:
            shown[name] = hide_header_value(name, raw_value.decode("latin-1"))
    return shown


def check_header_name(written: str) -> str:
    if not _NAME.fullmatch(written):
        raise _bad("a header name may hold letters, digits and hyphens only")
    name = written.lower()
    plain = name.replace("_", "-")
    if plain in DENIED or plain.startswith(DENIED_PREFIXES):
        raise _bad(f"leave out header {name}: it is set by the hub or may not be sent")
    return name


def check_header_value(name: str, value: str) -> str:
    if not _VALUE.fullmatch(value):
        raise _bad(f"the value of header {name} may hold printable ASCII only, no line breaks")
    if len(value) > HEADER_VALUE_MAX_BYTES:
        raise _bad(f"the value of header {name} must not exceed {HEADER_VALUE_MAX_BYTES} bytes")
    return value.strip(" \t")


def hide_header_value(name: str, value: str) -> str:
    if is_secret_name(name):
        return MARK
    if len(value) > SHOWN_VALUE_MAX_CHARS:
        value = value[:SHOWN_VALUE_MAX_CHARS] + "…"
    return _UNPRINTABLE.sub("\ufffd", value)


def _bad(what_to_do: str) -> ToolFailure:
    return refuse(ErrorKind.INVALID_INPUT, f"The headers cannot be sent: {what_to_do}.")
