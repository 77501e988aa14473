from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.hub import settings_of
from toolhub_service.app.config_files.policy_files import PolicyFile
from toolhub_service.app.hub import open_hub
from toolhub_service.app.serving import follow
from toolhub_service.policy.live import Change, LivePolicy

DENY = "rules: [{id: %s, effect: DENY, reason: Not now.}]"


class ObservedPolicyFile(PolicyFile):
    """Notifies of each load."""

    def __init__(self, path: Path, policy: LivePolicy) -> None:
        super().__init__(path, policy, required=False)
        self.loads: asyncio.Queue[Change] = asyncio.Queue()
        self._where = path

    def load(self) -> Change:
        change = super().load()
        self.loads.put_nowait(change)
        return change

    async def loaded(self, rule: str, reload: asyncio.Event) -> Change:
        """What the hub makes of a new file of which it was notified."""
        self._where.write_text(DENY % rule)
        reload.set()
        return await asyncio.wait_for(self.loads.get(), 60)


async def test_files_are_followed_while_the_audit_log_cannot_be_written(tmp_path: Path) -> None:
    hub = await open_hub(settings_of(tmp_path, {"policy": {"reload_s": 0}}))
    hub.policy_file = file = ObservedPolicyFile(tmp_path / "policy.yaml", hub.policy)
    await hub.audit.close()
    reload = asyncio.Event()
    follower = asyncio.create_task(follow(hub, reload))
    assert (await file.loaded("one", reload)).applied
    assert (await file.loaded("two", reload)).applied
    assert not follower.done()
    follower.cancel()
    await asyncio.wait({follower})
    await hub.close()


async def test_calls_that_the_candidate_failed_on_are_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = await open_hub(settings_of(tmp_path, {"policy": {"reload_s": 0}}))
    hub.policy_file = file = ObservedPolicyFile(tmp_path / "policy.yaml", hub.policy)
    hub.policy.shadow_faults = 2
    reload = asyncio.Event()
    follower = asyncio.create_task(follow(hub, reload))
    await file.loaded("one", reload)
    await file.loaded("two", reload)
    follower.cancel()
    await asyncio.wait({follower})
    await hub.close()
    lines = [line for line in capsys.readouterr().err.splitlines() if "shadow_failed" in line]
    assert [json.loads(line)["calls"] for line in lines] == [2]
