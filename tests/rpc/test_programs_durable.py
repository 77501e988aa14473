"""Programs as jobs: suspended by an approval, handed over to another hub, and nothing done twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.missing import need_extra
from tests.rpc.replay_harness import AWAITING, ReplayHarness, replay_harness
from toolhub.v1 import job_state_pb2

need_extra("pydantic_monty", "programs")

RUN = "core/program.run"
ASKS = """
import asyncio, held, random, time
await held.effect_do(marker="before")
first = [random.random(), time.time()]
a, b = await asyncio.gather(held.effect_do(marker="beside"), call("held/effect.asked", {"marker": "asked"}))
await held.effect_do(marker="after")
print("done")
[first, [random.random(), time.time()], a["text"], b["text"]]
"""


async def submitted(harness: ReplayHarness, code: str) -> str:
    job = await harness.running.submit(RUN, {"code": code}, metadata=harness.by("robot"))
    return job.job_id


async def value_of(harness: ReplayHarness, job_id: str) -> Any:
    ended = await harness.ended(job_id)
    assert ended.state == job_state_pb2.JOB_STATE_SUCCEEDED, ended.result.error.message
    return json.loads(ended.result.result_json)


@pytest.mark.promise("programs.resumed-by-replay")
async def test_a_program_waits_for_an_approval_and_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    async with replay_harness(tmp_path) as harness:
        job_id = await submitted(harness, ASKS)
        await harness.until(job_id, AWAITING)
        assert harness.asked.done == []
        assert harness.effect.done == ["before", "beside"], "what runs beside the call that asks is let finish"
        (approval,) = await harness.pending()
        await harness.decide(approval.approval_id)
        answer = await value_of(harness, job_id)
        assert (harness.effect.done, harness.asked.done) == (["before", "beside", "after"], ["asked"]), "each once"
        assert answer["printed"] == "done\n"
        assert [each["ok"] for each in answer["calls"]] == [True] * 4
        assert answer["value"][0][1] == answer["value"][1][1], "its clock stood still meanwhile"
        states = [
            each.event.attributes["state"]
            for each in await harness.running.events(tool=RUN)
            if "state" in each.event.attributes
        ]
        assert "AWAITING_APPROVAL" in states


@pytest.mark.promise("programs.resumed-by-replay")
async def test_a_program_goes_on_at_the_next_hub(tmp_path: Path) -> None:
    code = """
import held
await held.effect_do(marker='m')
await held.nap_take(marker='n')
1
"""
    async with replay_harness(tmp_path, grace_s=0.0) as harness:
        job_id = await submitted(harness, code)
        await harness.nap.begun.wait()
    assert harness.effect.done == ["m"]
    async with replay_harness(tmp_path, keys=harness.keys) as later:
        later.nap.may_end.set()
        assert (await value_of(later, job_id))["value"] == 1
        assert later.effect.done == []
