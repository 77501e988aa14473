"""Starts a program confined by Landlock and stays beside it, so that all of it ends with the hub, however that ends.

With bubblewrap a process namespace does that. Here the program, by its filter of system calls, can leave neither the
process group nor the session, and when the kernel signals the end of the hub's thread (PR_SET_PDEATHSIG), the whole
group is killed. This process is not confined: the program cannot signal it. It is the hub's Python, and imports almost
nothing, because every start at this level pays for its start.
"""

from __future__ import annotations

# Of the standard library, without its enumerations, which take half the time of all imports here.
import _signal as signal  # type: ignore[import-not-found]
import ctypes
import marshal
import os
import sys

from toolhub_service.sandbox.kernel_walls import filter_calls, restrict_files
from toolhub_service.sandbox.opened_ways import open_ways

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType
    from typing import Any

_PR_SET_PDEATHSIG = 1
_CANNOT_START = 126
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from toolhub_service.sandbox.landlock_start import main; main()"
)


def landlock_argv(
    argv: Sequence[str],
    *,
    named: Sequence[tuple[str, int]],
    writes: Sequence[str],
    calls: bytes,
    environment: Mapping[str, str],
    closed: Sequence[str] = (),
    shown: Sequence[str] = (),
) -> tuple[str, ...]:
    """The command that starts `argv` with these files alone. `named`: paths and rights of Landlock; `calls`: a filter.

    It must be started with `environment` itself, which others could read in the words of a command. `closed`: folders
    that its user cannot enter, in which only the paths `shown` appear to it (opened_ways.py).
    """
    terms = {
        "named": list(named),
        "writes": list(writes),
        "calls": calls,
        "has_ctype": "LC_CTYPE" in environment,
        "hub": os.getpid(),
        "closed": list(closed),
        "shown": list(shown),
    }
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120 - pathlib costs as much as the rest
    return (sys.executable, "-I", "-S", "-c", _BOOTSTRAP, root, marshal.dumps(terms).hex(), *argv)


def main() -> None:
    """Run the program; never returns, and exits like it, with 128 + n when signal n ended it."""
    terms: dict[str, Any] = marshal.loads(bytes.fromhex(sys.argv[1]))  # noqa: S302 - the hub's own words
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    signal.signal(signal.SIGUSR1, _end_all)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # for the program, which is of the same group
    if terms["hub"] not in (os.getppid(), os.getpid()):
        os._exit(_CANNOT_START)
    child = os.fork()
    if child == 0:
        _exec(sys.argv[2:], terms)
    _Watched.program = child
    while True:
        ended, status = os.waitpid(child, 0)
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(128 - code if code < 0 else code)


class _Watched:
    program = 0


def _end_all(number: int, frame: FrameType | None) -> None:
    del number, frame
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    if _Watched.program:
        os.kill(_Watched.program, signal.SIGKILL)
    os._exit(_CANNOT_START)


def _exec(argv: Sequence[str], terms: Mapping[str, Any]) -> None:
    try:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        if terms["closed"]:
            folder = os.getcwd()  # noqa: PTH109 - pathlib is not imported here
            open_ways(terms["closed"], terms["shown"])
            os.chdir(folder)
        restrict_files([(path, rights) for path, rights in terms["named"]], terms["writes"])
        filter_calls(terms["calls"])
        if not terms["has_ctype"]:
            os.environ.pop("LC_CTYPE", None)  # Python has set it
        os.execv(argv[0], list(argv))  # noqa: S606 - what the hub confines
    except OSError as failed:
        os.write(2, f"cannot start: {failed.strerror}\n".encode())
    finally:
        os._exit(_CANNOT_START)
