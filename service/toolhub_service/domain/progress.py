"""What a running call tells of itself: how far it has come, and its output as it appears."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call has come. Steps may be bytes, rows or nodes: `unit` tells."""

    step: float
    total: float | None = None
    unit: str = ""
    message: str = ""
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output as it appears."""

    data: bytes
    stream: str = "stdout"
    """Which output it belongs to: `stdout`, `stderr`, `rows`."""
