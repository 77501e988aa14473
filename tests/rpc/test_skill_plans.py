"""Plan skills through a whole hub, as jobs: they wait for people, go on from their log, and undo what they did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hub import request
from tests.rpc import real_servers as real
from tests.rpc.replay_harness import ASKED, AWAITING, EFFECT, NOW, SUCCEEDED, ReplayHarness, replay_harness
from tests.rpc.skill_runs import OBJECT, plan_skill, sidecar, source_of
from tests.unit.adapters.skill.skill_folders import write_skill
from toolhub.v1 import call_pb2, error_pb2, job_pb2

SKILL = "skill/release"
INPUT = {
    **OBJECT,
    "additionalProperties": False,
    "required": ["parts", "urgent"],
    "properties": {"parts": {"type": "array", "items": {"type": "string"}}, "urgent": {"type": "boolean"}},
}
STEPS: list[dict[str, Any]] = [
    {"id": "now", "tool": NOW, "args": {"marker": "n"}},
    {
        "id": "parts",
        "tool": EFFECT,
        "for_each": "/input/parts",
        "parallel": 2,
        "args": {"marker": {"$from": "/item"}},
        "compensate": {"tool": EFFECT, "args": {"marker": {"$from": "/steps/parts/result/text"}}},
    },
    {"id": "slow", "tool": EFFECT, "if": "!input.urgent", "args": {"marker": "checked"}},
    {"id": "publish", "tool": ASKED, "needs": ["parts"], "after": ["slow"], "args": {"marker": "out"}},
]
OUTPUT = {"published": {"$from": "/steps/publish/result/text"}, "checked": {"$from": "/steps/slow/ok"}}


def write_skills(home: Path) -> None:
    terms = {"input_schema": INPUT, "tools": ["held/*"], "effects": ["Publishes a release."]}
    plan_skill(home / "skills", "release", STEPS, OUTPUT, plan={"on_failure": "compensate"}, **terms)
    real.write_sources(home, {"skill": source_of(home / "skills")})


async def begun(harness: ReplayHarness, **args: Any) -> str:
    """The job of a call that waits for a person."""
    assert await harness.running.hub.sourcing.sources.wait_until_tried(timeout_s=real.WITHIN_S)
    result = await harness.running.invoke(SKILL, args, request_id="work", metadata=harness.by("robot"))
    assert result.ok, result.error.message
    job_id = str(result.job.job_id)
    assert (await harness.until(job_id, AWAITING)).state == AWAITING
    return job_id


async def decided(harness: ReplayHarness, job_id: str, *, yes: bool) -> job_pb2.JobStatus:
    (approval,) = await harness.pending()
    assert approval.tool == ASKED
    await harness.decide(approval.approval_id, yes=yes)
    return await harness.ended(job_id)


@pytest.mark.promise("skills.plans-are-durable")
async def test_a_plan_waits_for_a_person_and_goes_on_with_what_it_has_or_undoes_it(tmp_path: Path) -> None:
    write_skills(tmp_path)
    async with replay_harness(tmp_path) as harness:
        job_id = await begun(harness, parts=["a", "b", "c"], urgent=False)
        assert (harness.effect.done, harness.asked.done) == (["a", "b", "checked", "c"], [])
        ended = await decided(harness, job_id, yes=True)
        assert ended.state == SUCCEEDED, ended.result.error
        assert json.loads(ended.result.result_json) == {"published": "out 1", "checked": True}
        assert (harness.now.done, harness.effect.done, harness.asked.done) == (
            ["n"],
            ["a", "b", "checked", "c"],
            ["out"],
        )
        proofs = {proof.ref: proof for proof in ended.result.evidence}
        assert proofs["step:parts"].summary == "called held/effect.do: 3 calls, 0 failed."
        assert proofs["skill:release"].attributes["mode"] == "plan"
        assert ended.progress.message == "publish: held/effect.asked"

        harness.effect.done.clear()
        job_id = await begun(harness, parts=["d", "e"], urgent=True)
        ended = await decided(harness, job_id, yes=False)
        error = ended.result.error
        assert error.kind == error_pb2.ERROR_KIND_APPROVAL_REJECTED
        assert error.message.startswith("The step `publish` (held/effect.asked) failed: ")
        assert error.message.endswith("Undone: parts, parts. Not undone: now.")
        assert ([marker[0] for marker in harness.effect.done], harness.asked.done) == (["d", "e", "e", "d"], ["out"])


@pytest.mark.promise("skills.plans-are-durable")
async def test_a_plan_that_waits_goes_on_at_the_next_hub(tmp_path: Path) -> None:
    write_skills(tmp_path)
    async with replay_harness(tmp_path, grace_s=0.0) as harness:
        job_id = await begun(harness, parts=["a"], urgent=True)
        assert harness.effect.done == ["a"]
    async with replay_harness(tmp_path, keys=harness.keys) as later:
        ended = await decided(later, job_id, yes=True)
        assert ended.state == SUCCEEDED, ended.result.error
        assert (later.effect.done, later.now.done, later.asked.done) == ([], [], ["out"])


PROGRAM = """
import asyncio, held
marked = await asyncio.gather(*[held.effect_do(marker=part) for part in inputs['parts']])
error = ''
try:
    await call('held/nap.take', {'marker': 'x'})
except RuntimeError as e:
    error = error_of(e)['kind']
{'texts': [each['text'] for each in marked], 'error': error, 'done': True}
"""


async def test_a_program_of_a_skill_calls_what_the_skill_may_and_its_last_value_is_the_result(tmp_path: Path) -> None:
    sidecar_text = sidecar("program", program={"file": "run.py"}, tools=["held/effect.*"], job=False)
    write_skill(tmp_path / "skills", "batch", files={"toolhub.json": sidecar_text, "run.py": PROGRAM})
    real.write_sources(tmp_path, {"skill": source_of(tmp_path / "skills")})
    async with replay_harness(tmp_path) as harness:
        assert await harness.running.hub.sourcing.sources.wait_until_tried(timeout_s=real.WITHIN_S)
        asked = {"parts": ["a", "b"]}
        result = await harness.running.invoke("skill/batch", asked, request_id="work", metadata=harness.by("robot"))
        assert result.ok, result.error
        value = json.loads(result.result_json)
        assert (value["error"], value["done"], len(value["texts"])) == ("POLICY_DENIED", True, 2)
        assert sorted(harness.effect.done) == ["a", "b"]
        assert [proof.ref for proof in result.evidence if proof.ref.startswith("skill:")] == ["skill:batch"]


async def test_a_dry_run_plans_each_call_that_depends_on_no_effect_and_does_nothing(tmp_path: Path) -> None:
    write_skills(tmp_path)
    async with replay_harness(tmp_path) as harness:
        assert await harness.running.hub.sourcing.sources.wait_until_tried(timeout_s=real.WITHIN_S)
        args = {"parts": ["a", "b"], "urgent": False}
        asked = request(SKILL, args, mode=call_pb2.INVOKE_MODE_DRY_RUN, request_id="work")
        answer = await harness.running.stub.Invoke(asked, metadata=harness.by("robot"), timeout=60)
        assert answer.plan.plan_digest
        assert list(answer.plan.effects) == [
            "Publishes a release.",
            "Step now reads by held/now.",
            "Step parts calls held/effect.do.",
            "Step parts calls held/effect.do.",
            "Step slow calls held/effect.do.",
            "Step publish calls held/effect.asked, once a person has agreed.",
        ]
        assert (harness.now.done, harness.effect.done, harness.asked.done) == (["n"], [], [])
