"""What follows the end of a watch: whether it is opened again, and after which pause.

It decides only and waits for nothing, so that watches of asyncio and of threads, such as the command line's, share it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import grpc

from toolhub_client.failures import facts_of

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0
# A hub that leaves says when to come back; what it says is not believed beyond this.
_ASKED_MAX_S = 60.0
# A token that expires under a stream was good for longer than this; one that had expired is refused at once.
_HELD_S = 5.0
# 2**15 pauses are longer than any bound.
_DOUBLINGS_MAX = 15

_TRANSIENT = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,  # from a server that was stopped
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
    }
)
# gRPC reports a connection that breaks under a stream with these codes, too. A hub that fails adds a reason.
_BROKEN_CONNECTION = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN})


def is_transient(error: grpc.RpcError) -> bool:
    """Whether a stream that ended so may be opened again: a hub leaves, was killed or is overloaded, or the connection
    broke."""
    code = error.code()
    return code in _TRANSIENT or (code in _BROKEN_CONNECTION and not facts_of(error).reason)


def has_expired(error: grpc.RpcError) -> bool:
    """Whether the hub refuses a token because it has expired."""
    code = error.code()
    return code is grpc.StatusCode.UNAUTHENTICATED and facts_of(error).info.get("problem") == "expired"


def pause_before_reopening(failed: int, ended: Exception, *, longest_s: float = LONGEST_PAUSE_S) -> float:
    """Seconds to wait after so many streams in a row (1 and more) that brought nothing new.

    They grow exponentially with jitter (Brooker, "Exponential Backoff And Jitter"). A hub that says when to come back
    (RetryInfo), as one that shuts down does, is not asked before, and its clients do not all return at once.
    """
    own_s = min(FIRST_PAUSE_S * 2.0 ** min(failed - 1, _DOUBLINGS_MAX), longest_s)
    asked_s = min(facts_of(ended).retry_after_s, _ASKED_MAX_S) if isinstance(ended, grpc.RpcError) else 0.0
    return max(own_s * random.uniform(0.5, 1.0), asked_s * random.uniform(1.0, 1.5))  # noqa: S311 - jitter, not a secret


class Outages:
    """Those of one watch: `open` with each stream, `receive` with each message, `pause_s` with each end."""

    def __init__(
        self,
        *,
        attempts: int | None = None,
        longest_pause_s: float = LONGEST_PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`attempts`: streams in a row that may bring nothing; None: any number. `clock` is in seconds."""
        self._attempts = attempts
        self._longest_pause_s = longest_pause_s
        self._clock = clock
        self._opened_s = clock()
        self._has_received = False
        self._failed = 0

    def open(self) -> None:
        self._opened_s = self._clock()
        self._has_received = False

    def receive(self) -> None:
        """A message shows that the connection works: the next outage begins with the shortest pause."""
        self._has_received = True

    def pause_s(self, ended: Exception) -> float:
        """Seconds to wait before the next stream, after one that ended so: with an RpcError, or with a ConnectionError
        of the caller's where the hub ended it without an error. Raises `ended` when there is to be no next stream."""
        if isinstance(ended, grpc.RpcError) and not is_transient(ended) and not self._had_a_good_token(ended):
            raise ended
        self._failed = 1 if self._has_received else self._failed + 1
        if self._attempts is not None and self._failed >= self._attempts:
            raise ended
        return pause_before_reopening(self._failed, ended, longest_s=self._longest_pause_s)

    def _had_a_good_token(self, ended: grpc.RpcError) -> bool:
        """Whether it ended because its token has expired since: the next stream asks for a new one."""
        return has_expired(ended) and self._clock() - self._opened_s >= _HELD_S
