"""What a thread lays upon itself, and the kernel hands on to every program that it starts: Landlock and seccomp.

Landlock (landlock(7), Linux 5.13) lets only what is named be opened, however a path leads there: links, `..` and races
change nothing. It also keeps a program from tracing or signalling the hub and, from ABI 4 (Linux 6.7), from TCP. The
filter of system calls (seccomp(2)) refuses what no command needs and what kernels are attacked by. Numbers are those of
the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import stat
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ABI_QUESTION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_RIGHTS_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_RIGHTS_FROM_5 = (1 << 16) - 1
# To bind and to connect.
_TCP = 3
# Abstract Unix sockets and signals of others.
_SCOPES = 3
READ_AND_RUN = _EXECUTE | _READ_FILE | _READ_DIR
READ_FOLDERS = _READ_DIR
READ_AND_WRITE = _READ_FILE | _WRITE_FILE

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_MODE_FILTER = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)

# Added on all machines alike since 5.1, from `pidfd_send_signal` on: io_uring, the new mount calls, pidfd_getfd.
_SINCE_5_1 = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442)
# ptrace, add_key, request_key, keyctl, bpf, userfaultfd, perf_event_open, mount, umount2, pivot_root, chroot, unshare,
# setns, name_to_handle_at, open_by_handle_at, kexec_load, kexec_file_load, init_module, finit_module, delete_module,
# swapon, swapoff, reboot, acct, quotactl, syslog, process_vm_readv, process_vm_writev, kcmp
_X86_64 = (101, 248, 249, 250, 321, 323, 298, 165, 166, 155, 161, 272, 308, 303, 304, 246, 320, 175, 313, 176, 167)
_X86_64_MORE = (168, 169, 163, 179, 103, 310, 311, 312)
_AARCH64 = (117, 217, 218, 219, 280, 282, 241, 40, 39, 41, 51, 97, 268, 264, 265, 104, 294, 105, 273, 106, 224)
_AARCH64_MORE = (225, 142, 89, 60, 116, 270, 271, 272)
# AUDIT_ARCH, the number of clone(2), and what is refused.
_MACHINES = {
    "x86_64": (0xC000003E, 56, (*_X86_64, *_X86_64_MORE, *_SINCE_5_1)),
    "aarch64": (0xC00000B7, 220, (*_AARCH64, *_AARCH64_MORE, *_SINCE_5_1)),
}
_CLONE3 = 435
_X32 = 0x40000000
_CLONE_NEWUSER = 0x10000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_AT_NUMBER, _AT_ARCH, _AT_FIRST_ARGUMENT = 0, 4, 16
"""Offsets in struct seccomp_data."""


@functools.cache
def landlock_abi() -> int:
    """The version that this kernel speaks; 0 where it has none or a filter forbids it."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ABI_QUESTION))))


def forbid_new_privileges() -> None:
    """For this thread and all that it starts. Raises OSError."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def restrict_files(allowed: Iterable[tuple[str, int]], everything: Sequence[str], *, tcp: bool = False) -> None:
    """Let this thread, and all that it starts, open only what is named: (path, rights) and, whole, `everything`.

    Paths that are not there are left out; a path is opened without following a last link. `tcp`: whether it may be
    used, and other programs be spoken to and signalled. For the rest of the thread's life. Raises OSError.
    """
    abi = landlock_abi()
    rights = _RIGHTS_BY_ABI.get(abi, _RIGHTS_FROM_5)
    terms = (rights, 0 if tcp else _TCP, 0 if tcp else _SCOPES)[: 1 if abi < 4 else 2 if abi < 6 else 3]
    packed = struct.pack(f"={len(terms)}Q", *terms)
    ruleset = _checked(_libc.syscall(_CREATE_RULESET, packed, ctypes.c_size_t(len(packed)), ctypes.c_uint32(0)))
    try:
        for path, wanted in (*allowed, *((path, rights) for path in everything)):
            with suppress(FileNotFoundError):
                _allow(ruleset, path, wanted & rights)
        forbid_new_privileges()
        _checked(_libc.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _RIGHTS_OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        _checked(_libc.syscall(_ADD_RULE, ctypes.c_int(ruleset), _PATH_BENEATH, rule, ctypes.c_uint32(0)))
    finally:
        os.close(descriptor)


@functools.cache
def call_filter() -> bytes:
    """The filter as `bwrap --seccomp` and the kernel read it (struct sock_filter); empty on an unknown machine."""
    known = _MACHINES.get(platform.machine())
    if known is None:
        return b""
    arch, clone, refused = known
    checks = [(_EQUAL, number) for number in refused]
    if platform.machine() == "x86_64":
        checks.insert(0, (_AT_LEAST, _X32))
    # The end: clone3 does not exist (its flags lie in memory; libc then takes clone), clone makes no user namespace.
    end = [
        (_EQUAL, 4, 0, _CLONE3),
        (_EQUAL, 0, 2, clone),
        (_LOAD, 0, 0, _AT_FIRST_ARGUMENT),
        (_ANY_BIT, 2, 0, _CLONE_NEWUSER),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]
    refusal = len(checks) + len(end) - 1
    lines = [(_LOAD, 0, 0, _AT_ARCH), (_EQUAL, 0, refusal + 1, arch), (_LOAD, 0, 0, _AT_NUMBER)]
    lines += [(code, refusal - at - 1, 0, number) for at, (code, number) in enumerate(checks)]
    return b"".join(struct.pack("=HBBI", *line) for line in (*lines, *end))


def filter_calls() -> None:
    """Refuse them to this thread and to all that it starts, new privileges being forbidden. Raises OSError."""
    program = call_filter()
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
    _checked(_libc.prctl(option, value, pointer, 0, 0))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)
