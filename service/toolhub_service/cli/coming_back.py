"""How long a watch that broke waits before it begins again.

Exponential backoff with jitter (Brooker, "Exponential Backoff And Jitter"); a hub that says when to come back
(RetryInfo, as one that leaves does) is not asked before, and all whom it told so do not come at once.
"""

from __future__ import annotations

import random

import grpc
from google.rpc import error_details_pb2

from toolhub_service.cli.status_details import unpacked

_FIRST_S = 0.25
_TOLD_MAX_S = 60.0
"""Of what a hub asks for."""


class Pauses:
    """Between the attempts of one watch."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._next_s = _FIRST_S

    def went_well(self) -> None:
        """The watch has brought something: begin anew."""
        self._next_s = _FIRST_S

    def after(self, error: grpc.RpcError | None) -> float:
        """Seconds to wait after the end of a watch; None: it ended without an error."""
        own_s, self._next_s = self._next_s, min(2 * self._next_s, self._most_s)
        told_s = min(retry_after_s(error), _TOLD_MAX_S) if error is not None else 0.0
        return max(own_s * random.uniform(0.5, 1.0), told_s * random.uniform(1.0, 1.5))  # noqa: S311 - jitter


def retry_after_s(error: grpc.RpcError) -> float:
    """RetryInfo of a failed RPC; 0 where it has none."""
    told = error_details_pb2.RetryInfo()
    return float(told.retry_delay.ToMilliseconds() / 1_000) if unpacked(error, told) else 0.0
