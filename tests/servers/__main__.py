"""`python -m tests.servers`: install the MCP servers of npm that tests talk to. Does nothing where they are there."""

from __future__ import annotations

import os
import sys

from tests.servers import Unavailable, install


def main() -> int:
    """0, or 1 when they are required and cannot be had."""
    try:
        print(f"MCP servers: {install()}")
    except Unavailable as unavailable:
        print(f"MCP servers: {unavailable}", file=sys.stderr)
        return 1 if os.environ.get("TOOLHUB_REQUIRE_SERVICES") == "1" else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
