"""A share of the streams that follow something for each principal, so that nobody finds them taken by another.

Admission bounds them all before it is known who asks; this comes after, and bounds what one may hold of them
(domain/share.py). A stream that is open is never ended for it.
"""

from __future__ import annotations

from collections import Counter

import grpc

from toolhub_service.domain.share import may_take
from toolhub_service.transport.interceptors.admission import WATCHES
from toolhub_service.transport.interceptors.layer import Layer
from toolhub_service.transport.rpc import Method, ServicerContext, current_principal
from toolhub_service.transport.status import RpcFailure


class WatchSharesLayer(Layer):
    """Stands behind `AuthLayer`."""

    def __init__(self, max_watches: int) -> None:
        self._max_watches = max_watches
        self._watches = 0
        self._of: Counter[str] = Counter()

    def enter(self, method: Method, context: ServicerContext) -> str:
        """Whose watch it is; empty: it is none."""
        if method.name not in WATCHES or method.is_open:
            return ""
        principal_id = current_principal().id
        own = self._of[principal_id]
        if not may_take(own, self._watches, self._max_watches):
            raise self._refusal(own)
        self._of[principal_id] += 1
        self._watches += 1
        return principal_id

    def leave(self, method: Method, state: str, context: ServicerContext, error: BaseException | None) -> None:
        if state:
            self._watches -= 1
            self._of[state] -= 1
            if not self._of[state]:
                del self._of[state]

    def _refusal(self, own: int) -> RpcFailure:
        return RpcFailure(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "WATCH_SHARE_TAKEN",
            f"{own} streams of yours follow something at this hub, which is your share of {self._max_watches}: close "
            "some, or follow several things with one, and try again.",
            {"max_watches": str(self._max_watches), "yours": str(own)},
            retry_after_s=1.0,
        )
