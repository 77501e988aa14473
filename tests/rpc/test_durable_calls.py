"""Calls that a job makes by its log, through a whole hub: approvals, jobs, other runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.rpc.replay_harness import (
    ASKED,
    AWAITING,
    EFFECT,
    NAP,
    NOW,
    SCRIPT,
    Effect,
    Marked,
    ReplayHarness,
    TextOutput,
    replay_harness,
)
from toolhub.v1 import job_service_pb2, job_state_pb2
from toolhub_service.domain.event import Event, EventFilter, EventType
from toolhub_service.domain.inner_log import KeptCall, KeptState
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.key import EffectKey, KeyRecord
from toolhub_service.domain.result import ToolResult
from toolhub_service.runtime.inner_calls.log import RECHECK_MS, inner_call_id, inner_key
from toolhub_service.schema.canonical_json import digest
from toolhub_service.tools.context import ToolContext


@pytest.mark.promise("inner.approval-suspends", "inner.effects-once")
async def test_a_job_waits_for_the_approval_of_a_call_it_makes_and_goes_on_from_its_log(tmp_path: Path) -> None:
    async with replay_harness(tmp_path) as harness:
        job_id = await harness.submit([(NOW, {"marker": "n"}), (EFFECT, {"marker": "m1"})], [(ASKED, {"marker": "a"})])
        assert (await harness.until(job_id, AWAITING)).state == AWAITING
        (approval,) = await harness.pending()
        assert (approval.tool, approval.job_id, b'"a"' in approval.args_summary_json) == (ASKED, job_id, True)
        assert harness.asked.done == []
        await harness.decide(approval.approval_id)
        assert await harness.answers(job_id) == ["n 1", "m1 1", "a 1"]
        assert (harness.now.done, harness.effect.done, harness.asked.done) == (["n"], ["m1"], ["a"]), "each once"
        assert harness.script.runs == 2
        await harness.forgotten(job_id)

        # Denied, it is the call's error; two that are asked at once are decided one by one.
        asks = [(ASKED, {"marker": "b"}), (ASKED, {"marker": "c"}), (EFFECT, {"marker": "m2"})]
        job_id = await harness.submit(asks, [(EFFECT, {"marker": "m3"})])
        await harness.until(job_id, AWAITING)
        waiting = {approval.args_summary_json: approval.approval_id for approval in await harness.pending()}
        assert len(waiting) == 2
        for shown, approval_id in waiting.items():
            await harness.decide(approval_id, yes=b'"c"' in shown)
        denied, *done = await harness.answers(job_id)
        assert (denied.split(":")[0], done) == ("APPROVAL_REJECTED", ["c 2", "m2 2", "m3 3"])
        assert (harness.effect.done, harness.asked.done) == (["m1", "m2", "m3"], ["a", "c"])
        events = [each.event for each in await harness.running.events(tool=ASKED)]
        assert {event.attributes.get("root_call_id", "") for event in events if event.attributes.get("attempts")} - {""}

        # A plain call of the same tool has no job that could wait.
        steps = [[[ASKED, {"marker": "d"}]]]
        value = await harness.running.value(SCRIPT, {"steps": steps}, metadata=harness.by("robot"))
        assert value["answers"][0].startswith("APPROVAL_REQUIRED")


@pytest.mark.promise("inner.jobs-once")
async def test_a_job_leaves_its_place_to_the_job_it_waits_for(tmp_path: Path) -> None:
    async with replay_harness(tmp_path, max_running=1) as harness:
        job_id = await harness.submit([(NAP, {"marker": "n"})], [(EFFECT, {"marker": "m"})])
        await harness.nap.begun.wait()
        harness.nap.may_end.set()
        assert await harness.answers(job_id) == ["rested", "m 1"]

        (first,) = harness.nap.job_ids
        harness.nap.may_end.clear()
        harness.nap.begun.clear()
        job_id = await harness.submit([(NAP, {"marker": "o"})])
        await harness.nap.begun.wait()
        asked = job_service_pb2.CancelJobRequest(job_id=job_id, reason="enough")
        await harness.running.jobs.CancelJob(asked, metadata=harness.by("robot"), timeout=60)
        assert (await harness.ended(job_id)).state == job_state_pb2.JOB_STATE_CANCELLED
        (other,) = harness.nap.job_ids - {first}
        assert (await harness.ended(other)).state == job_state_pb2.JOB_STATE_CANCELLED, "with the job that made it"


@pytest.mark.promise("inner.approval-suspends", "inner.jobs-once")
async def test_jobs_and_tools_that_ask_within_a_job_wait_for_the_person_who_is_asked(tmp_path: Path) -> None:
    sign = AskingEffect()
    rule = "  - {id: naps, effect: REQUIRE_APPROVAL, tools: [held/nap.take]}\n"
    async with replay_harness(tmp_path, [sign], rule) as harness:
        harness.nap.may_end.set()
        lent = [NAP, EFFECT, sign.name]
        job_id = await harness.submit(
            [(EFFECT, {"marker": "m"})], [(NAP, {"marker": "n"})], [(sign.name, {"marker": "s"})], lent=lent
        )
        await harness.until(job_id, AWAITING)
        (first,) = await harness.pending()
        assert (first.tool, first.job_id) == (NAP, job_id)
        await harness.decide(first.approval_id)
        while not (asked := await harness.pending()):
            await harness.until(job_id, AWAITING)
        assert (asked[0].tool, asked[0].question.message, asked[0].job_id) == (sign.name, "Who signs s?", job_id)
        await harness.decide(asked[0].approval_id, answer={"name": "Ann"})
        assert await harness.answers(job_id) == ["m 1", "rested", "Ann 1"]
        assert (harness.effect.done, len(harness.nap.job_ids), sign.done) == (["m"], 1, ["s"])


class AskingEffect(Effect):
    """Asks a person itself."""

    name = "held/paper.sign"

    async def run(self, args: Marked, context: ToolContext) -> TextOutput:
        schema: JsonObject = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        answer = context.ask(f"Who signs {args.marker}?", schema)
        self.done.append(args.marker)
        return TextOutput(text=f"{answer['name']} {len(self.done)}")


@pytest.mark.promise("inner.jobs-once")
async def test_a_job_that_is_handed_over_follows_the_job_it_made_on_the_next_hub(tmp_path: Path) -> None:
    async with replay_harness(tmp_path, grace_s=0.0) as harness:
        job_id = await harness.submit([(EFFECT, {"marker": "m"})], [(NAP, {"marker": "n"})])
        await harness.nap.begun.wait()
        first = harness.nap.job_ids
    assert harness.effect.done == ["m"]
    async with replay_harness(tmp_path, keys=harness.keys) as later:
        later.nap.may_end.set()
        assert await later.answers(job_id) == ["m 1", "rested"]
        assert (later.effect.done, later.nap.job_ids) == ([], first)


RULE = "  - {id: outer, effect: REQUIRE_APPROVAL, tools: [held/script.run]}\n"


def kept(job_id: str, index: int, tool: str, marker: str, **fields: Any) -> KeptCall:
    args: dict[str, Any] = {"marker": marker}
    return replace(KeptCall(job_id, index, tool, digest(args), KeptState.BEGUN, 2**43), **fields)


@pytest.mark.promise("inner.effects-once", "inner.deterministic")
async def test_the_log_of_a_killed_run_decides_what_the_next_run_does(tmp_path: Path) -> None:
    async with replay_harness(tmp_path, policy=RULE) as harness:
        stores = harness.running.hub.stores
        one = [(EFFECT, {"marker": name}) for name in ("cut", "known", "kept", "free")]
        job_id = await harness.submit(*[[each] for each in one], [(NOW, {"marker": "n"})], [(EFFECT, {"marker": "x"})])
        (outer,) = await harness.pending()
        answer = ToolResult(ok=True, call_id="call-9", tool=EFFECT, value={"text": "as it was"})
        for left in (
            kept(job_id, 0, EFFECT, "cut"),
            kept(job_id, 1, EFFECT, "known"),
            kept(job_id, 2, EFFECT, "kept", state=KeptState.ANSWERED, answer=answer),
            kept(job_id, 4, EFFECT, "not what is called now"),
        ):
            assert await stores.inner_log.put(left)
        call_id = inner_call_id(job_id, 1, EFFECT, digest({"marker": "known"}))
        key, record = EffectKey("robot", EFFECT, inner_key(call_id)), KeyRecord("dead", call_id, "", "", 2**43, 2**43)
        assert await stores.keys.claim(key, record) is None
        assert await stores.keys.settle(key, "dead", replace_value(answer, "done before"), 2**43)
        await harness.decide(outer.approval_id)
        cut, *others, changed, after = await harness.answers(job_id)
        assert cut.startswith("OUTCOME_UNKNOWN")
        assert others == ["done before", "as it was", "free 1"]
        assert changed.startswith("EXECUTION_ERROR: The program is not deterministic: its call 4 was held/effect.do")
        assert after == changed, "and nothing more is called"
        assert (harness.effect.done, harness.now.done) == (["free"], [])
        # The killed run left the answer of "kept" and no event of it; "known" has its event from the store of keys.
        reused = inner_call_id(job_id, 2, EFFECT, digest({"marker": "kept"}))
        (event,) = await ends_of(harness, reused)
        assert (event.outcome, event.attributes["replayed"], event.purpose != "") == ("ok", "true", True)
        await harness.forgotten(job_id)


async def test_an_answer_that_is_taken_again_has_one_event(tmp_path: Path) -> None:
    async with replay_harness(tmp_path) as harness:
        job_id = await harness.submit([(NOW, {"marker": "m"})], [(ASKED, {"marker": "x"})])
        await harness.until(job_id, AWAITING)
        (asked,) = await harness.pending()
        await harness.decide(asked.approval_id)
        await harness.answers(job_id)
        (event,) = await ends_of(harness, inner_call_id(job_id, 0, NOW, digest({"marker": "m"})))
        assert (event.outcome, event.attributes.get("replayed")) == ("ok", None)


async def ends_of(harness: ReplayHarness, call_id: str) -> list[Event]:
    where = EventFilter(call_id=call_id, types=frozenset({EventType.TOOL_RESULT}))
    return [each.event for each in await harness.running.hub.audit.read(where, after=None, limit=10)]


async def test_logs_are_looked_at_again_and_forgotten_with_jobs_that_are_gone(tmp_path: Path) -> None:
    async with replay_harness(tmp_path, policy=RULE) as harness:
        log, logs = harness.running.hub.stores.inner_log, harness.running.hub.long_work.logs
        job_id = await harness.submit([(NOW, {"marker": "n"})])
        now_unix_ms = harness.running.hub.clock.unix_ms()
        for left in (kept(job_id, 0, NOW, "n"), kept("job-gone", 0, NOW, "n")):
            assert await log.put(replace(left, expires_at_unix_ms=now_unix_ms))
        assert await logs.sweep(now_unix_ms) == 1
        (standing,) = await log.of_job(job_id)
        assert (standing.version, standing.expires_at_unix_ms) == (2, now_unix_ms + RECHECK_MS)
        assert list(await log.of_job("job-gone")) == []
        (outer,) = await harness.pending()
        await harness.decide(outer.approval_id)
        assert (await harness.answers(job_id))[0].startswith("OUTCOME_UNKNOWN"), "as one that was begun, of unknown end"


def replace_value(answer: ToolResult, text: str) -> ToolResult:
    return answer._replace(value={"text": text})
