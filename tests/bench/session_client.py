"""The load of `session.py`: a program in Go for unary calls and sessions alike (session_load/main.go)."""

from __future__ import annotations

import base64
import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
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


@dataclass(slots=True)
class Load:
    """The program, built."""

    program: Path
    others: float = 0.0
    """The largest share of the machine's processors that neither server nor load had during a drive."""

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
        ticks, cpu_s, own_s, others_s = machine_ticks(), process.cpu_s(), _children_s(), _busy_s()
        began_s = time.monotonic()
        done = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
        cpu_s = process.cpu_s() - cpu_s
        others_s = _busy_s() - others_s - cpu_s - (_children_s() - own_s)
        self.others = max(self.others, others_s / ((time.monotonic() - began_s) * (os.cpu_count() or 1)))
        figures = json.loads(done.stdout)
        return Round(
            **figures, cpu_us_per_call=cpu_s * 1e6 / figures["calls"], stolen=stolen_share(ticks, machine_ticks())
        )


def _busy_s() -> float:
    """Processor seconds that somebody on this machine has used since boot."""
    user, nice, system, _, _, irq, soft_irq = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
    return (user + nice + system + irq + soft_irq) / os.sysconf("SC_CLK_TCK")


def _children_s() -> float:
    """Processor seconds of the programs that have been waited for: the load's."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
