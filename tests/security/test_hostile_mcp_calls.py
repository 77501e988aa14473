"""MCP servers whose tools misbehave: every call ends typed and bounded, and the next one on the same source works."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from tests.fakes.mcp_servers.hostile_calls import CALLS, KINDS
from tests.overtaken import overtaken
from tests.security.hostile_harness import STAGE, HostileHarness, hostile_hub
from tests.unit.adapters.mcp.links import descriptors, until
from toolhub.v1 import error_pb2

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRANSPORTS: Mapping[str, Mapping[str, Any]] = {
    f"{over}-{generation}": {"hostile": ("calls",), "over": over, "generation": generation}
    for over in ("stdio", "http")
    for generation in ("legacy", "modern")
}
SHORT_S = 0.7
"""For calls that nobody answers."""
ANSWERED_S = 20.0
"""For those that somebody does."""
OK = 0
UNKNOWN = error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
UPSTREAM = error_pb2.ERROR_KIND_UPSTREAM_ERROR
OUTPUT = error_pb2.ERROR_KIND_OUTPUT_SCHEMA_INVALID


class Attack(NamedTuple):
    tool: str
    kind: int
    """The result of the call: a kind of error, or OK."""
    message: str
    within_s: float
    args: Mapping[str, Any]
    otherwise: Mapping[str, int]
    """The result where the SDK, and not the hub, reads the answer, or matches it to its call."""


def attack(tool: str, kind: int, expected: str = "", within_s: float = ANSWERED_S, **args: Any) -> Attack:
    return Attack(tool, kind, expected, within_s, args, {})


def garbage(what: str, kind: int, expected: str = "", **otherwise: int) -> Attack:
    transports = {transport.replace("_", "-"): other for transport, other in otherwise.items()}
    return Attack("garbage", kind, expected, SHORT_S, {"kind": what}, transports)


ATTACKS = (
    attack("huge_result", UNKNOWN, "larger than `max_message_bytes` of its source"),
    attack("huge_result", OK, megabytes=7),
    attack("huge_error", UNKNOWN, "larger than `max_message_bytes` of its source"),
    attack("huge_error", UPSTREAM, "The server says: xxx", megabytes=7),
    attack("crowded_result", UNKNOWN, "more than 100,000 values", megabytes=3),
    attack("deep_result", UNKNOWN, "The server sent"),
    attack("endless_progress", UNKNOWN, "did not answer in time", SHORT_S),
    attack("never", UNKNOWN, "did not answer in time", SHORT_S),
    attack("slow", UNKNOWN, "did not answer in time", SHORT_S, seconds=60),
    attack("stderr_flood", OK),
    attack("tool_error", UPSTREAM, "reported an error"),
    attack("asks_forever", UPSTREAM, "asked more than 8 times"),
    attack("requests_back", OK),
    attack("bad_structure", OUTPUT, "does not match its own output schema"),
    attack("bad_structure", OUTPUT, "sent no structuredContent", missing=True),
    garbage("not-json", UNKNOWN),
    garbage("binary", UNKNOWN),
    garbage("half", UNKNOWN),
    garbage("twice", OK),
    garbage("wrong-id", UNKNOWN, http_legacy=OK),
    garbage("null-id", UNKNOWN),
    garbage("id-of-other-type", OK),
    garbage("wrong-types", OK),
    garbage("no-result", UNKNOWN),
    garbage("both", UPSTREAM, http_modern=UNKNOWN),
    garbage("error-of-text", UNKNOWN),
    garbage("unknown-block", OK),
    garbage("unknown-result", UPSTREAM, "is invalid"),
    garbage("array", UNKNOWN),
    garbage("nan", OK),
    garbage("half-character", OK),
    garbage("bad-base64", OK),
    attack("die", UNKNOWN, "may have had its effect"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HostileHarness]:
    async with hostile_hub(tmp_path_factory.mktemp("calls"), TRANSPORTS) as harness:
        yield harness


async def test_every_attack_of_the_corpus_is_tried() -> None:
    assert {attack.tool for attack in ATTACKS} == CALLS.keys() - {"echo", "echo_2", "add"}
    assert {attack.args["kind"] for attack in ATTACKS if attack.tool == "garbage"} == set(KINDS)


def named(attack: Attack) -> str:
    return "-".join([attack.tool, *map(str, attack.args.values())])


@pytest.mark.parametrize("attack", ATTACKS, ids=named)
async def test_a_tool_that_misbehaves_fails_typed_and_the_next_call_works(
    harness: HostileHarness, attack: Attack
) -> None:
    async def on(transport: str) -> None:
        expected = attack.otherwise.get(transport, attack.kind)

        async def result_of(timeout_s: float) -> Any:
            return await harness.call(f"{transport}/{attack.tool}", dict(attack.args), timeout_s)

        if expected == UNKNOWN:
            result = await overtaken(result_of, lambda it: attack.message in it.error.message, first_s=attack.within_s)
        else:
            result = await result_of(ANSWERED_S)
        assert (transport, result.error.kind) == (transport, expected), result.error.message
        assert result.ok == (expected == OK)
        assert attack.message in result.error.message
        assert (await harness.call(f"{transport}/add", {"a": 2, "b": 3})).result_json == b'{"sum":5}'
        assert (await harness.call(f"{transport}/echo", {"text": "é"})).result_json == '{"text":"é"}'.encode()

    await asyncio.gather(*map(on, TRANSPORTS))


@pytest.mark.parametrize(
    ("kind", "value", "remark"), [("half-character", {"n": "\ufffd"}, "lone surrogates"), ("nan", {"n": None}, "NaN")]
)
async def test_a_result_that_strict_parsers_refuse_is_delivered_and_evidence_says_what_was_repaired(
    harness: HostileHarness, kind: str, value: Any, remark: str
) -> None:
    """Fails at 513ce725: the result is lost, as OUTCOME_UNKNOWN."""
    for transport in TRANSPORTS:
        result = await harness.call(f"{transport}/garbage", {"kind": kind})
        assert result.ok, (transport, result.error.message)
        assert json.loads(result.result_json) == value
        assert any(remark in proof.summary for proof in result.evidence), transport


async def test_a_result_that_is_too_large_for_an_answer_is_cut_and_kept_whole(harness: HostileHarness) -> None:
    for transport in TRANSPORTS:
        result = await harness.call(f"{transport}/huge_result", {"megabytes": 2})
        assert result.truncated
        (artifact,) = result.artifacts
        assert artifact.size_bytes > 2_000_000


async def test_an_answer_of_no_text_leaves_the_others_of_the_same_moment_alone(harness: HostileHarness) -> None:
    """Half a line stands before the next answer in the same pipe."""
    for transport in TRANSPORTS:

        async def together(within_s: float, transport: str = transport) -> list[Any]:
            return await asyncio.gather(
                harness.call(f"{transport}/garbage", {"kind": "half"}, within_s),
                *(harness.call(f"{transport}/echo", {"text": str(number)}) for number in range(20)),
            )

        _, *others = await overtaken(together, lambda results: results[0].error.kind == UNKNOWN, first_s=SHORT_S)
        assert [other.result_json for other in others] == [f'{{"text":"{number}"}}'.encode() for number in range(20)]


async def test_attacks_without_end_leave_no_task_no_descriptor_and_no_process_behind(tmp_path: Path) -> None:
    names = ("stdio-modern", "http-legacy", "http-modern")
    async with hostile_hub(tmp_path, {name: TRANSPORTS[name] for name in names}) as harness:
        for name in names:
            await harness.call(f"{name}/echo", {"text": "hi"})
        (tasks, files), programs = await settled(), len(children(tmp_path))
        attacks = [attack for attack in ATTACKS if attack.within_s == SHORT_S or attack.args.get("megabytes") != 7]
        for name in names:
            await asyncio.gather(
                *(
                    harness.call(f"{name}/{each.tool}", dict(each.args), SHORT_S)
                    for each in attacks
                    if each.tool != "die"
                )
            )
            await harness.call(f"{name}/die")
        for name in names:
            assert (await harness.call(f"{name}/echo", {"text": "hi"})).ok
        await until(lambda: len(asyncio.all_tasks()) <= tasks and descriptors() <= files + 2)
        assert len(children(tmp_path)) == programs
    await until(lambda: not children(tmp_path))


async def settled() -> tuple[int, int]:
    """Tasks and descriptors, once they do not change any more: what a source listens with comes after its first answer,
    and there is no event for it."""
    seen = -1, -1
    async with asyncio.timeout(60):
        while (now := (len(asyncio.all_tasks()), descriptors())) != seen:
            seen = now
            await asyncio.sleep(1.0)
    return seen


@pytest.mark.parametrize("word", ["undead", "deaf"])
async def test_a_server_that_does_not_want_to_end_is_ended_with_the_hub(tmp_path: Path, word: str) -> None:
    async with hostile_hub(tmp_path, {"pipe": {"hostile": ("calls", word), "over": "stdio"}}) as harness:

        async def left(within_s: float) -> Any:
            return await harness.call("pipe/slow", {"seconds": 60}, within_s)

        await overtaken(left, lambda result: result.error.kind == UNKNOWN, first_s=SHORT_S)
        assert (await harness.call("pipe/echo", {"text": "hi"})).ok
        assert children(tmp_path)
    await until(lambda: not children(tmp_path))


def children(folder: Path) -> set[int]:
    """Processes of the harness in this folder, with any parent; other tests have theirs."""
    mark, found = f"{STAGE}={folder}\0".encode(), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
                is_gone = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue
            if mark in environment and not is_gone:
                found.add(int(entry.name))
    return found
