"""Sessions, attacked over the wire: what one client holds, calls that break the contract, cancels, open streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.hub import CALL_TIMEOUT_S, OPEN_POLICY, RunningHub, request, running_hub
from tests.rpc.principals import BY_KEY, Client, Principals
from tests.rpc.sample_tools import Echo, Waits
from tests.rpc.statuses import failed_stream
from toolhub.v1 import error_pb2, result_pb2
from toolhub.v1 import tool_service_pb2 as pb

POLICY = OPEN_POLICY.replace("[local]", "[ops]").replace("[agent, operator", "[operator")
ECHO, WAIT = "test/text.echo", "test/text.wait"
NAMES = ("alice", "bob", "ops")


def call(name: str, tool: str = ECHO, args: dict[str, Any] | None = None, **fields: Any) -> pb.SessionCall:
    made: pb.SessionCall = request(tool, args, message=pb.SessionCall, **fields)
    made.call_id = name
    return made


class Session:
    """One session of one principal."""

    def __init__(self, by: Client, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.stream: Any = by.running.stub.InvokeSession(metadata=by.metadata, timeout=timeout_s)
        self.results: dict[str, list[result_pb2.ToolResult]] = {}

    async def send(self, *calls: pb.SessionCall, cancel: tuple[str, ...] = ()) -> None:
        await self.stream.write(pb.InvokeSessionRequest(calls=calls, cancel_call_ids=cancel))

    async def read(self, count: int) -> None:
        """Until so many results have come."""
        while sum(map(len, self.results.values())) < count:
            message = await self.stream.read()
            assert message is not grpc.aio.EOF
            for event in message.events:
                if event.WhichOneof("event") == "result":
                    self.results.setdefault(event.call_id, []).append(event.result)


class SessionHarness:
    def __init__(self, running: RunningHub, waits: Waits) -> None:
        self.running, self.waits, self.people = running, waits, Principals(running, names=NAMES)

    def by(self, name: str) -> Client:
        return self.people.at(self.running, name)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SessionHarness]:
    waits = Waits()
    async with running_hub(tmp_path, policy=POLICY, settings=BY_KEY, tools=[waits, Echo()]) as running:
        yield SessionHarness(running, waits)


def kind(result: result_pb2.ToolResult) -> str:
    return error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_")


async def test_a_session_needs_the_role_and_a_credential(harness: SessionHarness) -> None:
    for metadata, code in (
        (harness.by("ops").metadata, grpc.StatusCode.PERMISSION_DENIED),
        ((), grpc.StatusCode.UNAUTHENTICATED),
        ((("authorization", "Bearer thk_0"),), grpc.StatusCode.UNAUTHENTICATED),
    ):
        stream: Any = harness.running.stub.InvokeSession(iter([]), metadata=metadata, timeout=CALL_TIMEOUT_S)
        assert (await failed_stream(stream)).code is code


@pytest.mark.promise("session.each-call-checked")
async def test_calls_of_a_session_are_its_principal_s_and_checked_like_any_other(harness: SessionHarness) -> None:
    line = Session(harness.by("bob"))
    await line.send(
        call("a", ECHO, {"text": "x"}, user_id="alice"),
        call("b", ECHO, {"text": 5}),
        call("c", "test/none"),
        call("d", "core/fs.writeText", {"path": "../x", "text": ""}),
        call("e", ECHO, {"text": "fine"}),
    )
    await line.read(5)
    kinds = {name: kind(results[0]) for name, results in line.results.items()}
    assert kinds["a"] == "PERMISSION_DENIED"
    assert kinds["b"] == "INPUT_SCHEMA_INVALID"
    assert kinds["c"] == "TOOL_NOT_FOUND"
    assert kinds["d"] != "UNSPECIFIED"
    assert line.results["e"][0].ok
    assert {chained.event.principal for chained in await harness.running.events()} == {"bob"}


HOSTILE_CALLS: tuple[dict[str, Any], ...] = (
    {"call_id": ""},
    {"call_id": "a" * 129},
    {"call_id": "a\0b"},
    {"call_id": "\x1b[2J"},
    {"request_id": "../x"},
    {"tool": ""},
    {"tool": "x" * 200},
    {"purpose": "x" * 100_000},
    {"plan_digest": "\n"},
    {"idempotency_key": " "},
)


async def test_a_malformed_call_never_runs_and_affects_no_other(harness: SessionHarness) -> None:
    line = Session(harness.by("alice"))
    for number, broken in enumerate(HOSTILE_CALLS):
        bad = call("bad", **{name: value for name, value in broken.items() if name in ("request_id", "purpose")})
        bad.call_id = broken.get("call_id", f"bad-{number}")
        bad.intent.tool = broken.get("tool", ECHO)
        bad.intent.idempotency_key = broken.get("idempotency_key", "")
        bad.plan_digest = broken.get("plan_digest", "")
        await line.send(bad, call(f"good-{number}", ECHO, {"text": "x"}))
    await line.read(2 * len(HOSTILE_CALLS))
    assert all(line.results[f"good-{number}"][0].ok for number in range(len(HOSTILE_CALLS)))
    assert sum(result.ok for results in line.results.values() for result in results) == len(HOSTILE_CALLS)


async def test_one_name_in_flight_is_one_call(harness: SessionHarness) -> None:
    line = Session(harness.by("alice"))
    await line.send(call("x", WAIT), *(call("x", WAIT) for _ in range(20)))
    await line.read(20)
    assert "x" not in line.results, "callers of the first one go on waiting"
    assert {kind(result) for result in line.results[""]} == {"INVALID_INPUT"}
    await until(lambda: harness.waits.running == 1)
    await line.send(cancel=("x",))
    await line.read(21)
    assert kind(line.results["x"][-1]) == "CANCELLED"


async def test_floods_of_cancels_stop_what_they_name_and_nothing_else(harness: SessionHarness) -> None:
    mine, theirs = Session(harness.by("bob")), Session(harness.by("alice"))
    await theirs.send(call("x", WAIT))
    await asyncio.wait_for(harness.waits.started.wait(), CALL_TIMEOUT_S)
    for _ in range(100):
        await mine.send(cancel=(*(f"x{number}" for number in range(200)), "x"))
    await mine.send(call("y", ECHO, {"text": "still here"}))
    await mine.read(1)
    assert mine.results["y"][0].ok
    assert harness.waits.running == 1
    harness.waits.let_go.set()
    await theirs.read(1)
    assert theirs.results["x"][0].ok


async def test_sessions_that_hang_up_leave_nothing_running(harness: SessionHarness) -> None:
    lines = [Session(harness.by("bob")) for _ in range(20)]
    for line in lines:
        await line.send(*(call(f"c{number}", WAIT) for number in range(10)))
        await line.stream.done_writing()
    await until(lambda: harness.waits.running >= 50)
    for line in lines:
        line.stream.cancel()
    await until(lambda: harness.waits.running == 0 and not len(harness.running.hub.server.tools.sessions))
    assert harness.waits.stopped.is_set()


async def test_large_arguments_in_flight_are_bounded_by_their_bytes(harness: SessionHarness) -> None:
    """256 calls of 4 MiB would be a gigabyte a session."""
    line = Session(harness.by("bob"))
    large = {"text": "x" * 1_000_000}
    sending = asyncio.create_task(_send_all(line, [call(f"c{number}", WAIT, large) for number in range(40)]))
    await until(lambda: harness.waits.running >= 4)
    other = Session(harness.by("alice"))
    await other.send(call("a", ECHO, {"text": "x"}))
    await other.read(1)  # by now whatever may begin has begun
    assert harness.waits.running <= 5
    harness.waits.let_go.set()
    await line.read(40)
    assert all(results[0].ok for results in line.results.values())
    await sending


@pytest.mark.promise("session.bounded")
async def test_calls_of_all_sessions_are_bounded_together_and_none_starves(tmp_path: Path) -> None:
    waits = Waits()
    settings = {**BY_KEY, "server": {"max_in_flight": 20}}
    async with running_hub(tmp_path, policy=POLICY, settings=settings, tools=[waits, Echo()]) as running:
        harness = SessionHarness(running, waits)
        lines = [Session(harness.by("bob")) for _ in range(10)]
        for line in lines:
            await line.send(*(call(f"c{number}", WAIT) for number in range(50)))
        await until(lambda: waits.running >= 20)
        late = Session(harness.by("alice"))
        await late.send(call("a", ECHO, {"text": json.dumps("x")}))
        await late.read(1)
        assert late.results["a"][0].ok, "each session has room for one call of its own"
        assert waits.running <= 20 + len(lines)
        waits.let_go.set()
        for line in lines:
            await line.read(50)


async def _send_all(line: Session, calls: list[pb.SessionCall]) -> None:
    for each in calls:
        await line.send(each)


async def until(holds: Any) -> None:
    async with asyncio.timeout(CALL_TIMEOUT_S):
        while not holds():  # noqa: ASYNC110 - what it waits for is many things, and the hub has an event for none
            await asyncio.sleep(0.01)
