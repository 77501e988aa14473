from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.guards.addresses import PUBLIC
from toolhub_service.guards.shown_urls import shown_url
from toolhub_service.guards.urls import URL_MAX_BYTES, CheckedUrl, check_url, join_url, parse_url

ANY = (EgressRule(("*",)),)


def refused(url: str, method: str = "GET", egress: tuple[EgressRule, ...] = ANY) -> ToolFailure:
    with pytest.raises(ToolFailure) as caught:
        check_url(url, method, egress)
    return caught.value


@pytest.mark.parametrize(
    ("written", "spelt"),
    [
        ("https://example.com", "https://example.com/"),
        ("HTTPS://EXAMPLE.com:443/A?b=c#d", "https://example.com/A?b=c"),
        ("http://example.com.:80/", "http://example.com/"),
        ("http://example.com:/", "http://example.com/"),
        ("http://example.com?q=1", "http://example.com/?q=1"),
        ("https://bücher.example/ä?ö=ü", "https://xn--bcher-kva.example/%C3%A4?%C3%B6=%C3%BC"),
        ("https://BÜCHER.example/", "https://xn--bcher-kva.example/"),
        ("https://日本語。jp/", "https://xn--wgv71a119e.jp/"),
        ("https://example.com/a b?c d", "https://example.com/a%20b?c%20d"),
        ("  https://example.com/  ", "https://example.com/"),
        ("https://[2606:4700:0:0::1111]/", "https://[2606:4700::1111]/"),
        ("https://my_bucket.example.com/", "https://my_bucket.example.com/"),
        ("https://r3---sn-x.example.com/%zz", "https://r3---sn-x.example.com/%zz"),
        ("https://example.com//a/../b", "https://example.com//b"),
        ("https://example.com/a/./b/../c", "https://example.com/a/c"),
        ("https://example.com/../../a", "https://example.com/a"),
        ("https://example.com/a/b/..", "https://example.com/a/"),
        ("https://example.com/a/.", "https://example.com/a/"),
        ("https://example.com/..", "https://example.com/"),
        ("https://example.com/.well-known/..a/...", "https://example.com/.well-known/..a/..."),
        ("https://example.com/%61%2D%5f%7e", "https://example.com/a-_~"),
        ("https://example.com/a/%2e%2E/b", "https://example.com/b"),
        ("https://example.com/group%2fname/x%5cy", "https://example.com/group%2Fname/x%5Cy"),
        ("https://example.com/%2561?%2561", "https://example.com/%2561?%2561"),
        ("https://example.com/?b=2&a=%31&a=../x&%c3%a4=+%2b", "https://example.com/?b=2&a=1&a=../x&%C3%A4=+%2B"),
    ],
)
def test_url_is_sent_in_one_spelling(written: str, spelt: str) -> None:
    assert str(check_url(written, "GET", ANY)) == spelt


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "example.com",
            "//example.com",
            "http:example.com",
            "http:/example.com",
            "http:///x",
            "https://?x",
            "https://#x",
        ),
        *(
            "ftp://example.com/",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "gopher://example.com/",
            "unix:///run/x.sock",
        ),
        *("http://user@example.com/", "http://user:pw@example.com/", "http://@example.com/", "http://a@b@example.com/"),
        *("http://example.com:0/", "http://example.com:65536/", "http://example.com:80:80/", "http://example.com:+80/"),
        *("http://example.com:８０/", "http://example.com:-1/", "http://example.com:080000/"),
        *("http://127.1/", "http://2130706433/", "http://0x7f000001/", "http://017700000001/", "http://0177.0.0.1/"),
        *("http://0x7f.1/", "http://127.0.0.0x1/", "http://1.2.3.4.5/", "http://256.0.0.1/", "http://0/", "http://0x/"),
        *("http://foo.1/", "http://foo.0x1/", "http://127.0.0.1../", "http://127.00.0.1/", "http://1.1.1.1&@2.2.2.2/"),
        *(
            "http://[::1%25eth0]/",
            "http://[fe80::1%eth0]/",
            "http://[v1.x]/",
            "http://[::1/",
            "http://::1/",
            "http://[]/",
        ),
        *("http://[::ffff:7f000001]/", "http://[1::2::3]/", "http://a[::1]/", "http://[::1]a/"),
        *(
            "http://exa mple.com/",
            "http://example..com/",
            "http://.example.com/",
            "http://-a.example.com/",
            "http://example.com../",
        ),
        *(
            "http://%65xample.com/",
            "http://ex\ufffdmple.com/",
            "http://xn--a/",
            "http://a\u200db.example/",
            "http://exa*mple.com/",
        ),
        *("http://example.com\\@evil.example/", "http://example.com/\\evil", "http:\\\\example.com/"),
        *("http://example.com/\r\nX: y", "http://example.com/\x00", "http://exam\tple.com/", "http://example.com/\x7f"),
        *("http://example.com/\ud800", "http://example.com/\u2028", "\x01http://example.com/"),
        *(f"http://{'a' * 64}.com/", f"http://{'a.' * 127}aa/", f"http://example.com/{'a' * URL_MAX_BYTES}"),
        f"http://example.com/{'ä' * (URL_MAX_BYTES // 2)}",
    ],
)
def test_a_url_with_another_scheme_is_invalid(url: str) -> None:
    failure = refused(url)
    assert failure.error.kind is ErrorKind.INVALID_INPUT
    assert failure.error.message.startswith(("The URL is invalid: ", "The host of the URL is invalid: "))


@pytest.mark.parametrize(
    "url", ["http://①②⑦.⓪.⓪.①/", "http://127。0。0。1/", "http://１２７.0.0.1/", "http://127.0.0.1./"]
)
def test_address_in_disguise_is_checked_as_the_address(url: str) -> None:
    assert refused(url).error.kind is ErrorKind.HTTP_DISALLOWED_HOST
    assert parse_url(url).host == "127.0.0.1"
    assert parse_url(url).is_address


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1/", "http://[::1]/", "http://169.254.169.254/latest", "http://[::ffff:127.0.0.1]/"]
)
def test_private_address_is_refused_without_a_rule_that_opens_it(url: str) -> None:
    failure = refused(url)
    assert failure.error.kind is ErrorKind.HTTP_DISALLOWED_HOST
    assert not failure.error.is_retryable


def test_private_address_needs_both_its_host_and_its_network() -> None:
    host_only = (EgressRule(("10.0.0.1",)),)
    both = (EgressRule(("10.0.0.1",), cidrs=("10.0.0.0/8",)),)
    assert refused("http://10.0.0.1/", egress=host_only).error.kind is ErrorKind.HTTP_DISALLOWED_HOST
    assert check_url("http://10.0.0.1/", "GET", both).networks.opened == ("10.0.0.0/8",)
    assert refused("http://10.0.0.2/", egress=both).error.kind is ErrorKind.HTTP_DISALLOWED_HOST


def test_without_rules_nothing_is_allowed() -> None:
    error = refused("https://example.com/", egress=()).error
    assert error.kind is ErrorKind.HTTP_DISALLOWED_HOST
    assert error.details["allowed_hosts"] == []


def test_refusal_names_the_hosts_that_are_allowed() -> None:
    error = refused("https://evil.example/", egress=(EgressRule(("b.example", "*.a.example")),)).error
    assert error.details["allowed_hosts"] == ["*.a.example", "b.example"]
    assert "*.a.example, b.example" in error.message


@pytest.mark.parametrize("host", ["a.example.com", "a.b.example.com"])
def test_a_wildcard_matches_subdomains(host: str) -> None:
    assert check_url(f"https://{host}/", "GET", (EgressRule(("*.example.com",)),)).host == host


@pytest.mark.parametrize("host", ["example.com", "badexample.com", "example.com.evil.net", "a.example.co"])
def test_a_wildcard_matches_nothing_else(host: str) -> None:
    error = refused(f"https://{host}/", egress=(EgressRule(("*.example.com",)),)).error
    assert error.kind is ErrorKind.HTTP_DISALLOWED_HOST


@pytest.mark.parametrize("port", [1, 65535])
def test_first_and_last_port_are_ports(port: int) -> None:
    assert parse_url(f"http://a.example:{port}/").port == port


@pytest.mark.parametrize("port", [0, 65536])
def test_port_outside_the_range_is_invalid(port: int) -> None:
    assert refused(f"http://a.example:{port}/").error.kind is ErrorKind.INVALID_INPUT


def test_a_wildcard_never_matches_an_address() -> None:
    error = refused("http://127.0.0.1/", egress=(EgressRule(("*.0.0.1",), cidrs=("127.0.0.0/8",)),)).error
    assert error.kind is ErrorKind.HTTP_DISALLOWED_HOST


def test_only_the_default_port_is_open_unless_the_rule_names_ports() -> None:
    default, named = (EgressRule(("a.example",)),), (EgressRule(("a.example",), ports=frozenset({8443})),)
    assert check_url("https://a.example/", "GET", default).port == 443
    assert refused("https://a.example:8443/", egress=default).error.details["allowed_ports"] == [80, 443]
    assert check_url("https://a.example:8443/", "GET", named).authority == "a.example:8443"
    assert refused("https://a.example/", egress=named).error.details["allowed_ports"] == [8443]


def test_method_must_be_allowed_by_the_rule() -> None:
    error = refused("https://a.example/", "POST", (EgressRule(("a.example",)),)).error
    assert error.kind is ErrorKind.HTTP_DISALLOWED_HOST
    assert error.details["allowed_methods"] == ["GET", "HEAD"]
    allowed = (EgressRule(("a.example",), methods=frozenset({"POST"})),)
    assert check_url("https://a.example/", "POST", allowed).host == "a.example"
    refused("https://a.example/", "post", allowed)


def test_scheme_must_be_allowed_by_the_rule() -> None:
    rule = (EgressRule(("a.example",), schemes=frozenset({"https"})),)
    assert refused("http://a.example/", egress=rule).error.details["allowed_schemes"] == ["https"]


def test_one_rule_must_match_the_whole_request() -> None:
    rules = (
        EgressRule(("a.example",), methods=frozenset({"GET"}), ports=frozenset({8080}), cidrs=("10.0.0.0/8",)),
        EgressRule(("a.example",), methods=frozenset({"POST"})),
    )
    refused("http://a.example:8080/", "POST", rules)
    assert check_url("http://a.example/", "POST", rules).networks.opened == ()
    assert check_url("http://a.example:8080/", "GET", rules).networks.opened == ("10.0.0.0/8",)


def test_relative_reference_is_joined_to_the_origin() -> None:
    origin = parse_url("https://a.example/b/c?d")
    assert join_url(origin, "../e") == "https://a.example/e"
    assert join_url(origin, "//b.example/") == "https://b.example/"
    with pytest.raises(ToolFailure):
        join_url(origin, "/a\tb")


def test_shown_url_hides_the_values_of_secret_parameters() -> None:
    url = parse_url("https://a.example/x?page=2&api_key=s3cr3t&access_token=t0k&X-Amz-Signature=abc&sig=d&flag")
    assert shown_url(url) == (
        "https://a.example/x?page=2&api_key=***&access_token=***&X-Amz-Signature=***&sig=***&flag"
    )


def test_shown_url_is_bounded() -> None:
    assert len(shown_url(parse_url(f"https://a.example/{'a' * 5000}"))) <= 2_001


def test_checked_url_carries_what_is_dialled() -> None:
    checked = check_url("https://a.example:443/x?y", "GET", ANY)
    assert checked == CheckedUrl("https", "a.example", 443, "/x?y", False, PUBLIC)
    assert checked.origin == ("https", "a.example", 443)


@settings(max_examples=400, deadline=None)
@given(
    st.text(alphabet=st.sampled_from("http:/s?#@[]%.:\\0179axfeAé。ß\t 1²-_\u200d"), max_size=40).map("http://".__add__)
)
def test_any_text_is_refused_in_words_or_has_one_spelling(text: str) -> None:
    try:
        parsed = parse_url(text)
    except ToolFailure as failure:
        assert failure.error.kind is ErrorKind.INVALID_INPUT  # noqa: PT017  both outcomes are right
        return
    assert parse_url(str(parsed)) == parsed
    assert str(parsed).isascii()
    assert not set(str(parsed)) & set(" \\\t")


@pytest.mark.parametrize(
    "path", ["/a/..%2fb", "/a%2f..%2Fb", "/a/..%5cb", "/a/%2e%2e%2fb", "/a/..;/b", "/a/..;x=1", "/.%2Fa", "/a%2F.."]
)
def test_a_path_that_servers_read_differently_is_refused(path: str) -> None:
    assert refused(f"https://example.com{path}").error.kind is ErrorKind.INVALID_INPUT


@settings(max_examples=300)
@given(st.text("ab./%25eEfF;~ü?=&", max_size=30))
def test_the_normal_form_of_a_normal_form_is_itself(rest: str) -> None:
    try:
        once = str(parse_url(f"https://example.com/{rest}"))
    except ToolFailure:
        return
    assert str(parse_url(once)) == once
    path = once.removeprefix("https://example.com").partition("?")[0]
    assert not {".", ".."} & set(path.split("/"))


@pytest.mark.parametrize(
    ("prefix", "path", "fits"),
    [
        ("/v1", "/v1", True),
        ("/v1", "/v1/a", True),
        ("/v1", "/v1?a=/", True),
        ("/v1", "/v10", False),
        ("/v1", "/v1%2Fa", False),
        ("/v1", "/V1", False),
        ("/v1", "/v1/../a", False),
        ("/v1", "/a/%2e%2e/v1/b", True),
        ("/v1", "/", False),
        ("/v1", "//v1", False),
        ("/v1/", "/v1/a", True),
        ("/v1/", "/v1", False),
        ("/", "/any", True),
    ],
)
def test_a_rule_may_name_where_paths_begin(prefix: str, path: str, fits: bool) -> None:
    rules = (EgressRule(("example.com",), paths=(prefix,)),)
    if fits:
        check_url(f"https://example.com{path}", "GET", rules)
    else:
        error = refused(f"https://example.com{path}", egress=rules).error
        assert (error.kind, error.details["allowed_paths"]) == (ErrorKind.HTTP_DISALLOWED_HOST, [prefix])
