"""The way back: the version before this one on data that this one has taken over and written to, and forward again.

A real process of each, over the wire, on kept data of an older version: in the data folder, in Redis and in PostgreSQL.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.upgrade import kept
from tests.upgrade.conftest import EVERY_STORE, KEPT, FormerData, Running
from tests.upgrade.test_stored_records import differences
from tests.upgrade.test_upgrade import value
from tests.upgrade.wire import APPROVE

pytestmark = pytest.mark.slow

STORES = pytest.mark.parametrize("former_data", KEPT if EVERY_STORE else KEPT[-1:], indirect=True, ids=" ".join)


@STORES
@pytest.mark.promise("upgrade.way-back")
async def test_the_version_before_goes_on_with_what_this_one_wrote_and_this_one_again(
    former_data: FormerData, former: Path
) -> None:
    async with former_data.hub() as hub:
        written = await _work(hub, "new")
        assert await hub.process.stop() == 0
    async with former_data.hub(former) as hub:
        await _reads(hub, former_data, written)
        await _goes_on(hub, written)
        more = await _work(hub, "old")
        assert (await hub.boss.verified())["ok"]
        assert await hub.process.stop() == 0
    async with former_data.hub() as hub:
        await _reads(hub, former_data, written)
        await _reads(hub, former_data, more)
        await _goes_on(hub, more)
        verified = await hub.boss.verified()
        assert verified["ok"], verified


async def _work(hub: Running, mark: str) -> dict[str, Any]:
    """Of each kind of record one; what the hub says of them."""
    done = await hub.robot.submit("kept/text.echo", text=mark, key=f"job-{mark}", user_id="ada")
    await hub.robot.reached(done["job_id"], "SUCCEEDED")
    waiting = await hub.robot.submit("kept/text.sign", text=mark)
    asked = (await hub.robot.reached(waiting["job_id"], "AWAITING_APPROVAL"))[-1]
    artifact = await hub.robot.write(mark.encode(), name="note.txt")
    answer = await hub.robot.invoke("kept/text.write", text=mark, key=f"call-{mark}")
    await hub.boss.refresh("papers")
    return {
        "mark": mark,
        "history": await hub.robot.history(done["job_id"]),
        "job": await hub.robot.job(done["job_id"]),
        "waiting": waiting["job_id"],
        "approval": asked.get("approval_id") or (await hub.robot.job(waiting["job_id"]))["approval_id"],
        "artifact": artifact,
        "answer": value(answer),
        "pins": await hub.boss.pins("papers"),
    }


async def _reads(hub: Running, former_data: FormerData, written: dict[str, Any]) -> None:
    """What had ended, word for word: of the version that the data is of, and of the one that has written since."""
    job_id = written["job"]["job_id"]
    assert differences(written["job"], await hub.robot.job(job_id)) == []
    assert differences(written["history"], await hub.robot.history(job_id)) == []
    for name, history in former_data.expected["wire"]["histories"].items():
        assert differences(history, await hub.robot.history(former_data.expected["jobs"][name])) == []
    mark = written["mark"]
    assert await hub.robot.read(written["artifact"]["artifact_id"]) == mark.encode()
    assert await hub.robot.read(former_data.expected["artifacts"]["upload"]) == kept.UPLOAD
    replayed = await hub.robot.invoke("kept/text.write", text=mark, key=f"call-{mark}")
    assert (replayed["replayed"], value(replayed)) == (True, written["answer"])
    again = await hub.robot.submit("kept/text.echo", text=mark, key=f"job-{mark}", user_id="ada")
    assert again["job_id"] == job_id
    await hub.boss.refresh("papers")
    assert json.dumps(await hub.boss.pins("papers"), sort_keys=True) == json.dumps(written["pins"], sort_keys=True)


async def _goes_on(hub: Running, written: dict[str, Any]) -> None:
    """With the job that waits for a yes."""
    await hub.judge.decide(written["approval"], APPROVE)
    ended = (await hub.robot.reached(written["waiting"], "SUCCEEDED"))[-1]
    assert value(ended["result"]) == {"text": f"written: {written['mark']}"}
