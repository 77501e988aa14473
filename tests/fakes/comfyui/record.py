"""What a server has been asked, for tests to count."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.comfyui.faults import Op


@dataclass(frozen=True)
class RecordedRequest:
    """One request as it arrived, answered or not."""

    op: Op
    method: str
    path: str
    """Without `/api` in front, unless the route has it anyway."""
    query: dict[str, str]
    headers: dict[str, str] = field(repr=False)
    body: Any = field(repr=False)
    """Decoded JSON; None when there is none."""


@dataclass(frozen=True)
class SubmittedPrompt:
    """One prompt that went into the queue: what must never happen twice."""

    prompt_id: str
    digest: str
    """SHA-256 of the graph in canonical JSON."""
    number: float
    client_id: str | None
    graph: dict[str, Any] = field(repr=False)


def digest_of(graph: dict[str, Any]) -> str:
    """SHA-256 of sorted, compact JSON, in hex."""
    return hashlib.sha256(json.dumps(graph, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
