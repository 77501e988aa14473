"""A worker without LangChain, quick to start: each message names its behaviour. Run as a program."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from typing import Any

from toolhub_service.adapters.langchain.lifeline import bind_to_hub


def main() -> None:
    channel, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    bind_to_hub(lifeline)
    while True:
        size = int.from_bytes(channel.recv(4, socket.MSG_WAITALL), "big")
        attach = json.loads(channel.recv(size, socket.MSG_WAITALL)) if size else sys.exit()
        body = json.dumps(answer(attach)).encode()
        frame = len(body).to_bytes(4, "big") + body
        channel.sendall(frame * int(attach.get("times", 1)))


def answer(attach: dict[str, Any]) -> Any:
    match attach["do"]:
        case "sleep":
            print("sleeping", flush=True)
            time.sleep(1000)
        case "ignore SIGTERM":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("ignoring", flush=True)
            time.sleep(1000)
        case "leave a child behind":
            leave_behind()
            time.sleep(1000)
        case "exit":
            os._exit(3)
        case "hold the interpreter":
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                print(f"child {os.getpid()}", flush=True)
                time.sleep(1000)
            print(f"holding {os.getpid()}", flush=True)
            re.match("(a+)+$", "a" * 60 + "b")
        case "large":
            return "x" * int(attach["size"])
        case "refuse to start":
            sys.exit(1)
    return {"pid": os.getpid(), **attach}


def leave_behind() -> None:
    """A process in a session of its own, as a daemon makes itself: its parent has ended, and it heeds no SIGTERM."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"left {os.getpid()}", flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    main()
