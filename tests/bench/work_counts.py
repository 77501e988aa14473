"""How much work a call is, counted and not timed, so that a busy machine blurs nothing: the bare echo, a unary call, a
call of a session.

    python -m tests.bench.work_counts [--functions] [--write]

Python calls, distinct functions and files on the event loop's thread, and peak memory, of a call after warm-up
(`counted_server.py`), and the processor's instructions a call where valgrind is installed. `--functions` lists what the
unary call visits, in order. `tests/unit/test_work_counts.py` holds the first three to `work_budgets.yaml`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc

from tests.bench.counted_server import Work
from tests.bench.load import ARGS
from tests.bench.page import arguments, markdown, publish
from toolhub.v1 import call_pb2, tool_service_pb2_grpc
from toolhub.v1 import tool_service_pb2 as pb

SESSION_CALLS = 64
"""Calls in one message of a session."""
_WARM_UP, _SENDS = 30, 40
_SESSION_WARM_UP, _SESSION_SENDS = 8, 10
"""Messages, each of `SESSION_CALLS`."""
_INSTRUCTION_CALLS = 300
_INTENT = call_pb2.ToolIntent(tool="core/util.time.now", args_json=ARGS)


@dataclass(frozen=True, slots=True)
class Counted:
    """The mean of calls made one after the other; functions and files of a session are those of a whole message."""

    calls: float
    """Python calls, those of libraries and of the event loop included."""
    own_calls: float
    """Of them those of `toolhub_service`."""
    own_functions: int
    own_files: int
    peak_bytes: int
    """Of memory beyond what was held before."""
    by_function: dict[str, int]
    """How often each function of `toolhub_service` was called in all, in order."""


@dataclass(slots=True)
class CountedServer:
    child: subprocess.Popen[str]
    stub: Any

    def unary(self) -> None:
        assert self.stub.Invoke(pb.InvokeRequest(intent=_INTENT)).result.ok

    @contextmanager
    def session(self) -> Iterator[Callable[[], None]]:
        """Sends one message of an open session, and reads the results of all of its calls."""
        message = pb.InvokeSessionRequest(
            calls=[pb.SessionCall(intent=_INTENT, call_id=f"c{number}") for number in range(SESSION_CALLS)]
        )
        waiting: SimpleQueue[pb.InvokeSessionRequest | None] = SimpleQueue()
        answers = self.stub.InvokeSession(iter(waiting.get, None))

        def send() -> None:
            waiting.put(message)
            results = 0
            while results < SESSION_CALLS:
                results += sum(event.result.ok for event in next(answers).events)

        yield send
        waiting.put(None)
        assert list(answers) == []

    def count(
        self, send: Callable[[], None], calls_each: int = 1, *, warm_up: int = _WARM_UP, sends: int = _SENDS
    ) -> Counted:
        """What a call costs the server once everything is warm; `send` makes `calls_each` of them."""
        for _ in range(warm_up):
            send()
        self._command("begin")
        for _ in range(sends):
            send()
        work = Work(**json.loads(self._command("end")))
        # What goes at the pace of the machine, such as a timer of the hub or a commit of its log, is no part of a
        # call: its count is no multiple of the calls.
        each = {name: count for name, count in work.own.items() if count % sends == 0}
        return Counted(
            calls=round(work.calls / sends / calls_each, 1),
            own_calls=round(sum(each.values()) / sends / calls_each, 1),
            own_functions=len(each),
            own_files=len({name.partition(":")[0] for name in each}),
            peak_bytes=work.peak_bytes,
            by_function=each,
        )

    def _command(self, word: str) -> str:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(f"{word}\n")
        self.child.stdin.flush()
        return self.child.stdout.readline()


@contextmanager
def counted_server(kind: str, *flags: str, under: tuple[str, ...] = ()) -> Iterator[CountedServer]:
    """`echo` or `hub` as a child that counts."""
    command = [*under, sys.executable, "-m", "tests.bench.counted_server", kind, *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline().removeprefix("port "))
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield CountedServer(child, tool_service_pb2_grpc.ToolServiceStub(channel))
        finally:
            child.terminate()


def count_all() -> dict[str, Counted]:
    """By what is called: `echo`, `unary`, `session`."""
    with counted_server("echo") as echo, counted_server("hub") as hub, hub.session() as send_message:
        return {
            "echo": echo.count(echo.unary),
            "unary": hub.count(hub.unary),
            "session": hub.count(send_message, SESSION_CALLS, warm_up=_SESSION_WARM_UP, sends=_SESSION_SENDS),
        }


def instructions() -> dict[str, int]:
    """Instructions of the whole process a call, by callgrind; empty where valgrind is not installed."""
    if shutil.which("valgrind") is None:
        return {}
    found = {}
    for kind, name in (("echo", "echo"), ("hub", "unary"), ("hub", "session")):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "callgrind"
            valgrind = ("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}", "-q")
            with counted_server(kind, "--plain", under=valgrind) as server:
                with server.session() if name == "session" else nullcontext(server.unary) as send:
                    each = SESSION_CALLS if name == "session" else 1
                    times = max(_INSTRUCTION_CALLS // each, 4)
                    for _ in range(times):
                        send()
                    _control(server.child.pid, "--instr=on")
                    for _ in range(times):
                        send()
                    _control(server.child.pid, "--dump")
                dumps = [path.read_text() for path in Path(folder).glob("callgrind.*")]
                totals = [re.search(r"^summary: (\d+)", dump, re.MULTILINE) for dump in dumps]
                found[name] = sum(int(total[1]) for total in totals if total) // (times * each)
    return found


def _control(pid: int, action: str) -> None:
    subprocess.run(["callgrind_control", action, str(pid)], check=True, capture_output=True)


def table(counted: dict[str, Counted], instructions_each: dict[str, int]) -> str:
    names = {"echo": "bare echo", "unary": "unary call", "session": f"call of a session, {SESSION_CALLS} a message"}
    head = ("", "Python calls", "of them the hub's", "distinct functions", "files", "peak memory", "instructions")
    rows: list[tuple[str, ...]] = [head]
    for name, one in counted.items():
        million = f"{instructions_each[name] / 1e6:.2f} million" if name in instructions_each else "not measured"
        peak = f"{one.peak_bytes / 1024:.0f} KiB{' a message' if name == 'session' else ''}"
        counts = (one.calls, one.own_calls, one.own_functions, one.own_files)
        rows.append((names[name], *(f"{count:.0f}" for count in counts), peak, million))
    return markdown(rows)


def main() -> None:
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.add_argument("--functions", action="store_true", help="list what the unary call visits")
    options = parser.parse_args()
    counted = count_all()
    if options.functions:
        for function, count in counted["unary"].by_function.items():
            print(f"{count / _SENDS:5.1f} {function}")
    found = {name: {**asdict(one), "by_function": None} for name, one in counted.items()}
    each = instructions()
    publish("work_counts", {"counted": found, "instructions": each}, table(counted, each), write=options.write)


if __name__ == "__main__":
    main()
