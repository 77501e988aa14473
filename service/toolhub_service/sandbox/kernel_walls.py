"""Restrictions of a thread that its child processes inherit: Landlock and seccomp.

Landlock (landlock(7), Linux 5.13) allows opening only named files, by whatever path: links, `..` and races do not
matter. It also keeps a program from tracing the hub, from ABI 6 (Linux 6.12) from signalling it, and from ABI 4 (Linux
6.7) from TCP. What the filter of system calls refuses is call_filter.py.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

TYPE_CHECKING = False  # of `typing`, which landlock_start.py has no time for
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ABI_QUESTION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_RIGHTS_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_RIGHTS_FROM_5 = (1 << 16) - 1
# Character and block devices: root could otherwise make the machine's disk in its own folder.
_MAKE_DEVICES = 1 << 6 | 1 << 11
# Rights to bind and to connect.
_TCP = 3
# Abstract Unix sockets and signals of other processes.
_SCOPES = 3
READ_AND_RUN = _EXECUTE | _READ_FILE | _READ_DIR
READ_FOLDERS = _READ_DIR
READ_AND_WRITE = _READ_FILE | _WRITE_FILE

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_MODE_FILTER = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)


def landlock_abi() -> int:
    """Return the version that this kernel supports; 0 when it has none or a filter forbids it."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ABI_QUESTION))))


def forbid_new_privileges() -> None:
    """Forbid new privileges for this thread and its child processes. Raises OSError."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def restrict_files(allowed: Iterable[tuple[str, int]], everything: Sequence[str], *, tcp: bool = False) -> None:
    """Let this thread and its child processes open only named files: (path, rights) and, as a whole, `everything`.

    Devices cannot be made anywhere. Missing paths are ignored; a path is opened without following a last link. `tcp`:
    whether it may be used, and other programs be connected to and signalled. It lasts for the thread's life. Raises
    OSError.
    """
    abi = landlock_abi()
    rights = _RIGHTS_BY_ABI.get(abi, _RIGHTS_FROM_5)
    terms = (rights, 0 if tcp else _TCP, 0 if tcp else _SCOPES)[: 1 if abi < 4 else 2 if abi < 6 else 3]
    packed = struct.pack(f"={len(terms)}Q", *terms)
    ruleset = _raise_on_error(_libc.syscall(_CREATE_RULESET, packed, ctypes.c_size_t(len(packed)), ctypes.c_uint32(0)))
    try:
        for path, wanted in (*allowed, *((path, rights & ~_MAKE_DEVICES) for path in everything)):
            _allow(ruleset, path, wanted & rights)
        forbid_new_privileges()
        _raise_on_error(_libc.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _RIGHTS_OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        _raise_on_error(_libc.syscall(_ADD_RULE, ctypes.c_int(ruleset), _PATH_BENEATH, rule, ctypes.c_uint32(0)))
    finally:
        os.close(descriptor)


def filter_calls(program: bytes) -> None:
    """Install a filter (call_filter.py) on this thread and its child processes; new privileges must be forbidden.

    Raises OSError.
    """
    if program:
        code = ctypes.create_string_buffer(program, len(program))
        described = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
        _prctl(_PR_SET_SECCOMP, _MODE_FILTER, described)


def hide_memory() -> None:
    """Make this process undumpable: others of its user cannot trace it nor read its memory and environment (prctl(2)).

    It also leaves no core dumps.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int, pointer: bytes | None = None) -> None:
    _raise_on_error(_libc.prctl(option, value, pointer, 0, 0))


def _raise_on_error(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)
