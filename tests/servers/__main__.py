"""`python -m tests.servers`: install the MCP servers and clients of tests. Does nothing where they are there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

from tests.servers import PACKAGES, Unavailable, install, install_python


def main() -> int:
    """0, or 1 when they are required and cannot be had."""
    parts: list[Callable[[], str]] = [install, *(partial(install_python, name) for name in PACKAGES)]
    missing = 0
    for part in parts:
        try:
            print(f"MCP servers and clients: {part()}")
        except Unavailable as unavailable:
            print(f"MCP servers and clients: {unavailable}", file=sys.stderr)
            missing += 1
    return 1 if missing and os.environ.get("TOOLHUB_REQUIRE_SERVICES") == "1" else 0


if __name__ == "__main__":
    sys.exit(main())
