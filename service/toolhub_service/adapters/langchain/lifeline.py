"""Kills the worker's whole process group when the hub is gone: only the hub holds the writing end of a pipe.

On Linux the kernel itself sends SIGKILL to the group when that end closes (`F_SETOWN` with a group, `F_SETSIG`,
`O_ASYNC`; fcntl(2)), which also ends a tool that never releases the interpreter lock. Where that is missing, a thread
that waits for the end of the pipe does the same.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import threading
from contextlib import suppress
from typing import Final

_SET_CHILD_SUBREAPER: Final = 36


def bind_to_hub(lifeline: int) -> None:
    """Have this process group killed when the hub is gone.

    Raises RuntimeError where neither this process nor its parent leads its group, as others would be killed with it.
    The parent may be the sandbox that hides the hub's data folder.
    """
    if os.getpgrp() not in (os.getpid(), os.getppid()):
        raise RuntimeError("a worker must lead its process group")
    _adopt_orphans()
    # A child that inherited it would keep the pipe's reading end open after the worker's end.
    os.set_inheritable(lifeline, False)
    if hasattr(fcntl, "F_SETSIG"):
        # The kernel kills at once, even while a tool holds the GIL; where it cannot, the thread below does.
        with suppress(OSError):
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_end_with, args=(lifeline,), name="lifeline", daemon=True).start()


def _adopt_orphans() -> None:
    """Keep the processes that tools start below this one, so that the hub finds them all (PR_SET_CHILD_SUBREAPER of
    prctl(2)): otherwise an orphan in a session of its own would have no known parent. Linux only."""
    # Only Linux has it; elsewhere orphans of a tool are not ended with it.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_with(lifeline: int) -> None:
    with suppress(OSError):  # a failed pipe also means that the hub is gone
        os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)
