"""A worker process: loads one source's tools as the hub did, then runs one call at a time in its main thread.

Started by the hub with the numbers of two descriptors: the channel and the lifeline. What tools print goes to the hub's
pipe for diagnostics. A child that a tool forked and that came back from the tool ends here: it must not answer too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from toolhub_service.adapters.langchain.frames import ChannelClosed, encode, read_frame
from toolhub_service.adapters.langchain.lifeline import bind_to_hub
from toolhub_service.adapters.langchain.quiet import silence
from toolhub_service.adapters.langchain.terms import LoadTerms

_BOOTSTRAP: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from toolhub_service.adapters.langchain.worker import main; main()"
)


def worker_argv() -> list[str]:
    """The command of a worker that imports from where this process imports."""
    paths = json.dumps(sys.path)
    return [sys.executable, "-P", "-c", _BOOTSTRAP, paths]


def main() -> None:
    """Serve until the hub is gone."""
    channel_fd, lifeline_fd = int(sys.argv[1]), int(sys.argv[2])
    bind_to_hub(lifeline_fd)
    os.set_inheritable(channel_fd, False)
    channel = socket.socket(fileno=channel_fd)
    try:
        _serve(channel)
    except (ChannelClosed, OSError):
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _serve(channel: socket.socket) -> None:
    own_pid = os.getpid()
    greeting = read_frame(channel)
    tools = _loaded(greeting)
    channel.sendall(encode({"ready": sorted(tools)}))
    while True:
        call = read_frame(channel)
        reply = encode(_reply(tools, call, greeting["max_bytes"]))
        if os.getpid() != own_pid:
            os._exit(0)
        sys.stdout.flush()
        channel.sendall(reply)


def _loaded(greeting: Mapping[str, Any]) -> dict[str, Any]:
    silence()
    from toolhub_service.adapters.langchain.bound_tool import bound
    from toolhub_service.adapters.langchain.loading import Loader

    tools, _ = Loader(msgspec.convert(greeting["loads"], LoadTerms)).load()
    return {tool.name: bound(tool, frozenset()) for tool in tools}


def _reply(tools: Mapping[str, Any], call: Mapping[str, Any], max_bytes: int) -> dict[str, Any]:
    tool = tools.get(call["tool"])
    if tool is None:
        return {"failed": "absent", "runs": []}
    reply: dict[str, Any] = tool.ask_here(call, max_bytes)
    return reply
