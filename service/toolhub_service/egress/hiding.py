"""Removes a caller's secret from an upstream's answer.

An upstream may echo the credential of the request: models see outcomes and failures, records store them, and files stay
in a workspace.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol

from msgspec import structs

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.result import Outcome
from toolhub_service.guards.secret_mask import Mask


def mask_outcome(outcome: Outcome, mask: Mask) -> Outcome:
    evidence = tuple(
        each._replace(
            ref=mask.text(each.ref),
            summary=mask.text(each.summary),
            attributes={name: mask.text(value) for name, value in each.attributes.items()},
        )
        for each in outcome.evidence
    )
    raw = mask.value(outcome.raw)
    said = None if outcome.said is None else mask.object(outcome.said)
    return structs.replace(outcome, value=mask.value(outcome.value), raw=raw, evidence=evidence, said=said)


def mask_failure(failure: ToolFailure, mask: Mask) -> ToolFailure:
    error, upstream = failure.error, failure.error.upstream
    if upstream is not None:
        upstream = structs.replace(upstream, excerpt=mask.text(upstream.excerpt))
    return ToolFailure(
        structs.replace(error, message=mask.text(error.message), details=mask.object(error.details), upstream=upstream)
    )


HIDES: ContextVar[Callable[[], Mask] | None] = ContextVar("hides", default=None)
"""Returns the mask of the secrets that the running call has sent so far; None: it has sent none."""


def mask_bytes(data: bytes) -> bytes:
    """Return bytes that are stored for the running call, apart from its outcome, without its caller's secret."""
    hides = HIDES.get()
    return data if hides is None else hides().data(data)


def mask_cut(data: bytes, mask: Mask | None) -> bytes:
    """Return the beginning of a body without secrets, nor the part of one that is left at the cut."""
    return data if mask is None else mask.cut(data)


class Pieces(Protocol):
    """A body, piece by piece."""

    async def next_piece(self) -> bytes:
        """Return the next piece; empty at the end."""


class MaskedPieces:
    """A body without what the mask hides, even if that is split over two pieces."""

    def __init__(self, body: Pieces, mask: Mask) -> None:
        self._body = body
        self._mask = mask
        self._held = b""
        """Possibly the beginning of a secret."""

    async def next_piece(self) -> bytes:
        while piece := await self._body.next_piece():
            data = self._mask.data(self._held + piece)
            split = max(0, len(data) - self._mask.longest_bytes)
            self._held = data[split:]
            if split:
                return data[:split]
        rest, self._held = self._held, b""
        return rest
