"""When a watch is opened again, and how long it waits before."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from toolhub_client.failures import facts_of
from toolhub_client.outages import Outages, is_transient, pause_before_reopening
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.status import RpcFailure, details_trailer


class Broken(grpc.RpcError):
    """As a stub raises it."""

    def __init__(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, failure: RpcFailure | None = None) -> None:
        self._code = code
        self._trailers = () if failure is None else (details_trailer(failure),)

    def code(self) -> grpc.StatusCode:
        return self._code

    def trailing_metadata(self) -> Any:
        return self._trailers


def leaving(retry_after_s: float | None) -> Broken:
    return Broken(failure=RpcFailure(Reason.DRAINING, "Leaving.", retry_after_s=retry_after_s))


def test_delay_of_retry_info_is_read() -> None:
    assert facts_of(leaving(0.5)).retry_after_s == 0.5
    assert facts_of(Broken(failure=RpcFailure(Reason.FACE_NOT_FOUND, "Gone."))).retry_after_s == 0.0
    assert facts_of(Broken()).reason == ""


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
def test_a_hub_that_fails_with_a_reason_is_not_taken_for_a_broken_connection(code: grpc.StatusCode) -> None:
    assert is_transient(Broken(code))
    failing = Broken(code, RpcFailure(Reason.INTERNAL, "Failed."))
    assert not is_transient(failing)
    with pytest.raises(Broken):
        Outages().pause_s(failing)


@pytest.mark.parametrize("named_s", [0.5, 30.0])
def test_clients_wait_for_the_named_delay_and_do_not_come_back_all_at_once(named_s: float) -> None:
    first = [Outages().pause_s(leaving(named_s)) for _ in range(50)]
    assert all(named_s <= pause_s <= 1.5 * named_s for pause_s in first)
    assert len(set(first)) > 1


def test_delay_of_a_day_is_cut_to_minutes() -> None:
    assert Outages().pause_s(leaving(86_400.0)) <= 90.0


def test_pauses_grow_to_their_bound_and_begin_anew() -> None:
    outages = Outages(longest_pause_s=2.0)
    grown = [outages.pause_s(ConnectionError()) for _ in range(6)]
    assert all(pause_s <= bound_s for pause_s, bound_s in zip(grown, (0.25, 0.5, 1.0, 2.0, 2.0, 2.0), strict=True))
    assert grown[-1] >= 1.0
    outages.receive()
    assert outages.pause_s(ConnectionError()) <= 0.25


def test_pauses_of_an_outage_of_days_stay_at_their_bound() -> None:
    assert pause_before_reopening(1_000_000, ConnectionError(), longest_s=5.0) <= 5.0


def test_attempts_that_bring_nothing_are_counted_and_any_message_begins_anew() -> None:
    outages = Outages(attempts=2)
    outages.pause_s(ConnectionError())
    outages.open()
    outages.receive()
    outages.pause_s(ConnectionError())
    outages.open()
    with pytest.raises(ConnectionError):
        outages.pause_s(ConnectionError())


def test_a_token_that_expired_under_a_long_stream_is_asked_for_anew_and_one_refused_at_once_is_not() -> None:
    now_s = [0.0]
    outages = Outages(clock=lambda: now_s[0])
    failure = RpcFailure(Reason.CREDENTIAL_REFUSED, "The token has expired.", {"problem": "expired"})
    expired = Broken(grpc.StatusCode.UNAUTHENTICATED, failure)
    outages.open()
    now_s[0] += 3_600.0
    assert outages.pause_s(expired) <= 0.25
    outages.open()
    with pytest.raises(Broken):
        outages.pause_s(expired)
