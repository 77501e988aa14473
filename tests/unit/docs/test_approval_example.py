"""The example of docs/policy.md in which a person decides, walked through a whole hub as the page tells it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.hub import request, running_hub
from tests.unit.policy.test_policy_docs import EXAMPLES
from toolhub.v1 import approval_pb2, error_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys

TOOL = "core/fs.writeText"
NEW: Mapping[str, Any] = {"path": "plan.txt", "text": "new", "overwrite": True}


@pytest.mark.promise("approval.single-use")
async def test_overwriting_waits_for_ann_and_then_happens_once(tmp_path: Path) -> None:
    policy = EXAMPLES["Overwriting needs a person"]
    async with running_hub(tmp_path, policy=policy, settings={"auth": {"modes": ["api-key"]}}) as running:
        file = Paths(running.hub.settings).key_file()
        keys = {name: (("authorization", f"Bearer {file.create(name)}"),) for name in ("bot", "ann")}
        reload_keys(running.hub, file)

        async def call(args: Mapping[str, Any], approval_id: str = "") -> Any:
            asked = request(TOOL, args, request_id="work")
            asked.approval_id = approval_id
            return (await running.stub.Invoke(asked, metadata=keys["bot"], timeout=60)).result

        assert (await call({"path": "plan.txt", "text": "old"})).ok
        refused = (await call(NEW)).error
        assert refused.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED
        approval_id = str(refused.details["approval_id"])
        decision = pb.DecideApprovalRequest(approval_id=approval_id, decision=approval_pb2.DECISION_APPROVE)
        await ApprovalServiceStub(running.channel).DecideApproval(decision, metadata=keys["ann"], timeout=60)
        assert (await call(NEW, approval_id)).ok
        assert (running.workspace("work", "bot") / "plan.txt").read_text() == "new"
        again = (await call(NEW, approval_id)).error
        assert again.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED
        assert str(again.details["approval_id"]) != approval_id
