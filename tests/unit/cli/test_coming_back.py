"""A watch that broke comes back after a while, and not before the hub wants it."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from toolhub_service.cli.coming_back import Pauses, retry_after_s
from toolhub_service.transport.status import RpcFailure, details_trailer


class Broken(grpc.RpcError):
    """As a stub raises it."""

    def __init__(self, retry_after_s: float | None) -> None:
        failure = RpcFailure(grpc.StatusCode.UNAVAILABLE, "DRAINING", "Leaving.", retry_after_s=retry_after_s)
        self._trailers = (details_trailer(failure),)

    def trailing_metadata(self) -> Any:
        return self._trailers


def test_time_that_the_hub_names_is_read() -> None:
    assert retry_after_s(Broken(0.5)) == 0.5
    assert retry_after_s(Broken(None)) == 0.0


@pytest.mark.parametrize("named_s", [0.5, 30.0])
def test_nobody_comes_before_the_named_time_nor_all_at_once(named_s: float) -> None:
    first = [Pauses(5.0).after(Broken(named_s)) for _ in range(50)]
    assert all(named_s <= pause_s <= 1.5 * named_s for pause_s in first)
    assert len(set(first)) > 1


def test_hub_that_names_a_day_is_asked_within_minutes() -> None:
    assert Pauses(5.0).after(Broken(86_400.0)) <= 90.0


def test_pauses_grow_to_their_bound_and_begin_anew() -> None:
    pauses = Pauses(2.0)
    grown = [pauses.after(None) for _ in range(6)]
    assert all(pause_s <= bound_s for pause_s, bound_s in zip(grown, (0.25, 0.5, 1.0, 2.0, 2.0, 2.0), strict=True))
    assert grown[-1] >= 1.0
    pauses.went_well()
    assert pauses.after(None) <= 0.25
