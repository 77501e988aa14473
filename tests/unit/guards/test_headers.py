from __future__ import annotations

import pytest

from tests.corpora import load_lines
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.guards.headers import (
    HEADERS_MAX,
    bodiless_headers,
    check_request_headers,
    cross_origin_headers,
    shown_response_headers,
)


def refused(headers: dict[str, str]) -> str:
    with pytest.raises(ToolFailure) as caught:
        check_request_headers(headers)
    assert caught.value.error.kind is ErrorKind.INVALID_INPUT
    return caught.value.error.message


def test_ordinary_headers_pass_in_lower_case_and_trimmed() -> None:
    checked = check_request_headers(
        {"Accept": " text/html\t", "X-Api-Key": "k", "Authorization": "Bearer t", "ETag": ""}
    )
    assert checked == (("accept", "text/html"), ("x-api-key", "k"), ("authorization", "Bearer t"), ("etag", ""))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "Host",
            "Connection",
            "Content-Length",
            "Transfer-Encoding",
            "TE",
            "Trailer",
            "Upgrade",
            "Keep-Alive",
            "Expect",
        ),
        *(
            "Proxy-Authorization",
            "Proxy-Connection",
            "Metadata-Flavor",
            "Metadata",
            "X-Forwarded-For",
            "X-Forwarded-Host",
        ),
        *(
            "X-aws-ec2-metadata-token",
            "X-aws-ec2-metadata-token-ttl-seconds",
            "X-Google-Metadata-Request",
            "Forwarded",
            "Via",
        ),
        *(
            "X-HTTP-Method-Override",
            "X-Original-URL",
            "X-Rewrite-URL",
            "X-Real-IP",
            "Accept-Encoding",
            "HTTP2-Settings",
        ),
        *("Content_Length", "Transfer_Encoding", "x_forwarded_for", "X-Envoy-Original-Dst-Host"),
    ],
)
def test_header_of_the_connection_or_of_a_metadata_service_is_refused(name: str) -> None:
    assert name.lower() in refused({name: "x"})
    refused({name.upper(): "x"})


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\n", "ä", "a\x00", "(a)", "a/b", ":authority", "a" * 257])
def test_name_outside_the_grammar_is_refused(name: str) -> None:
    assert "name" in refused({name: "x"})


@pytest.mark.parametrize(
    "value", ["a\r\nb: c", "a\nb", "a\rb", "a\x00b", "a\x0bb", "ä", "\x7f", "a\u2028b", "x" * 8193]
)
def test_value_outside_the_grammar_is_refused_and_not_repeated(value: str) -> None:
    message = refused({"X-Secret": value})
    assert value not in message


def test_decoded_crlf_corpora_are_refused_as_values() -> None:
    from urllib.parse import unquote

    lines = load_lines("ssrf/fuzzdb_crlf-injection.txt.gz") + load_lines("ssrf/patt_crlf.txt.gz")
    broken = [unquote(line, "latin-1") for line in lines]
    dangerous = [value for value in broken if "\r" in value or "\n" in value]
    assert len(dangerous) > 20
    for value in dangerous:
        refused({"X-Value": value})
        refused({value: "x"})


def test_same_header_in_two_spellings_is_refused() -> None:
    assert "accept" in refused({"Accept": "a", "accept": "b"})


def test_number_and_size_of_headers_are_bounded() -> None:
    assert str(HEADERS_MAX) in refused({f"x-{number}": "v" for number in range(HEADERS_MAX + 1)})
    assert "bytes" in refused({f"x-{number}": "v" * 8000 for number in range(3)})


def test_only_harmless_headers_cross_an_origin() -> None:
    sent = check_request_headers(
        {"Accept": "a", "User-Agent": "u", "Authorization": "s", "Cookie": "s", "X-Api-Key": "s", "X-Anything": "s"}
    )
    assert cross_origin_headers(sent) == (("accept", "a"), ("user-agent", "u"))


def test_headers_of_a_body_go_when_the_body_goes() -> None:
    assert bodiless_headers((("content-type", "a"), ("accept", "b"))) == (("accept", "b"),)


def test_response_headers_are_shown_without_secrets_and_joined() -> None:
    shown = shown_response_headers(
        [(b"Set-Cookie", b"sid=1"), (b"Vary", b"a"), (b"vary", b"b"), (b"X-Auth-Token", b"t"), (b"X-Bad", b"a\x01\xe4")]
    )
    assert shown == {"set-cookie": "***", "vary": "a, b", "x-auth-token": "***", "x-bad": "a\ufffdä"}


def test_shown_response_headers_are_bounded() -> None:
    shown = shown_response_headers([(b"x-%d" % number, b"v" * 5000) for number in range(200)])
    assert len(shown) == HEADERS_MAX
    assert all(len(value) == 1025 for value in shown.values())
