"""SPIFFE ids, and certificates that are verified against the bundle of their own trust domain."""

from __future__ import annotations

import time

import pytest

from tests.fakes.tls import Authority
from toolhub_service.identity.spiffe import CLIENT_CA, Peers, trust_domain_of
from toolhub_service.transport.interceptors.mutual_tls import Proxies

WORKLOAD = "spiffe://example.org/agent"


WRONG = [
    "",
    "spiffe://example.org",
    "spiffe://example.org/",
    "spiffe://example.org/a/",
    "spiffe://example.org//a",
    "spiffe://example.org/a/../b",
    "spiffe://example.org/./a",
    "spiffe://Example.org/a",
    "SPIFFE://example.org/a",
    "spiffe://user@example.org/a",
    "spiffe://example.org:443/a",
    "spiffe://example.org/a?b=c",
    "spiffe://example.org/a#b",
    "spiffe://example.org/%61",
    "spiffe://example.org/a\n",
    "spiffe:///a",
    "https://example.org/a",
    "spiffe://example.org/" + "a" * 2_048,
]


def test_an_id_that_the_standard_forbids_names_nobody() -> None:
    assert [uri for uri in WRONG if trust_domain_of(uri)] == []
    assert trust_domain_of("spiffe://example.org/ns/a_b.c-d/sa/E") == "example.org"


def test_a_certificate_counts_until_the_first_of_its_chain_expires() -> None:
    root, now_s = Authority(), [time.time()]
    trusted = {"example.org": root.pem}
    peers = Peers(lambda: trusted, lambda: now_s[0])
    below = Authority(above=root)
    short, long = (below.sign("w", uris=(WORKLOAD,), lifetime_s=life).certificate for life in (600, 86_400))
    assert peers.peer((short,)).spiffe_id == peers.peer((long,)).spiffe_id == WORKLOAD
    now_s[0] += 601
    assert peers.peer((long,)).spiffe_id == WORKLOAD
    ended = peers.peer((short,))
    assert (ended.spiffe_id, ended.sha256) == ("", "")
    assert "has expired" in ended.problem
    now_s[0] += 3_000
    assert "has expired" in peers.peer((long,)).problem, "the CA between"


@pytest.mark.promise("identity.spiffe")
def test_a_verified_peer_is_cached_until_the_trusted_cas_change() -> None:
    root, others = Authority(), Authority()
    trusted = {"example.org": root.pem}
    peers = Peers(lambda: trusted, time.time)
    chain = (root.sign("w", uris=(WORKLOAD,)).certificate,)
    assert peers.peer(chain) is peers.peer(chain)
    trusted = {"example.org": others.pem}
    assert "does not vouch" in peers.peer(chain).problem


def test_hosts_are_vouched_for_by_the_client_cas_alone_and_ids_by_their_trust_domain_alone() -> None:
    own, hosts = Authority(), Authority()
    trusted = {"example.org": own.pem, CLIENT_CA: hosts.pem}
    peers = Peers(lambda: trusted, time.time)
    assert peers.peer((hosts.sign("p", dns=("Envoy.internal",)).certificate,)).hosts == {"envoy.internal"}
    assert not peers.peer((own.sign("p", dns=("envoy.internal",)).certificate,)).hosts
    assert not peers.peer((hosts.sign("p", uris=(WORKLOAD,)).certificate,)).spiffe_id
    ca = peers.peer((own.sign("p", uris=(WORKLOAD,), is_ca=True).certificate,))
    assert not ca.spiffe_id
    assert "a CA's" in ca.problem
    assert peers.peer((b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",)).problem


def test_a_proxy_that_is_known_by_its_digest_is_none_once_its_certificate_has_expired() -> None:
    other_authority, now_s = Authority(), [time.time()]
    trusted = {"example.org": Authority().pem}
    peers = Peers(lambda: trusted, lambda: now_s[0])
    chain = (other_authority.sign("p", uris=(WORKLOAD,), lifetime_s=600).certificate,)
    known = Proxies([f"sha256:{peers.peer(chain).sha256}"])
    assert peers.peer(chain).problem, "its id does not count"
    assert known.has(peers.peer(chain))
    now_s[0] += 601
    assert not known.has(peers.peer(chain))
