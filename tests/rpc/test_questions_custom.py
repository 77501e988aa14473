"""A custom tool that asks a person before it acts: the example of the documentation through a whole hub."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub import request, running_hub
from tests.rpc.test_approvals import API_KEYS, REJECT, ApprovalsHarness
from tests.rpc.test_questions import POLICY
from toolhub.v1 import error_pb2

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_tool"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its tool; nothing of the example stays imported."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield importlib.import_module("acme_tools.sign").SignText()
    for name in [name for name in sys.modules if name.startswith("acme_tools")]:
        del sys.modules[name]


async def test_custom_tool_goes_on_with_a_persons_answer_and_not_after_a_no(tmp_path: Path, example: Any) -> None:
    async with running_hub(tmp_path, policy=POLICY, settings=API_KEYS, tools=[example]) as running:
        harness = ApprovalsHarness(running)
        asked = request("acme/text.sign", {"text": "Nothing is owed."}, request_id="work")

        async def sign(approval_id: str = "") -> error_pb2.ToolError | str:
            asked.approval_id = approval_id
            result = (await running.stub.Invoke(asked, metadata=harness.by("robot"), timeout=60)).result
            return str(json.loads(result.result_json)["signed"]) if result.ok else result.error

        for decision in ("yes", "no"):
            refused = await sign()
            assert not isinstance(refused, str)
            assert refused.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED
            approval_id = str(refused.details["approval_id"])
            if decision == "yes":
                await harness.decide(approval_id, answer_json=b'{"name": "Ann"}')
                assert await sign(approval_id) == "Nothing is owed.\nAnn"
            else:
                await harness.decide(approval_id, REJECT)
                refused = await sign(approval_id)
                assert not isinstance(refused, str)
                assert refused.kind == error_pb2.ERROR_KIND_APPROVAL_REJECTED
