from __future__ import annotations

from ipaddress import ip_network

import pytest

from tests.corpora import load_json
from toolhub_service.guards.addresses import Networks, is_allowed, is_public

PUBLIC = ("1.1.1.1", "8.8.8.8", "93.184.216.34", "223.255.255.254", "2606:4700::1111", "2a00:1450:4001::8a")
FORBIDDEN = (
    *("0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.255.254", "172.31.255.255", "192.168.0.1"),
    *(
        "169.254.169.254",
        "168.63.129.16",
        "192.0.0.192",
        "100.100.100.200",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
    ),
    *("192.0.2.1", "198.51.100.7", "203.0.113.9", "198.18.0.1", "192.88.99.1", "192.31.196.1", "192.52.193.1"),
    *("::", "::1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "5f00::1", "100::1", "3fff::1"),
    *("2001:db8::1", "2001:2::1", "2001:10::1", "2001:4:112::1", "2620:4f:8000::1", "4000::1"),
)
EMBEDDINGS = (
    "::ffff:{}",
    "::{}",
    "::ffff:0:{}",
    "64:ff9b::{}",
    "64:ff9b:1::{}",
    "2a00:1450:4001:1::5efe:{}",
    "2a00:1450:4001:1:200:5efe:{}",
)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", FORBIDDEN)
def test_special_address_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("embedding", EMBEDDINGS)
@pytest.mark.parametrize("inner", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "168.63.129.16", "192.168.1.1"])
def test_forbidden_ipv4_address_stays_forbidden_inside_an_ipv6_one(embedding: str, inner: str) -> None:
    assert not is_public(embedding.format(inner))


@pytest.mark.parametrize(
    "address", ["2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:a9fe:a9fe::", "2001:0:808:808::80ff:fffe"]
)
def test_tunnel_address_is_forbidden(address: str) -> None:
    assert not is_public(address)


def test_mapped_public_address_is_public() -> None:
    assert is_public("::ffff:8.8.8.8")


@pytest.mark.parametrize(
    "address", ["fe80::1%eth0", "2606:4700::1111%1", "example.com", "", "0127.0.0.1", "127.1", "1.2.3.4/32"]
)
def test_an_unusual_address_form_is_not_public(address: str) -> None:
    assert not is_public(address)


def test_every_range_of_antissrf_is_forbidden_at_both_ends_and_in_the_middle() -> None:
    corpus = load_json("ssrf/antissrf_ranges.json.gz")
    named = [cidr for cidrs in corpus["named"].values() for cidr in cidrs]
    for cidr in (*corpus["recommendedV1"], *named):
        network = ip_network(cidr)
        for position in (0, network.num_addresses // 2, -1):
            assert not is_public(str(network[position])), (cidr, position)


def test_rule_opens_the_networks_that_it_names_and_no_other() -> None:
    opened = Networks(("10.0.0.0/8", "fd12::/16"))
    assert is_allowed("10.2.3.4", opened)
    assert is_allowed("::ffff:10.2.3.4", opened)
    assert is_allowed("fd12::5", opened)
    assert is_allowed("8.8.8.8", opened)
    assert not is_allowed("192.168.0.1", opened)
    assert not is_allowed("127.0.0.1", opened)


@pytest.mark.parametrize(
    ("address", "wide"),
    [
        ("169.254.169.254", "169.254.0.0/16"),
        ("169.254.169.254", "0.0.0.0/0"),
        ("100.100.100.200", "100.64.0.0/10"),
        ("192.0.0.192", "192.0.0.0/24"),
        ("fd00:ec2::254", "fc00::/7"),
        ("::ffff:169.254.169.254", "0.0.0.0/0"),
    ],
)
def test_metadata_service_is_opened_only_by_its_own_address(address: str, wide: str) -> None:
    assert not is_allowed(address, Networks((wide,)))
    assert is_allowed(address, Networks((wide, address.removeprefix("::ffff:"))))


def test_opened_nat64_prefix_does_not_open_what_lies_behind_it() -> None:
    opened = Networks(("64:ff9b::/96",))
    assert is_allowed("64:ff9b::8.8.8.8", opened)
    assert not is_allowed("64:ff9b::127.0.0.1", opened)
    assert not is_allowed("64:ff9b::169.254.169.254", opened)
    assert is_allowed("64:ff9b::10.0.0.1", Networks((*opened.opened, "10.0.0.0/8")))


def test_opened_tunnels_do_not_open_loopback() -> None:
    assert is_allowed("2002:808:808::1", Networks(("2002::/16",)))
    assert not is_allowed("2002:7f00:1::1", Networks(("2002::/16",)))
    assert not is_allowed("2001:0:808:808::80ff:fffe", Networks(("2001::/32",)))


def test_a_blocked_network_is_reached_neither_as_public_nor_as_opened() -> None:
    networks = Networks(("10.0.0.0/8",), ("8.8.0.0/16", "10.9.0.0/16", "2606:4700::/32"))
    assert is_allowed("9.9.9.9", networks)
    assert is_allowed("10.8.0.1", networks)
    for address in ("8.8.4.4", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "10.9.0.1", "2606:4700::1111"):
        assert not is_allowed(address, networks), address
