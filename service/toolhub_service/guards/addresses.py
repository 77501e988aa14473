"""Which addresses may be dialled: a table of our own, because `ipaddress.is_global` changes with Python's patch level.

An address has one or more faces: itself and every IPv4 address that it embeds (6to4, Teredo, NAT64, ISATAP,
IPv4-compatible). It is allowed when every face is. An IPv4-mapped address has one face, the IPv4 address, because that
is what the kernel dials. A face is allowed when it is public, or when a network of the rule opens it. Metadata services
are opened only by a network that names exactly their address: `100.64.0.0/10` does not open 100.100.100.200. A face in
a blocked network is never allowed, public or opened.

Sources: IANA special-purpose registries (RFC 6890), microsoft/AntiSSRF `recommendedV1`, RFC 3056, 4291, 4380, 5214,
6052, 8215. IPv6 is a list of what exists (2000::/3) without its special ranges, so a range assigned later stays closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

FORBIDDEN_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure WireServer
        "169.254.0.0/16",  # link-local, metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments, Oracle metadata
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
ALLOCATED_V6 = IPv6Network("2000::/3")
FORBIDDEN_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID, AMT, AS112
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
METADATA = frozenset(
    ip_address(address)
    for address in (
        "169.254.169.254 169.254.169.253 169.254.169.123 169.254.170.2 169.254.170.23 168.63.129.16 192.0.0.192 "
        "100.100.100.200 fd00:ec2::254 fd00:ec2::253 fd00:ec2::123 fd00:ec2::23 fd20:ce::254"
    ).split()
)

_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_LAST_32_BITS = tuple(
    IPv6Network(network)
    for network in (
        "::/96",  # IPv4-compatible
        "::ffff:0:0:0/96",  # SIIT
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # local NAT64
    )
)
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})

Address = IPv4Address | IPv6Address


class Networks(NamedTuple):
    """Addresses that a connection may reach besides the public ones, and public ones that it may not reach."""

    opened: tuple[str, ...] = ()
    """CIDRs, such as `10.0.0.0/8`."""
    blocked: tuple[str, ...] = ()
    """CIDRs that are always refused."""


PUBLIC = Networks()


def is_public(address: str) -> bool:
    """Return whether the literal address, without scope, is an ordinary address of the public Internet."""
    return is_allowed(address, PUBLIC)


@lru_cache(maxsize=8192)
def is_allowed(address: str, networks: Networks) -> bool:
    """Return whether the literal address is public or opened, and not blocked; False for anything that is not an
    address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.scope_id is not None:
        return False
    opened, blocked = _networks(networks.opened), _networks(networks.blocked)
    return all(
        (_is_public(face) or is_in_opened_networks(face, opened)) and not any(face in network for network in blocked)
        for face in _faces(parsed)
    )


@lru_cache(maxsize=256)
def _networks(cidrs: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(cidr, strict=False) for cidr in cidrs)


def _faces(address: Address) -> Iterator[Address]:
    if isinstance(address, IPv4Address):
        yield address
    elif address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    else:
        yield address
        yield from embedded_ipv4_addresses(address)


def embedded_ipv4_addresses(address: IPv6Address) -> Iterator[IPv4Address]:
    value = int(address)
    if address in _SIX_TO_FOUR:
        yield IPv4Address(value >> 80 & 0xFFFFFFFF)
    elif address in _TEREDO:
        yield IPv4Address(value >> 64 & 0xFFFFFFFF)
        yield IPv4Address(value & 0xFFFFFFFF ^ 0xFFFFFFFF)
    elif value > 1 and (value >> 32 & 0xFFFFFFFF in _ISATAP or any(address in network for network in _LAST_32_BITS)):
        yield IPv4Address(value & 0xFFFFFFFF)


def _is_public(face: Address) -> bool:
    if isinstance(face, IPv4Address):
        return not any(face in network for network in FORBIDDEN_V4)
    return face in ALLOCATED_V6 and not any(face in network for network in FORBIDDEN_V6)


def is_in_opened_networks(face: Address, opened: tuple[IPv4Network | IPv6Network, ...]) -> bool:
    if face in METADATA:
        return any(face in network and network.num_addresses == 1 for network in opened)
    return any(face in network for network in opened)
