"""Calls of the hub's tools from a skill's script: `call("core/fs.readText", {"path": "a.txt"})`.

The hub puts this file beside the script; it needs the standard library alone. `python toolhub_tools.py NAME '{json}'`
prints the value of one call, as the command `tool` does.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any


class ToolError(Exception):
    """A call was refused or failed. `kind`, `message` and `details` say why; `retryable` whether to try again."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.kind: str = error.get("kind", "INTERNAL")
        self.message: str = error.get("message", "")
        self.details: dict[str, Any] = error.get("details", {})
        self.retryable: bool = error.get("retryable", False)
        super().__init__(f"{self.kind}: {self.message}")


def call(tool: str, args: dict[str, Any] | None = None) -> Any:
    """Return the tool's value. Raises ToolError, and OSError when the run is over."""
    asked = {"tool": tool, "args": args or {}}
    with connect() as connection:
        connection.sendall(json.dumps(asked).encode() + b"\n")
        with connection.makefile("rb") as answers:
            line = answers.readline()
    if not line:
        raise ConnectionError("the hub takes no calls of this run")
    answer = json.loads(line)
    if not answer["ok"]:
        raise ToolError(answer["error"])
    return answer["value"]


def connect() -> socket.socket:
    """Return a new connection to the hub, whose other end is sent through the descriptor that the script inherited."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            with socket.socket(fileno=os.dup(int(os.environ["TOOLHUB_CALLS"]))) as door:
                socket.send_fds(door, [b"call"], [theirs.fileno()])
        except OSError as failed:
            ours.close()
            reason = "this process has not inherited $TOOLHUB_CALLS, or the run is over: start it with close_fds=False"
            raise ConnectionError(reason) from failed
    return ours


def main(words: list[str]) -> int:
    if len(words) not in (1, 2):
        sys.stderr.write('usage: tool NAME [\'{"argument": "value"}\']\n')
        return 2
    try:
        value = call(words[0], json.loads(words[1]) if len(words) == 2 else {})
    except (ToolError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
