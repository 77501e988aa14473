"""A server that counts its own work, driven over its standard input: the echo of `echo_server.py`, or a whole hub.

python -m tests.bench.counted_server echo|hub [--plain]     prints `port N`, then reads `begin` and `end`, a line each

After `end` it prints what was done between the two, in one line of JSON (`Work`). `--plain` counts nothing: for a
tool that counts from outside, such as callgrind.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import tracemalloc
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import grpc.aio

import toolhub_service
from tests.bench.echo_server import Echo
from tests.hub import running_hub
from toolhub.v1 import tool_service_pb2_grpc

_OURS = str(Path(toolhub_service.__file__).parent)


class Work(NamedTuple):
    """What a server did on the thread of its event loop. Python calls: a coroutine that goes on counts as one."""

    calls: int
    """Those of libraries and of the event loop included."""
    peak_bytes: int
    """How much more memory Python held at the worst moment than before, as `tracemalloc` sees it."""
    own: dict[str, int]
    """Calls of each function of `toolhub_service`, as `file:function`, in the order of their first call."""


class CallCounter:
    """Counts Python calls of the thread that installs it: other threads write in batches, by the machine's pace."""

    def __init__(self) -> None:
        self._seen: Counter[CodeType] | None = None
        self._before_bytes = 0

    def install(self) -> None:
        sys.setprofile(self._on_event)
        tracemalloc.start(1)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        seen = self._seen
        if event == "call" and seen is not None:
            seen[frame.f_code] += 1

    def begin(self) -> None:
        tracemalloc.reset_peak()
        self._before_bytes = tracemalloc.get_traced_memory()[0]
        self._seen = Counter()

    def end(self) -> Work:
        peak_bytes = tracemalloc.get_traced_memory()[1] - self._before_bytes
        seen, self._seen = self._seen or Counter(), None
        own = {
            f"{code.co_filename.removeprefix(_OURS)[1:]}:{code.co_qualname}": count
            for code, count in seen.items()
            if code.co_filename.startswith(_OURS)
        }
        return Work(sum(count for code, count in seen.items() if code.co_filename != __file__), peak_bytes, own)


async def _serve(kind: str, counter: CallCounter) -> None:
    async with AsyncExitStack() as stack:
        if kind == "echo":
            server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
            tool_service_pb2_grpc.add_ToolServiceServicer_to_server(Echo(), server)  # type: ignore[abstract]  # two RPCs are all it serves
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            port = (await stack.enter_async_context(running_hub(folder))).hub.server.port
        print(f"port {port}", flush=True)
        # A thread reads: the loop must have nothing to do with the counting but what is counted.
        await asyncio.to_thread(_answer, counter)


def _answer(counter: CallCounter) -> None:
    for line in sys.stdin:
        if line.strip() == "begin":
            counter.begin()
            print("counting", flush=True)
        else:
            print(json.dumps(counter.end()._asdict()), flush=True)


if __name__ == "__main__":
    counting = CallCounter()
    if "--plain" not in sys.argv:
        counting.install()
    asyncio.run(_serve(sys.argv[1], counting))
