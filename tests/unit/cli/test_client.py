"""What the command line says when no hub answers, and how long a watch waits before it connects again."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from toolhub_service.cli.client import Backoff, HubUnreachable, connected, retry_after_s
from toolhub_service.domain.errors import ErrorKind
from toolhub_service.domain.reasons import Reason
from toolhub_service.transport.status import RpcFailure, details_trailer

UNRESOLVED = "errors resolving hub:1: [field:hostname lookup error:address lookup failed for hub:1: Not found]"
FAILED = "failed to connect to all addresses; last error: "


class Unavailable(grpc.RpcError):
    """As a stub raises it when gRPC has no connection; the texts of `details` are those of gRPC 1.8x."""

    def __init__(self, details: str) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return ()


@pytest.mark.parametrize(
    ("details", "text"),
    [
        (UNRESOLVED, "The host name in hub:1 does not resolve"),
        (
            f"{FAILED}UNAVAILABLE: (Trying to connect an http1.x server (HTTP status 405))",
            "The server at hub:1 is not a hub",
        ),
        (
            f"{FAILED}UNKNOWN: Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL",
            "The TLS handshake with hub:1 failed",
        ),
        (f"{FAILED}UNKNOWN: Failed to connect to remote host: Connection refused", "No hub answers at hub:1. Start"),
        ("", "No hub answers at hub:1. Start"),
    ],
)
def test_hub_that_cannot_be_reached_is_explained_with_what_to_do(details: str, text: str) -> None:
    with pytest.raises(HubUnreachable) as ended, connected("hub:1", None, None, 1.0):
        raise Unavailable(details)
    assert ended.value.message.startswith(text)


class Broken(grpc.RpcError):
    """As a stub raises it."""

    def __init__(self, retry_after_s: float | None) -> None:
        reason = ErrorKind.NOT_FOUND if retry_after_s is None else Reason.DRAINING
        failure = RpcFailure(reason, "Leaving.", retry_after_s=retry_after_s)
        self._trailers = (details_trailer(failure),)

    def trailing_metadata(self) -> Any:
        return self._trailers


def test_delay_of_retry_info_is_read() -> None:
    assert retry_after_s(Broken(0.5)) == 0.5
    assert retry_after_s(Broken(None)) == 0.0


@pytest.mark.parametrize("named_s", [0.5, 30.0])
def test_clients_wait_for_the_named_delay_and_do_not_come_back_all_at_once(named_s: float) -> None:
    first = [Backoff(5.0).pause_s(Broken(named_s)) for _ in range(50)]
    assert all(named_s <= pause_s <= 1.5 * named_s for pause_s in first)
    assert len(set(first)) > 1


def test_delay_of_a_day_is_cut_to_minutes() -> None:
    assert Backoff(5.0).pause_s(Broken(86_400.0)) <= 90.0


def test_pauses_grow_to_their_bound_and_begin_anew() -> None:
    backoff = Backoff(2.0)
    grown = [backoff.pause_s(None) for _ in range(6)]
    assert all(pause_s <= bound_s for pause_s, bound_s in zip(grown, (0.25, 0.5, 1.0, 2.0, 2.0, 2.0), strict=True))
    assert grown[-1] >= 1.0
    backoff.reset()
    assert backoff.pause_s(None) <= 0.25
