"""Limits for selecting from JSON.

Apart from `query.py`, which is loaded only when it is used: its libraries add 2 MB and 60 ms to a start.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from toolhub_service.tools.step_budget import AT_ONCE_STEPS

Language = Literal["jmespath", "jsonpath"]


class QueryLimits(msgspec.Struct, frozen=True):
    expression_chars: int = 2048
    nesting: int = 32
    steps: int = 200_000
    result_weight: int = 1_000_000
    """Limit of the answer's nodes plus characters."""
    result_nodes: int = 1_000_000

    @property
    def at_once(self) -> QueryLimits:
        """Return the same limits for selecting on the event loop."""
        few = min(self.steps, AT_ONCE_STEPS)
        return msgspec.structs.replace(self, steps=few, result_nodes=min(self.result_nodes, AT_ONCE_STEPS))
