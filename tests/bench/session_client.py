"""The load of `session.py`: a program in Go for unary calls and sessions alike (session_load/main.go)."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load import ARGS, CONNECTIONS, Round
from tests.bench.processes import Process, machine_ticks, stolen_share
from toolhub.v1 import call_pb2
from toolhub.v1 import tool_service_pb2 as pb

SOURCE = Path(__file__).parent / "session_load"
UNARY = 0
"""As the size of a batch: calls of their own."""
MESSAGES_IN_FLIGHT = 4
"""On each connection, as far as the calls in flight of a session allow."""
CALLS_IN_FLIGHT = 256


@dataclass(frozen=True, slots=True)
class Load:
    """The program, built."""

    program: Path

    def drive(self, process: Process, batch: int, duration_s: float) -> Round:
        """`core/util.time.now` for a while; every answer is looked at."""
        window = MESSAGES_IN_FLIGHT if batch == UNARY else max(1, min(MESSAGES_IN_FLIGHT, CALLS_IN_FLIGHT // batch))
        intent = call_pb2.ToolIntent(tool="core/util.time.now", args_json=ARGS)
        call = pb.InvokeRequest(intent=intent) if batch == UNARY else pb.SessionCall(intent=intent)
        command = [
            *(self.program, "-address", f"127.0.0.1:{process.port}", "-batch", batch, "-window", window),
            *("-connections", CONNECTIONS, "-seconds", duration_s),
            *("-call", base64.b64encode(call.SerializeToString()).decode()),
        ]
        ticks, cpu_s = machine_ticks(), process.cpu_s()
        done = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
        cpu_s = process.cpu_s() - cpu_s
        told = json.loads(done.stdout)
        return Round(**told, cpu_us_per_call=cpu_s * 1e6 / told["calls"], stolen=stolen_share(ticks, machine_ticks()))


@contextmanager
def built() -> Iterator[Load]:
    """Raises SystemExit with advice when there is no Go."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise SystemExit("the load of this bench is written in Go, which is missing: put `go` on the path")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "session_load"
        subprocess.run([go, "build", "-o", str(program), "."], cwd=SOURCE, check=True)
        yield Load(program)
