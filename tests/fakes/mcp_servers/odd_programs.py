"""Programs that are started as MCP servers and are none, or bad ones: `python odd_programs.py NAME`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def exits() -> None:
    sys.stderr.write("cannot read /etc/server.conf, token=hunter2-canary\n")
    sys.exit(3)


def silent() -> None:
    for _ in sys.stdin:
        pass


def babbles() -> None:
    for number in range(2_000):
        print(f"starting up, step {number}")
    silent()


def deaf() -> None:
    """Answers the handshake, heeds neither the end of its input nor SIGTERM, and has a child that is the same."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-S", "-c", _STAYS], stdin=subprocess.DEVNULL, start_new_session=False)
    chatty()
    time.sleep(600)


def daemonizes() -> None:
    """Answers the handshake, after a shell has started a process in a session of its own and has ended."""
    command = f"setsid {sys.executable} -S -c '{_STAYS}' </dev/null >/dev/null 2>&1 &"
    subprocess.run(["sh", "-c", command], check=True)
    chatty()


def chatty() -> None:
    """A server of the older generation that mixes its log into its output and answers `big` with a line of 300 kB."""
    print("hello from the logger")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            print(json.dumps(_answer(message)), flush=True)


def stops() -> None:
    """Answers the handshake and no call."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and message["method"] != "tools/call":
            print(json.dumps(_answer(message)), flush=True)
        elif message["method"] == "tools/call":
            os.kill(os.getpid(), signal.SIGSTOP)


_STAYS = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    own = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        info = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        return {**own, "result": {**info, "serverInfo": {"name": "chatty", "version": "1"}}}
    if message["method"] != "tools/call":
        return {**own, "error": {"code": -32601, "message": "no"}}
    name = message["params"]["name"]
    if name == "nameless":
        return {"result": {"text": "x" * 300_000}, "more": own}
    if name == "noise":
        sys.stderr.write("y" * 5_000 + "\n" + "loud\n" * 1_000)
        sys.stderr.flush()
    if name == "environment":
        open_now = [entry.name for entry in Path("/proc/self/fd").iterdir()]
        return {**own, "result": _text(json.dumps([dict(os.environ), open_now, str(Path.cwd())]))}
    result = _text("x" * 300_000 if name in {"big", "last"} else str(os.getpid()))
    return {"result": result, **own} if name == "last" else {**own, "result": result}


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


if __name__ == "__main__":
    globals()[sys.argv[1]]()
