"""Arguments that make a condition of the policy take minutes: it is not evaluated, and the call is denied for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hub import OPEN_POLICY, running_hub
from toolhub.v1 import error_pb2

CONDITIONS = {
    "a loop within a loop": "args.json.exists(x, args.json.exists(y, y == x + 1000000))",
    "a list made anew for each element": "args.json.map(x, x + 1).exists(x, x < 0)",
    "the whole list in each round": "args.json.exists(x, size(args.json) == x + 1000000)",
}


@pytest.mark.parametrize("what", CONDITIONS)
async def test_arguments_cannot_make_a_condition_delay_everybody(tmp_path: Path, what: str) -> None:
    """Fails at befa727: the condition runs, for seconds with these 5,000 elements and for minutes with 100,000, and
    nobody else is served meanwhile."""
    rule = f"\nrules: [{{id: look, effect: DENY, tools: ['core/util.json.select'], when: '{CONDITIONS[what]}'}}]\n"
    async with running_hub(tmp_path, policy=OPEN_POLICY + rule) as hub:
        denied = await hub.invoke("core/util.json.select", {"json": list(range(5_000)), "path": "length(@)"})
        assert denied.error.kind == error_pb2.ERROR_KIND_POLICY_DENIED
        assert "larger than its cost limit allows" in denied.error.message
        assert await hub.value("core/util.json.select", {"json": list(range(50)), "path": "length(@)"})
