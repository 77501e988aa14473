"""The header by which Envoy forwards what it knows of its client's certificate."""

from __future__ import annotations

import pytest

from toolhub_service.identity.xfcc import XfccInvalid, last_element

HASH = "468ed33be74eee6556d90c0149c1309e9ba61d6425303443c0748a02dd8de688"


def test_the_last_of_several_elements_counts_despite_quotes() -> None:
    assert last_element(f"By=spiffe://a/b;Hash={HASH};URI=spiffe://example.org/x") == {
        "by": ["spiffe://a/b"],
        "hash": [HASH],
        "uri": ["spiffe://example.org/x"],
    }
    spoofed = f'Hash={HASH};URI=spiffe://example.org/admin,Subject="CN=a,URI=spiffe://example.org/admin;O=\\"x\\"";URI=spiffe://a/b'
    assert last_element(spoofed) == {
        "subject": ['CN=a,URI=spiffe://example.org/admin;O="x"'],
        "uri": ["spiffe://a/b"],
    }
    assert last_element('Hash=a;Subject="";URI=;DNS=a.example;DNS=b.example')["dns"] == ["a.example", "b.example"]
    assert last_element("uri=spiffe://a/b;URI=spiffe://a/c")["uri"] == ["spiffe://a/b", "spiffe://a/c"]


WRONG = [
    ("", "no pair"),
    ("URI", "no pair"),
    ("URI=a,", "no pair"),
    (",URI=a", "no pair"),
    ("URI=a;;By=b", "no pair"),
    ("Url=a", "no pair"),
    ("URI=a=b", "neither"),
    ('URI="a', "neither"),
    ('URI="a"b', "neither"),
    ('URI=a"b"', "neither"),
    ('Subject="a\\";URI=spiffe://a/b', "neither"),
    ("URI=spiffe://a/b\x00", "printable"),
    ("URI=spiffe://ä/b", "printable"),
    (",".join(["URI=a"] * 17), "more than 16 elements"),
    (";".join(["DNS=a"] * 65), "64 pairs"),
    ("Cert=" + "a" * 17_000, "longer"),
    ('Subject="' + "\\" * 15_000, "neither"),
]


def test_a_header_that_envoy_would_not_write_is_refused_whole() -> None:
    for header, why in WRONG:
        with pytest.raises(XfccInvalid, match=why):
            last_element(header)
