"""The canonical form of a host: what a URL may name, and how it is written from then on.

The result is either a canonical address (`127.0.0.1`, `::1`) or an ASCII name in lower case without a trailing dot.
Whatever a resolver or a C library could read as an address in another form (`127.1`, `0x7f000001`, `017700000001`,
`2130706433`) is refused, by the rule of the URL standard: a host whose last label is a number is an address or
invalid.

Sources: RFC 1123 §2.1, RFC 3986 §3.2.2, RFC 5891 (IDNA2008, mapped by UTS 46), WHATWG URL "ends in a number".
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address

import idna
import msgspec

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_NAME_MAX_CHARS = 253


class Host(msgspec.Struct, frozen=True):
    """A host as it is compared, resolved and dialled."""

    name: str
    """Canonical address without brackets, or ASCII name in lower case."""
    is_address: bool


@lru_cache(maxsize=4096)
def canonical_host(written: str) -> Host:
    """Return the host of a URL in canonical form. Raises ToolFailure INVALID_INPUT for a host that the hub does not
    dial."""
    if written.startswith("["):
        return _ipv6(written)
    name = written if written.isascii() else _ascii(written)
    name = name.lower().removesuffix(".")
    last_label = name.rpartition(".")[2]
    if _NUMBER.fullmatch(last_label):
        return _ipv4(name)
    if len(name) > _NAME_MAX_CHARS or not _NAME.fullmatch(name):
        raise _not_a_host("write a host name such as api.example.com, without escapes, scopes or empty labels")
    if "xn--" in name:
        _check_punycode(name)
    return Host(name, is_address=False)


def _ipv6(written: str) -> Host:
    if not written.endswith("]") or "%" in written:
        raise _not_a_host("write an IPv6 address in brackets and without a scope, such as [2001:4860:4860::8888]")
    try:
        return Host(str(IPv6Address(written[1:-1])), is_address=True)
    except AddressValueError:
        raise _not_a_host("what is between the brackets is not an IPv6 address") from None


def _ipv4(name: str) -> Host:
    try:
        return Host(str(IPv4Address(name)), is_address=True)
    except AddressValueError:
        raise _not_a_host("write an IPv4 address as four decimal numbers, such as 192.0.2.1") from None


def _ascii(written: str) -> str:
    try:
        return idna.encode(written, uts46=True, std3_rules=True, transitional=False).decode("ascii")
    except idna.IDNAError:
        raise _not_a_host("the name is not a valid internationalized domain name (IDNA2008)") from None


def _check_punycode(name: str) -> None:
    try:
        for label in name.split("."):
            if label.startswith("xn--"):
                idna.ulabel(label)
    except idna.IDNAError:
        raise _not_a_host("a label that begins with xn-- is not valid punycode (IDNA2008)") from None


def _not_a_host(what_to_do: str) -> ToolFailure:
    return refuse(ErrorKind.INVALID_INPUT, f"The host of the URL is invalid: {what_to_do}.")
