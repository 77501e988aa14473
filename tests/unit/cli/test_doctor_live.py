"""What the doctor makes of one source's state."""

from __future__ import annotations

from typing import Any

import pytest

from toolhub.v1 import source_pb2
from toolhub_service.app.doctor import State
from toolhub_service.cli.doctor import _of

READY, DOWN = source_pb2.SOURCE_STATE_READY, source_pb2.SOURCE_STATE_DOWN
OPEN, HALF_OPEN = source_pb2.BREAKER_STATE_OPEN, source_pb2.BREAKER_STATE_HALF_OPEN


@pytest.mark.parametrize(
    ("fields", "state", "expected", "advice"),
    [
        ({"state": READY, "tools": 3, "quarantined": 1}, State.OK, "3 tools, 1 of them quarantined", ""),
        ({"state": READY, "tools": 3, "breaker": HALF_OPEN}, State.OK, "3 tools", ""),
        ({"state": READY, "tools": 3, "breaker": OPEN}, State.WARN, "but calls failed repeatedly", "sources show"),
        ({"state": DOWN, "message": "It ended."}, State.WARN, "DOWN: It ended.", "`toolhub sources show far`"),
        (
            {"state": source_pb2.SOURCE_STATE_NEEDS_LOGIN, "login_commands": ["toolhub sources login far"]},
            State.WARN,
            "NEEDS_LOGIN",
            "`toolhub sources login far`",
        ),
        (
            {"state": DOWN, "diagnostics": ["far: not connected", "stderr: no\x1b[2J config"]},
            State.WARN,
            "DOWN",
            "Its last output: no\x1b[2J config",
        ),
    ],
)
def test_a_source_is_healthy_or_its_finding_states_where_to_look(
    fields: dict[str, Any], state: State, expected: str, advice: str
) -> None:
    (found,) = _of(source_pb2.SourceStatus(source="far", **fields))
    assert (found.name, found.state) == ("source far", state)
    assert expected in found.text
    assert advice in found.advice
    assert bool(found.advice) == (state is State.WARN)
