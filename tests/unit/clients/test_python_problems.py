"""What gRPC's words for a missing connection mean; they are those of gRPC 1.8x."""

from __future__ import annotations

import pytest

from toolhub_client.problems import Problem, diagnose, explain

FAILED = "failed to connect to all addresses; last error: "
HANDSHAKE = f"{FAILED}UNKNOWN: ipv4:127.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1: "
UNTRUSTED = f"{HANDSHAKE}SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: "


@pytest.mark.parametrize(
    ("details", "problem", "words"),
    [
        ("errors resolving hub:1: address lookup failed for hub:1: Not found", Problem.UNRESOLVED, ""),
        ("DNS resolution failed for hub:1", Problem.UNRESOLVED, ""),
        (f"{FAILED}UNAVAILABLE: (Trying to connect an http1.x server (HTTP status 405))", Problem.NO_HUB, ""),
        (f"{HANDSHAKE}SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER", Problem.PLAINTEXT, ""),
        (f"{UNTRUSTED}certificate has expired", Problem.OUT_OF_DATE, "certificate has expired"),
        (f"{UNTRUSTED}self-signed certificate: more", Problem.NOT_TRUSTED, "self-signed certificate"),
        (f"{HANDSHAKE}OPENSSL_internal:BAD_SIGNATURE", Problem.NOT_TRUSTED, ""),
        (f"{FAILED}UNKNOWN: Hostname Verification Check failed.", Problem.OTHER_NAME, ""),
        (f"{FAILED}UNKNOWN: Tls handshake failed: X", Problem.HANDSHAKE, "UNKNOWN: Tls handshake failed: X"),
        (f"{FAILED}UNKNOWN: Failed to connect to remote host: Connection refused", Problem.REFUSED, ""),
        (f"{FAILED}UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed", Problem.CLOSED, ""),
        ("Deadline Exceeded", Problem.UNKNOWN, ""),
    ],
)
def test_each_problem_has_its_sign(details: str, problem: Problem, words: str) -> None:
    found = diagnose(details)
    assert (found.problem, found.words) == (problem, words)
    explained = explain(details, is_encrypted=True)
    assert bool(explained) is (problem not in (Problem.REFUSED, Problem.UNKNOWN))


@pytest.mark.parametrize(("is_encrypted", "wants"), [(True, "client certificate"), (False, "TLS")])
def test_a_server_that_closes_connections_wants_more_than_was_given(is_encrypted: bool, wants: str) -> None:
    assert wants in explain("Socket closed", is_encrypted=is_encrypted)
