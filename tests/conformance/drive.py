"""What the suite starts as its client: `python -m tests.conformance.drive URL`.

Tells the runner that waits at the Unix socket TOOLHUB_CONFORMANCE_DESK what to play, and ends when it has been played.
Without a runner it opens a hub of its own, for a scenario by hand:

    conformance client --command "python -m tests.conformance.drive" --scenario tools_call --spec-version 2026-07-28
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

DESK = "TOOLHUB_CONFORMANCE_DESK"


def main() -> int:
    """0 when all calls went as they should."""
    asked = {
        "scenario": os.environ["MCP_CONFORMANCE_SCENARIO"],
        "version": os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"],
        "url": sys.argv[1],
        "context": json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")),
    }
    runner = os.environ.get(DESK)
    played = _ask_runner(Path(runner), asked) if runner else _alone(asked)
    print(played["text"])
    return 1 if played["trouble"] else 0


def _ask_runner(runner: Path, asked: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(runner))
        connection.sendall(json.dumps(asked).encode() + b"\n")
        with connection.makefile() as answer:
            return json.loads(answer.read())  # type: ignore[no-any-return]


def _alone(asked: dict[str, Any]) -> dict[str, Any]:
    import asyncio
    import tempfile

    from tests.conformance.runner import Asked, a_runner

    async def play() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            async with a_runner(Path(folder)) as runner:
                played = await runner.play(Asked(**asked))
                return {"text": played.text, "trouble": played.trouble}

    return asyncio.run(play())


if __name__ == "__main__":
    sys.exit(main())
