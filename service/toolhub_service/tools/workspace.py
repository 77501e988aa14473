"""A call's folder: every path is opened beneath it, whatever other processes do meanwhile. (Being written.)"""

from __future__ import annotations


class Workspace:
    def close(self) -> None: ...
