"""What the command line makes of gRPC's own words when nobody answers, as gRPC 1.8x says them."""

from __future__ import annotations

import pytest

from toolhub_service.cli.connection import _unanswered

UNRESOLVED = "errors resolving hub:1: [field:hostname lookup error:address lookup failed for hub:1: Not found]"
FAILED = "failed to connect to all addresses; last error: "


@pytest.mark.parametrize(
    ("details", "told"),
    [
        (UNRESOLVED, "no host has the name in hub:1"),
        (
            f"{FAILED}UNAVAILABLE: (Trying to connect an http1.x server (HTTP status 405))",
            "what answers at hub:1 is no",
        ),
        (f"{FAILED}UNKNOWN: Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL", "TLS with hub:1 fails"),
        (f"{FAILED}UNKNOWN: Failed to connect to remote host: Connection refused", "no hub answers at hub:1. Start"),
        ("", "no hub answers at hub:1. Start"),
    ],
)
def test_the_cause_is_told_in_words_that_say_what_to_do(details: str, told: str) -> None:
    assert _unanswered("hub:1", details).startswith(told)
