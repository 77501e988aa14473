"""`toolhub approvals …` against a real server: what a person sees, decides and follows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from rich.cells import cell_len

from tests.e2e.terminal import CommandOutput, Terminal, environment, in_terminal, terminal
from tests.free_port import free_port
from tests.unit.runtime.approvals.approval_harness import ANN, EVE, LOCAL, REJECTED, an_approval_harness
from tests.unit.transport.approval_server import AUDITOR, ApprovalHub, approval_hub
from toolhub.v1 import approval_pb2
from toolhub_service.cli.approvals.view import ApprovalWatch, row, state_of, time_left
from toolhub_service.cli.connection.channel import Endpoint
from toolhub_service.cli.connection.client import Connection, connect
from toolhub_service.cli.root import toolhub
from toolhub_service.domain.approval import ApprovalState
from toolhub_service.domain.call import Principal
from toolhub_service.domain.event import EventType
from toolhub_service.guards.secrets import Redactor

PROGRAM = [sys.executable, "-c", "from toolhub_service.cli.approvals.commands import approvals; approvals()"]
CANARY = "c4nary-7f31-value"


@pytest.fixture
async def hub() -> AsyncIterator[ApprovalHub]:
    async with approval_hub() as serving:
        yield serving


async def cli(hub: ApprovalHub, *words: str, by: Principal = ANN) -> Result:
    """Run to the end, in pipes."""
    env = {"TOOLHUB_ADDRESS": hub.address, "TOOLHUB_API_KEY": by.id}
    result = await asyncio.to_thread(CliRunner().invoke, toolhub, ["approvals", *words], env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


async def typed(hub: ApprovalHub, tmp_path: Path, *words: str, keys: bytes = b"", after: str = "") -> CommandOutput:
    """Run to the end, in a terminal, as Ann."""
    env = environment(tmp_path, TOOLHUB_ADDRESS=hub.address, TOOLHUB_API_KEY=ANN.id)
    shown = await asyncio.to_thread(in_terminal, [*PROGRAM, *words], env, keys=keys, after=after)
    assert "Traceback" not in shown.text
    return shown


class TestList:
    async def test_pending_approvals_are_listed_and_others_on_request(self, hub: ApprovalHub) -> None:
        pending, granted = await hub.harness.ask("a"), await hub.harness.grant("b")
        listed = json.loads((await cli(hub, "list", "--json")).stdout)
        assert [approval["approvalId"] for approval in listed["approvals"]] == [pending]
        assert listed["totalSize"] == 1
        listed = json.loads((await cli(hub, "list", "--json", "--state", "approved")).stdout)
        assert [approval["approvalId"] for approval in listed["approvals"]] == [granted]
        listed = json.loads((await cli(hub, "list", "--json", "--state", "all", "--tool", "test/*")).stdout)
        assert listed["totalSize"] == 2

    async def test_the_number_of_approvals_is_bounded_and_the_total_reported(self, hub: ApprovalHub) -> None:
        for number in range(3):
            await hub.harness.ask(str(number))
        listed = json.loads((await cli(hub, "list", "--json", "-n", "2")).stdout)
        assert (len(listed["approvals"]), listed["totalSize"]) == (2, 3)

    async def test_asker_sees_its_own(self, hub: ApprovalHub) -> None:
        mine = await hub.harness.ask()
        await hub.harness.ask(principal="other")
        listed = json.loads((await cli(hub, "list", "--json", by=LOCAL)).stdout)
        assert [approval["approvalId"] for approval in listed["approvals"]] == [mine]

    async def test_a_table_shows_asker_call_and_age(self, hub: ApprovalHub, tmp_path: Path) -> None:
        empty = await typed(hub, tmp_path, "list")
        assert "No approval is pending" in empty.text
        approval_id = await hub.harness.ask("hello")
        shown = await typed(hub, tmp_path, "list")
        assert "APPROVAL" in shown.text
        assert approval_id in shown.text
        assert "test/text.write" in shown.text

    async def test_a_table_shows_who_decided(self, hub: ApprovalHub) -> None:
        pending, granted = await hub.harness.ask("a"), await hub.harness.grant("b")
        listed = (await cli(hub, "list", "--state", "all")).stdout.splitlines()
        cells = {line.split()[0]: re.split(r" {2,}", line)[3] for line in listed}
        assert cells == {"APPROVAL": "DECIDED BY", pending: "–", granted: ANN.id}


class TestShow:
    async def test_a_person_sees_all_that_matters(self, hub: ApprovalHub, tmp_path: Path) -> None:
        approval_id = await hub.harness.ask("hello", purpose="tidy \x1b[2Jup\u202etxt")
        shown = await typed(hub, tmp_path, "show", approval_id)
        assert shown.code == 0
        for words in (
            approval_id,
            "PENDING",
            "caller",
            "local",
            "writes-need-a-yes: Writing changes what others read.",
            '"text": "hello"',
            "arguments sent by the caller (secrets are replaced by their length)",
            "untrusted text of the caller",
            "time left",
        ):
            assert words in shown.text
        assert "\x1b[2J" not in shown.text, "the purpose does not drive the terminal"
        assert "up\\u202etxt" in shown.text, "nor does it turn the text around"

    @pytest.mark.parametrize(
        "purpose",
        [
            "tidy up" + "\n" * 60 + 'arguments sent by the caller:\n{\n  "text": "harmless"\n}',
            "tidy up" + " " * 9_000 + 'arguments: {"text": "harmless"}',
            "tidy up\r\narguments sent by the caller (secrets are replaced by their length):\u2028{}",
            "工" * 3_000 + "\narguments",
        ],
        ids=["empty lines", "spaces", "other line ends", "wide characters"],
    )
    async def test_no_purpose_imitates_the_arguments_or_pushes_them_out_of_sight(
        self, hub: ApprovalHub, tmp_path: Path, purpose: str
    ) -> None:
        approval_id = await hub.harness.ask("the real ones", purpose=purpose)
        lines = (await typed(hub, tmp_path, "show", approval_id)).text.splitlines()
        begin = lines.index("purpose (untrusted text of the caller):") + 1
        end = lines.index("arguments sent by the caller (secrets are replaced by their length):")
        assert all(line.startswith("│ ") for line in lines[begin : end - 1])
        assert all(line.startswith("│ ") for line in lines[end + 1 :])
        assert '"text": "the real ones"' in "".join(lines[end:])
        assert all(cell_len(line) <= 100 for line in lines[begin:])
        assert sum(not line.removeprefix("│").strip() for line in lines[begin:end]) <= 2

    @pytest.mark.parametrize(
        ("comment", "kept"),
        [("no\x1b[2J", "no[2J"), ("\x1b", ""), ("a\u202eb\x9bc\u2028d", "abcd"), ("two\nlines", "two\nlines")],
    )
    async def test_a_comment_is_kept_without_control_characters(
        self, hub: ApprovalHub, comment: str, kept: str
    ) -> None:
        approval_id = await hub.harness.ask()
        assert (await cli(hub, "deny", approval_id, "-m", comment)).exit_code == 0
        approval = await hub.harness.store.get(approval_id)
        assert approval is not None
        assert approval.comment == kept

    async def test_a_reveal_shows_the_values_that_the_summary_gives_by_length(
        self, hub: ApprovalHub, tmp_path: Path
    ) -> None:
        run = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
        approval_id = await hub.harness.ask(f"{run} \u202etxt")
        assert run not in (await typed(hub, tmp_path, "show", approval_id)).text
        assert hub.harness.events(EventType.APPROVAL_REVEALED) == []
        shown = await typed(hub, tmp_path, "show", approval_id, "--reveal")
        assert f"{run} \\u202etxt" in shown.text
        assert "arguments as sent by the caller" in shown.text
        piped = (await cli(hub, "show", approval_id, "--reveal")).stdout
        assert "\u202e" not in piped
        decoded = json.loads(piped)
        assert decoded["revealedArgs"] == {"text": f"{run} \u202etxt", "times": 1}
        assert decoded["approval"]["approvalId"] == approval_id
        assert [event.principal for event in hub.harness.events(EventType.APPROVAL_REVEALED)] == [ANN.id, ANN.id]
        refused = await cli(hub, "show", approval_id, "--reveal", by=LOCAL)
        assert refused.exit_code != 0
        assert "approver" in refused.stderr

    async def test_an_unknown_approval_is_reported_in_one_line(self, hub: ApprovalHub) -> None:
        refused = await cli(hub, "show", "apr_nowhere")
        assert (refused.exit_code, "APPROVAL_NOT_FOUND" in refused.stderr) == (1, True)

    async def test_json_has_the_arguments_as_json(self, hub: ApprovalHub) -> None:
        approval_id = await hub.harness.ask("hello")
        decoded = json.loads((await cli(hub, "show", approval_id)).stdout)
        assert decoded["argsSummary"] == {"text": "hello", "times": 1}
        assert decoded["state"] == "APPROVAL_STATE_PENDING"


class TestDecide:
    async def test_an_approval_is_stored_with_its_comment(self, hub: ApprovalHub) -> None:
        approval_id = await hub.harness.ask()
        decoded = json.loads((await cli(hub, "approve", approval_id, "-m", "agreed")).stdout)
        assert (decoded["state"], decoded["decidedBy"]) == ("APPROVAL_STATE_APPROVED", "ann")
        kept = await hub.harness.store.get(approval_id)
        assert kept is not None
        assert (kept.state, kept.comment) == (ApprovalState.APPROVED, "agreed")
        assert (await hub.harness.call(number=2, approval_id=approval_id)).ok

    async def test_a_refusal_reaches_the_caller(self, hub: ApprovalHub) -> None:
        approval_id = await hub.harness.ask()
        assert (await cli(hub, "deny", approval_id, "-m", "use reports/")).exit_code == 0
        assert "use reports/" in (await hub.harness.refused(number=2, approval_id=approval_id)).message

    async def test_refused_decision_exits_1_with_the_reason(self, hub: ApprovalHub) -> None:
        approval_id = await hub.harness.ask()
        for by, reason in ((EVE, "NOT_AMONG_APPROVERS"), (LOCAL, "ROLE_MISSING")):
            refused = await cli(hub, "approve", approval_id, "--yes", by=by)
            assert (refused.exit_code, reason in refused.stderr) == (1, True)
        assert await hub.harness.state(approval_id) is ApprovalState.PENDING

    async def test_terminal_shows_the_call_and_asks_first(self, hub: ApprovalHub, tmp_path: Path) -> None:
        approval_id = await hub.harness.ask("hello")
        words = ("approve", approval_id)
        no = await typed(hub, tmp_path, *words, keys=b"n\n", after="Approve this call, once?")
        assert no.code == 1
        assert '"text": "hello"' in no.text
        assert "Nothing was decided" in no.text
        assert await hub.harness.state(approval_id) is ApprovalState.PENDING
        yes = await typed(hub, tmp_path, *words, keys=b"y\n", after="Approve this call, once?")
        assert yes.code == 0
        assert await hub.harness.state(approval_id) is ApprovalState.APPROVED

    async def test_terminal_is_not_asked_with_yes(self, hub: ApprovalHub, tmp_path: Path) -> None:
        approval_id = await hub.harness.ask()
        done = await typed(hub, tmp_path, "approve", approval_id, "--yes")
        assert (done.code, "APPROVED" in done.text) == (0, True)
        assert "once?" not in done.text

    async def test_hub_that_is_not_there_exits_3(self) -> None:
        result = await asyncio.to_thread(
            CliRunner().invoke, toolhub, ["approvals", "watch", "--address", "127.0.0.1:1"]
        )
        assert result.exit_code == 3
        assert "No hub answers" in result.stderr


@contextlib.contextmanager
def connection_to(address: str, by: Principal = ANN) -> Iterator[Connection]:
    with connect(Endpoint(address), by.id, 20.0) as connection:
        yield connection


class WatchReader:
    """`ApprovalWatch`, read in a thread of its own."""

    def __init__(self, connection: Connection, **callbacks: Any) -> None:
        self._answers = iter(ApprovalWatch(connection, "", **callbacks))

    async def next(self, count: int) -> list[tuple[str, str]]:
        async with asyncio.timeout(60):
            taken = [await asyncio.to_thread(next, self._answers) for _ in range(count)]
        return [(a.approval_id, state_of(a)) for a in taken]

    def close(self) -> None:
        self._answers.close()


class TestWatch:
    async def test_json_prints_one_line_a_change(self, hub: ApprovalHub, tmp_path: Path) -> None:
        first = await hub.harness.ask("a")
        env = environment(tmp_path, TOOLHUB_ADDRESS=hub.address, TOOLHUB_API_KEY=ANN.id)
        process = await asyncio.create_subprocess_exec(
            *PROGRAM, "watch", "--json", env=env, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                changes = [json.loads(await process.stdout.readline())]
                await hub.harness.decide(first, REJECTED, comment="no")
                changes.append(json.loads(await process.stdout.readline()))
        finally:
            process.terminate()
            await process.wait()
        assert [line["approvalId"] for line in changes] == [first, first]
        assert [line["state"].rpartition("_")[2] for line in changes] == ["PENDING", "REJECTED"]

    async def test_watch_goes_on_when_the_hub_was_started_again(self) -> None:
        """What stayed as it was is not repeated; what was decided meanwhile, also without having been seen, is sent."""
        harness, is_back, lost = an_approval_harness(), threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_lost(_: float) -> None:
            loop.call_soon_threadsafe(lost.set)

        async with contextlib.AsyncExitStack() as stack:
            port = free_port()
            async with approval_hub(harness, port=port) as hub:
                connection = stack.enter_context(connection_to(hub.address))
                follower = WatchReader(connection, disconnected=on_lost, pause=lambda _: is_back.wait(60))
                kept, decided = await harness.ask("kept"), await harness.ask("decided")
                assert set(await follower.next(2)) == {(kept, "PENDING"), (decided, "PENDING")}
                going_on = asyncio.create_task(follower.next(3))
            await lost.wait()
            await harness.decide(decided)
            unseen, new = await harness.grant("unseen"), await harness.ask("new")
            await stack.enter_async_context(approval_hub(harness, port=port))
            is_back.set()
            assert set(await going_on) == {(decided, "APPROVED"), (unseen, "APPROVED"), (new, "PENDING")}
            await asyncio.to_thread(follower.close)

    async def test_refusal_is_not_taken_for_an_outage(self, hub: ApprovalHub) -> None:
        with connection_to(hub.address, AUDITOR) as connection, pytest.raises(grpc.RpcError):
            await asyncio.to_thread(next, iter(ApprovalWatch(connection, "")))

    async def test_the_board_shows_open_approvals_and_their_decisions(self, hub: ApprovalHub, tmp_path: Path) -> None:
        approval_id = await hub.harness.ask("hello")
        env = environment(tmp_path, TOOLHUB_ADDRESS=hub.address, TOOLHUB_API_KEY=ANN.id)
        with terminal([*PROGRAM, "watch"], env) as (process, screen):
            await seen(screen, "1 pending")
            assert approval_id in screen.text
            await hub.harness.decide(approval_id, comment="go ahead")
            await seen(screen, "APPROVED")
            await seen(screen, "'go ahead'")
            await seen(screen, "0 pending")
            screen.type(b"\x03")
            text = await asyncio.to_thread(screen.rest)
            assert await asyncio.to_thread(process.wait, 60) == 0
        assert "Traceback" not in text

    @pytest.mark.parametrize("columns", [80, 120, 200])
    @pytest.mark.promise("cli.approvals")
    async def test_board_shows_ids_whole_and_arguments_at_any_width(
        self, hub: ApprovalHub, tmp_path: Path, columns: int
    ) -> None:
        asked = [await hub.harness.ask(f"hello {number} " * 4) for number in range(2)]
        async with board(hub, tmp_path, columns) as screen:
            await seen(screen, "2 pending")
            for approval_id in asked:
                assert approval_id in screen.text
            assert ("ARGUMENTS" in screen.text) == (columns >= 120)
            assert "test/text.write" in screen.text
            assert '"text":"hello 0' in screen.text or '"text":"hello 1' in screen.text
            screen.type(b"q")

    @pytest.mark.promise("cli.approvals")
    async def test_keys_decide_the_selected_approval_as_the_commands_do(self, hub: ApprovalHub, tmp_path: Path) -> None:
        first = await hub.harness.ask("first")
        async with board(hub, tmp_path, 100) as screen:
            await seen(screen, "1 pending")
            second = await hub.harness.ask("second")
            await seen(screen, "2 pending")
            screen.type(b"\x1b[Ba")
            await seen(screen, "Approve this call, once?")
            screen.type(b"n\n")
            await seen(screen, "Nothing was decided")
            assert await hub.harness.state(second) is ApprovalState.PENDING
            screen.raw = b""
            await seen(screen, "2 pending")
            screen.type(b"a")
            await seen(screen, "Approve this call, once?")
            screen.type(b"y\n")
            await seen(screen, "1 pending")
            assert await hub.harness.state(second) is ApprovalState.APPROVED
            assert await hub.harness.state(first) is ApprovalState.PENDING
            screen.type(b"d")
            await seen(screen, "Reason for the caller")
            screen.type(b"use reports/\n")
            await seen(screen, "0 pending")
            kept = await hub.harness.store.get(first)
            assert kept is not None
            assert (kept.state, kept.comment) == (ApprovalState.REJECTED, "use reports/")
            screen.type(b"q")

    @pytest.mark.parametrize("keys", [b"d", b"a"], ids=["deny", "approve"])
    @pytest.mark.parametrize(
        "back", [b"\x1b", b"\x1b\r", b"use x\x1b", b"\x03"], ids=["Esc", "Esc-Enter", "typed", "C"]
    )
    async def test_escape_goes_back_and_decides_nothing(
        self, hub: ApprovalHub, tmp_path: Path, keys: bytes, back: bytes
    ) -> None:
        approval_id = await hub.harness.ask()
        async with board(hub, tmp_path, 100) as screen:
            await seen(screen, "1 pending")
            screen.type(keys)
            await seen(screen, "Reason for the caller" if keys == b"d" else "Approve this call, once?")
            screen.raw = b""
            screen.type(back)
            await seen(screen, "Nothing was decided")
            await seen(screen, "1 pending")
            assert await hub.harness.state(approval_id) is ApprovalState.PENDING
            screen.type(b"q")

    async def test_arrows_and_corrections_leave_no_control_character_in_a_reason(
        self, hub: ApprovalHub, tmp_path: Path
    ) -> None:
        approval_id = await hub.harness.ask()
        async with board(hub, tmp_path, 100) as screen:
            await seen(screen, "1 pending")
            screen.type(b"d")
            await seen(screen, "Reason for the caller")
            screen.raw = b""
            screen.type("wrong\x15nö\x1b[D\x1b[3~\x7f\x7fno\x01!".encode() + b"\r")
            await seen(screen, "0 pending")
            kept = await hub.harness.store.get(approval_id)
            assert kept is not None
            assert (kept.state, kept.comment) == (ApprovalState.REJECTED, "no!")
            screen.type(b"q")

    async def test_the_purpose_and_then_the_arguments_are_shown_before_a_key_is_pressed(
        self, hub: ApprovalHub, tmp_path: Path
    ) -> None:
        await hub.harness.ask("hello", purpose="tidy\n\n\n\x1b[2J" + "up " * 400)
        async with board(hub, tmp_path, 100) as screen:
            await seen(screen, "1 pending")
            await seen(screen, "│ purpose: tidy \\u001b[2Jup up")
            assert screen.text.rindex("│ purpose:") < screen.text.rindex('│ {"text":"hello"')
            screen.type(b"q")

    async def test_a_refused_decision_is_reported_and_the_board_goes_on(self, hub: ApprovalHub, tmp_path: Path) -> None:
        approval_id = await hub.harness.ask()
        async with board(hub, tmp_path, 100, by=EVE) as screen:
            await seen(screen, "1 pending")
            screen.type(b"a")
            await seen(screen, "Approve this call, once?")
            screen.raw = b""
            screen.type(b"y\n")
            await seen(screen, "NOT_AMONG_APPROVERS")
            await seen(screen, "1 pending")
            assert await hub.harness.state(approval_id) is ApprovalState.PENDING
            screen.type(b"q")

    async def test_terminal_that_cannot_redraw_gets_lines(self, hub: ApprovalHub, tmp_path: Path) -> None:
        approval_id = await hub.harness.ask()
        env = environment(tmp_path, TOOLHUB_ADDRESS=hub.address, TOOLHUB_API_KEY=ANN.id, TERM="dumb", NO_COLOR="")
        whole = [sys.executable, "-m", "toolhub_service", "approvals", "watch"]
        with terminal(whole, env) as (_, screen):
            await seen(screen, approval_id)
            await hub.harness.decide(approval_id)
            await seen(screen, "APPROVED")
            assert b"\x1b" not in screen.raw


@contextlib.asynccontextmanager
async def board(hub: ApprovalHub, home: Path, columns: int, by: Principal = ANN) -> AsyncIterator[Terminal]:
    """`approvals watch` in a terminal, which the block must have ended with the key q."""
    env = environment(home, TOOLHUB_ADDRESS=hub.address, TOOLHUB_API_KEY=by.id)
    with terminal([*PROGRAM, "watch"], env, columns=columns) as (process, screen):
        yield screen
        text = await asyncio.to_thread(screen.rest)
        assert await asyncio.to_thread(process.wait, 60) == 0
    assert "Traceback" not in text


async def seen(screen: Terminal, words: str) -> None:
    await asyncio.to_thread(screen.wait_for, words)


@pytest.mark.promise("secrets.nowhere")
async def test_canary_is_shown_by_no_command(tmp_path: Path) -> None:
    async with approval_hub(redactor=Redactor([CANARY])) as hub:
        approval_id = await hub.harness.ask(f"hello {CANARY}", purpose=f"use {CANARY}")
        texts = [(await cli(hub, *words)).output for words in (["list"], ["show", approval_id])]
        texts.append((await typed(hub, tmp_path, "show", approval_id)).text)
        texts.append((await cli(hub, "deny", approval_id, "-m", f"no {CANARY}")).output)
        for text in texts:
            assert approval_id in text
            assert CANARY not in text


@pytest.mark.parametrize(
    ("left_s", "expected"),
    [(-1, "expired"), (30.4, "30 s"), (119, "119 s"), (150, "2 min"), (7_300, "2 h"), (200_000, "2 d")],
)
def test_remaining_time_is_shown_in_fitting_units(
    left_s: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    approval = approval_pb2.Approval(state=approval_pb2.APPROVAL_STATE_PENDING)
    approval.expires_at.FromMilliseconds(round((1_000_000 + left_s) * 1_000))
    assert time_left(approval) == expected
    approval.state = approval_pb2.APPROVAL_STATE_USED
    assert row(approval)[2] == "–"
