"""A worker's bond to its hub: when the hub is gone, the worker's whole process group is killed.

The hub alone holds the writing end of a pipe. On Linux the kernel itself sends SIGKILL to the group when that end
closes (`F_SETOWN` with a group, `F_SETSIG`, `O_ASYNC`; fcntl(2)), which also ends a tool that never lets go of the
interpreter lock. A thread that waits for the end of the pipe does the same wherever that is missing.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from contextlib import suppress


def bind_to_hub(lifeline: int) -> None:
    """Raises RuntimeError where neither this process nor its parent leads its group: others would be killed with it.

    The parent may be the sandbox that hides the hub's data folder.
    """
    if os.getpgrp() not in (os.getpid(), os.getppid()):
        raise RuntimeError("a worker must lead its process group")
    os.set_inheritable(lifeline, False)
    if hasattr(fcntl, "F_SETSIG"):
        with suppress(OSError):
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_end_with, args=(lifeline,), name="lifeline", daemon=True).start()


def _end_with(lifeline: int) -> None:
    with suppress(OSError):
        os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)
