"""`make bench`: every measurement, one after the other. Numbers, not pass or fail."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.bench import (
    governed_call,
    jobs,
    memory_search,
    registry_speed,
    remote_jobs,
    search_quality,
    session,
    watchers,
)

_PARTS: dict[str, Callable[[], None]] = {
    "governed_call": governed_call.main,
    "session": session.main,
    "jobs": jobs.main,
    "remote_jobs": remote_jobs.main,
    "watchers": watchers.main,
    "registry_speed": registry_speed.main,
    "search_quality": search_quality.main,
    "memory_search": memory_search.main,
}


def main() -> None:
    """All parts, or those named: `python -m tests.bench governed_call`."""
    names = [name for name in sys.argv[1:] if name in _PARTS]
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in _PARTS]
    for name in names or _PARTS:
        print(f"## {name}\n")
        _PARTS[name]()
        print()


if __name__ == "__main__":
    main()
