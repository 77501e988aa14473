"""`toolhub jobs …` against a whole hub: submitting, listing, following, stopping and output."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result
from msgspec import Meta

from tests.e2e.terminal import Terminal, environment, terminal
from tests.fakes.clock import next_millisecond
from tests.hub import RunningHub, running_hub
from tests.overtaken import overtaken
from toolhub_service.cli.root import toolhub
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.result import Progress
from toolhub_service.domain.tool import Annotations
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

POLICY = """
extends: none
grants: [{principals: ["*"], capabilities: [read:fs, write:fs]}]
rules:
  - {id: ask-first, effect: REQUIRE_APPROVAL, tools: [core/fs.writeText], reason: Writing is asked for.}
roles: [{principals: [local], roles: [agent, operator, approver, auditor]}]
"""


STOP_EARLY = "done before the last step"


class StepsIn(ToolInput, frozen=True):
    steps: Annotated[int, Meta(ge=1)] = 4
    fails: bool = False


class StepsOut(ToolOutput, frozen=True):
    walked: int


class StepsTool(Tool[StepsIn, StepsOut]):
    name = "test/way.walk"
    description = "Walk a step whenever somebody lets it."
    annotations = Annotations(read_only=True, idempotent=True, supports_progress=True)
    In, Out = StepsIn, StepsOut

    def __init__(self) -> None:
        self.steps: asyncio.Queue[str] = asyncio.Queue()

    async def run(self, args: StepsIn, context: ToolContext) -> StepsOut:
        for step in range(1, args.steps + 1):
            message = await self.steps.get()
            context.sink.progress(Progress(step, args.steps, "steps", message))
            if message == STOP_EARLY:
                break
        if args.fails:
            raise refuse(ErrorKind.INVALID_INPUT, "The way ends in a wall. Walk another one.")
        return StepsOut(walked=args.steps)


@dataclass
class CliHarness:
    """A person with a hub."""

    hub: RunningHub
    home: Path
    walk: StepsTool = field(default_factory=StepsTool)

    @property
    def env(self) -> dict[str, str]:
        return environment(self.home, TOOLHUB_ADDRESS=self.hub.address)

    async def __call__(self, *words: str) -> Result:
        """Run to the end, in pipes."""
        env = {"TOOLHUB_ADDRESS": self.hub.address}
        result = await asyncio.to_thread(CliRunner().invoke, toolhub, ["jobs", *words], env=env)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    async def submit(self, *words: str) -> str:
        """No two in the same millisecond: their order would be undefined."""
        done = await self("submit", *words)
        assert done.exit_code == 0, done.output
        await next_millisecond()
        return str(json.loads(done.stdout)["jobId"])

    def go(self, steps: int = 4, message: str = "") -> None:
        for _ in range(steps):
            self.walk.steps.put_nowait(message)


@pytest.fixture
async def cli(tmp_path: Path) -> AsyncIterator[CliHarness]:
    walk = StepsTool()
    async with running_hub(tmp_path, policy=POLICY, tools=[walk]) as hub:
        yield CliHarness(hub, tmp_path, walk)


async def seen(screen: Terminal, words: str) -> None:
    await asyncio.to_thread(screen.wait_for, words)


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


class TestSubmit:
    async def test_submitted_call_goes_on_and_its_result_is_there_for_who_waits(self, cli: CliHarness) -> None:
        job_id = await cli.submit("test/way.walk", "steps=2")
        early = await cli("result", job_id)
        assert (early.exit_code, f"jobs result {job_id} --wait" in early.stderr) == (1, True)
        cli.go(2)
        done = await cli("result", job_id, "--wait")
        assert (done.exit_code, json.loads(done.stdout)["result"]) == (0, {"walked": 2})

    async def test_same_key_gives_the_same_job(self, cli: CliHarness) -> None:
        words = ("core/util.hash.sha256Text", "text=a", "--key", "once")
        assert await cli.submit(*words) == await cli.submit(*words)
        other = await cli("submit", "core/util.hash.sha256Text", "text=b", "--key", "once")
        assert (other.exit_code, "IDEMPOTENCY_CONFLICT" in other.output) == (1, True)

    async def test_refused_call_exits_1_with_the_reason(self, cli: CliHarness) -> None:
        refused = await cli("submit", "core/fs.readText", "path=../x")
        assert refused.exit_code == 1
        assert json.loads(refused.stdout)["status"]["error"]["kind"] == "ERROR_KIND_PATH_OUTSIDE_SANDBOX"

    async def test_timeout_is_the_jobs(self, cli: CliHarness) -> None:
        async def late(timeout_s: float) -> Result:
            return await cli("submit", "test/way.walk", "--timeout", str(timeout_s), "--watch", "--json")

        done = await overtaken(late, lambda done: "JOB_STATE_RUNNING" in done.stdout, first_s=0.05)
        assert done.exit_code == 1
        assert lines(done)[-1]["state"] == "JOB_STATE_TIMED_OUT"

    async def test_a_call_that_waits_for_a_person_states_how_to_approve_it(self, cli: CliHarness) -> None:
        with terminal(["toolhub", "jobs", "submit", "core/fs.writeText", "path=a.txt", "text=x"], cli.env) as (
            process,
            screen,
        ):
            text = await asyncio.to_thread(screen.rest)
            assert await asyncio.to_thread(process.wait, 60) == 0
        job = json.loads((await cli("list", "--json")).stdout)["jobs"][0]
        assert "AWAITING_APPROVAL" in text
        assert f"toolhub approvals approve {job['approvalId']}" in text
        assert f"toolhub jobs watch {job['jobId']}" in text


class TestList:
    async def test_newest_come_first_in_pages_with_an_honest_total(self, cli: CliHarness) -> None:
        ids = [await cli.submit("core/util.hash.sha256Text", f"text={number}") for number in range(3)]
        listed = json.loads((await cli("list", "--json", "--limit", "2")).stdout)
        assert [job["jobId"] for job in listed["jobs"]] == ids[:0:-1]
        assert listed["totalSize"] == 3
        every = json.loads((await cli("list", "--json", "--limit", "1", "--all")).stdout)
        assert [job["jobId"] for job in every["jobs"]] == ids[::-1]

    async def test_filters_are_joined(self, cli: CliHarness) -> None:
        walking = await cli.submit("test/way.walk", "--request-id", "r1")
        hashed = await cli.submit("core/util.hash.sha256Text", "text=a")
        await cli("result", hashed, "--wait")
        for words, expected in (
            (("--state", "open"), [walking]),
            (("--state", "succeeded"), [hashed]),
            (("--state", "open", "--state", "succeeded"), [hashed, walking]),
            (("--tool", "test/*"), [walking]),
            (("--request", "r1"), [walking]),
            (("--request", "r1", "--state", "failed"), []),
        ):
            listed = json.loads((await cli("list", "--json", *words)).stdout)
            assert [job["jobId"] for job in listed["jobs"]] == expected, words

    async def test_a_table_shows_the_progress_of_each(self, cli: CliHarness) -> None:
        with terminal(["toolhub", "jobs", "list"], cli.env) as (_, screen):
            assert "No job matches" in await asyncio.to_thread(screen.rest)
        job_id = await cli.submit("test/way.walk", "steps=1")
        cli.go(1)
        await cli("result", job_id, "--wait")
        with terminal(["toolhub", "jobs", "list"], cli.env) as (_, screen):
            text = await asyncio.to_thread(screen.rest)
        heading, row, _ = text.splitlines()
        assert heading.split() == ["JOB", "TOOL", "STATE", "PROGRESS", "AGE"]
        assert row.split()[:5] == [job_id, "test/way.walk", "SUCCEEDED", "100", "%"]

    async def test_a_job_that_succeeded_is_done_whatever_it_reported_last(self, cli: CliHarness) -> None:
        job_id = await cli.submit("test/way.walk", "steps=20")
        cli.go(1, STOP_EARLY)
        await cli("result", job_id, "--wait")
        listed = (await cli("list", "-o", "table")).stdout
        assert "SUCCEEDED  100 %" in listed
        with terminal(["toolhub", "jobs", "show", job_id], cli.env) as (_, screen):
            assert f"100 % · {STOP_EARLY}" in await asyncio.to_thread(screen.rest)


class TestWatch:
    async def test_json_is_every_status_once_to_the_end(self, cli: CliHarness) -> None:
        job_id = await cli.submit("test/way.walk")
        watching = asyncio.create_task(cli("watch", job_id, "--json"))
        cli.go()
        done = await watching
        statuses = lines(done)
        sequences = [int(status["sequence"]) for status in statuses]
        assert sequences == list(range(sequences[0], sequences[-1] + 1))
        assert statuses[-1]["result"]["result"] == {"walked": 4}
        assert done.exit_code == 0

    async def test_without_a_terminal_it_is_lines_and_the_result(self, cli: CliHarness) -> None:
        job_id = await cli.submit("test/way.walk", "steps=1")
        cli.go(1, "the \x1b[2Jgate")
        done = await cli("watch", job_id)
        assert done.exit_code == 0
        assert "SUCCEEDED  100 % · 1 of 1 steps · the \\u001b[2Jgate" in done.stdout
        assert "walked  1" in done.stdout

    async def test_failure_is_shown_as_a_call_shows_it_and_exits_1(self, cli: CliHarness) -> None:
        job_id = await cli.submit("test/way.walk", "steps=1", "fails=true")
        cli.go(1)
        done = await cli("watch", job_id)
        assert done.exit_code == 1
        assert "FAILED" in done.stdout
        assert "✗ INVALID_INPUT" in done.stdout
        assert "Walk another one." in done.stdout

    async def test_terminal_shows_a_bar_and_ctrl_c_leaves_the_job_running(self, cli: CliHarness) -> None:
        job_id = await cli.submit("test/way.walk")
        with terminal(["toolhub", "jobs", "watch", job_id], cli.env) as (process, screen):
            cli.go(2, "past the mill")
            await seen(screen, "50 % · 2 of 4 steps")
            await seen(screen, "past the mill")
            screen.type(b"\x03")
            text = await asyncio.to_thread(screen.rest)
            assert await asyncio.to_thread(process.wait, 60) == 130
        assert f"{job_id} keeps running" in text
        assert f"toolhub jobs watch {job_id}" in text
        assert "Traceback" not in text
        cli.go(2)
        assert (await cli("result", job_id, "--wait")).exit_code == 0

    async def test_job_that_waits_for_a_person_shows_the_command_that_approves_it(self, cli: CliHarness) -> None:
        job_id = await cli.submit("core/fs.writeText", "path=a.txt", "text=x")
        approval_id = json.loads((await cli("show", job_id)).stdout)["approvalId"]
        with terminal(["toolhub", "jobs", "watch", job_id], cli.env) as (process, screen):
            await seen(screen, f"toolhub approvals approve {approval_id}")
            assert (await cli("cancel", job_id)).exit_code == 0
            await seen(screen, "✗ CANCELLED")
            assert await asyncio.to_thread(process.wait, 60) == 1

    async def test_an_unknown_job_is_reported_in_one_line(self, cli: CliHarness) -> None:
        for command in ("watch", "show", "result", "cancel"):
            unknown = await cli(command, "job_nowhere")
            assert (unknown.exit_code, "There is no job 'job_nowhere'" in unknown.stderr) == (1, True)

    async def test_hub_that_is_not_there_exits_3(self) -> None:
        away = await asyncio.to_thread(CliRunner().invoke, toolhub, ["jobs", "list", "--address", "127.0.0.1:1"])
        assert (away.exit_code, "No hub answers" in away.stderr) == (3, True)


class TestCancel:
    async def test_cancelled_job_is_waited_for(self, cli: CliHarness) -> None:
        job_id = await cli.submit("test/way.walk")
        done = await cli("cancel", job_id, "--reason", "the wrong way", "--wait")
        assert (done.exit_code, json.loads(done.stdout)["state"]) == (0, "JOB_STATE_CANCELLED")
        assert (await cli("result", job_id)).exit_code == 1

    async def test_job_that_is_over_is_not_called_cancelled(self, cli: CliHarness) -> None:
        job_id = await cli.submit("core/util.hash.sha256Text", "text=a")
        await cli("result", job_id, "--wait")
        done = await cli("cancel", job_id)
        assert (done.exit_code, json.loads(done.stdout)["state"]) == (1, "JOB_STATE_SUCCEEDED")


async def test_show_prints_every_field_of_one(cli: CliHarness) -> None:
    job_id = await cli.submit("test/way.walk", "steps=1", "--purpose", "a \x1b[2Jwalk")
    cli.go(1)
    await cli("result", job_id, "--wait")
    with terminal(["toolhub", "jobs", "show", job_id], cli.env) as (_, screen):
        text = await asyncio.to_thread(screen.rest)
    for words in (f"{job_id}  SUCCEEDED", "test/way.walk", "a \\u001b[2Jwalk", "100 % · 1 of 1 steps", "walked  1"):
        assert words in text


async def test_shell_completes_job_ids(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await cli.submit("core/util.hash.sha256Text", "text=a")
    monkeypatch.setenv("TOOLHUB_ADDRESS", cli.hub.address)

    def completed(begun: str) -> list[str]:
        found = BashComplete(toolhub, {}, "toolhub", "_X").get_completions(["jobs", "watch"], begun)
        return [item.value for item in found]

    assert await asyncio.to_thread(completed, "job_") == [job_id]
    assert await asyncio.to_thread(completed, "x") == []
    monkeypatch.setenv("TOOLHUB_ADDRESS", "127.0.0.1:1")
    assert await asyncio.to_thread(completed, "job_") == []


def test_commands_of_jobs_start_without_the_drawing_library() -> None:
    program = "import sys; import toolhub_service.cli.jobs.commands; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
