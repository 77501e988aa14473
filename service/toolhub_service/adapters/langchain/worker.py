"""A worker process: loads one source's tools as the hub did, then runs one call at a time in its main thread.

Started by the hub with the numbers of two descriptors: the channel and the lifeline. Output of tools goes to the hub's
pipe for diagnostics. A child that a tool forked and that returns from the tool ends here, because it must not answer
too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolhub_service.adapters.langchain.frames import ChannelClosed, encode, read_frame
from toolhub_service.adapters.langchain.kind import LoadTerms
from toolhub_service.adapters.langchain.lifeline import bind_to_hub
from toolhub_service.adapters.langchain.no_tracing import disable_tracing

if TYPE_CHECKING:
    from toolhub_service.adapters.langchain.bound_tool import BoundTool

_BOOTSTRAP: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from toolhub_service.adapters.langchain.worker import main; main()"
)


def worker_argv() -> list[str]:
    """Return the command of a worker that imports from the same paths as this process."""
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
    tools = _load_tools(greeting)
    channel.sendall(encode({"ready": sorted(tools)}))
    while True:
        call = read_frame(channel)
        tool = tools.get(call["tool"])
        answer = tool.call_blocking(call, greeting["max_bytes"]) if tool else {"failed": "absent", "runs": []}
        reply = encode(answer)
        # A tool that forked returns twice: the child must not answer in its parent's place.
        if os.getpid() != own_pid:
            os._exit(0)
        # The tool's output reaches the hub's log before its answer does.
        sys.stdout.flush()
        channel.sendall(reply)


def _load_tools(greeting: Mapping[str, Any]) -> dict[str, BoundTool]:
    disable_tracing()
    from toolhub_service.adapters.langchain.bound_tool import bind_tool
    from toolhub_service.adapters.langchain.loading import Loader

    tools, _ = Loader(msgspec.convert(greeting["loads"], LoadTerms)).load()
    return {tool.name: bind_tool(tool, frozenset()) for tool in tools}
