"""The filter of system calls (seccomp(2)), as `bwrap --seccomp` and the kernel read it.

It refuses calls that no program here needs and that kernels are attacked by, and calls that reach other processes. If
Landlock is the only confinement (`alone`), it also refuses what Landlock does not cover: other users' process groups
and System V IPC; and calls that change mode, owner, times or attributes of a *path* do nothing and return success, so
that copying tools go on: by descriptor, which Landlock has checked, all of it works. Sockets are created in the given
address families alone, and in none where a program shares the hub's network: Landlock does not check the path that a
Unix socket connects to. Numbers are those of the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl,
include/uapi/asm-generic/unistd.h).
"""

from __future__ import annotations

import errno
import functools
import platform
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

Line = tuple[int, int, int, int]
"""Fields of struct sock_filter: code, jump if true, jump if false, operand."""
IN_OWN_NETWORK = (int(socket.AF_UNIX), int(socket.AF_INET), int(socket.AF_INET6))
"""Families that a namespace of files and network confines; it does not confine AF_VSOCK and AF_ALG."""

# On all machines alike, from `pidfd_send_signal` on: io_uring, the new mount calls, pidfd_getfd, process_madvise,
# mount_setattr, quotactl_fd, process_mrelease.
_SINCE_5_1 = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442, 443, 448)


@dataclass(frozen=True, slots=True)
class _Machine:
    """Numbers of system calls."""

    arch: int
    """AUDIT_ARCH."""
    clone: int
    refused: tuple[int, ...]
    """ptrace, add_key, request_key, keyctl, bpf, userfaultfd, perf_event_open, mount, umount2, pivot_root, chroot,
    unshare, setns, name_to_handle_at, open_by_handle_at, kexec_load, kexec_file_load, init_module, finit_module,
    delete_module, swapon, swapoff, reboot, acct, quotactl, syslog, process_vm_readv, process_vm_writev, kcmp;
    settimeofday, clock_settime, adjtimex, clock_adjtime, sethostname, setdomainname, vhangup, fanotify_init,
    migrate_pages, move_pages; on x86 iopl, ioperm."""
    of_self: tuple[int, ...]
    """Whose first argument is a process: prlimit64, sched_setparam, sched_setscheduler, sched_setaffinity,
    sched_setattr."""
    setpriority: int
    ioprio_set: int
    ioctl: int
    socket: int
    socketpair: int
    alone: tuple[int, ...]
    """setsid, setpgid, inotify_add_watch, shmget, shmat, semget, msgget, mq_open."""
    by_path: tuple[int, ...]
    """fchmodat, fchmodat2, fchownat, setxattr, lsetxattr, removexattr, lremovexattr, setxattrat, removexattrat; on x86
    chmod, chown, lchown, utime, utimes, futimesat."""
    utimensat: int


_X86_64 = (101, 248, 249, 250, 321, 323, 298, 165, 166, 155, 161, 272, 308, 303, 304, 246, 320, 175, 313, 176, 167)
_X86_64_MORE = (168, 169, 163, 179, 103, 310, 311, 312, 164, 227, 159, 305, 170, 171, 153, 300, 256, 279, 172, 173)
_AARCH64 = (117, 217, 218, 219, 280, 282, 241, 40, 39, 41, 51, 97, 268, 264, 265, 104, 294, 105, 273, 106, 224)
_AARCH64_MORE = (225, 142, 89, 60, 116, 270, 271, 272, 170, 112, 171, 266, 161, 162, 58, 262, 238, 239)
_X86_64_BY_PATH = (268, 452, 260, 188, 189, 197, 198, 463, 466, 90, 92, 94, 132, 235, 261)
_MACHINES = {
    "x86_64": _Machine(
        0xC000003E,
        clone=56,
        refused=(*_X86_64, *_X86_64_MORE, *_SINCE_5_1),
        of_self=(302, 142, 144, 203, 314),
        setpriority=141,
        ioprio_set=251,
        ioctl=16,
        socket=41,
        socketpair=53,
        alone=(112, 109, 254, 29, 30, 64, 68, 240),
        by_path=_X86_64_BY_PATH,
        utimensat=280,
    ),
    "aarch64": _Machine(
        0xC00000B7,
        clone=220,
        refused=(*_AARCH64, *_AARCH64_MORE, *_SINCE_5_1),
        of_self=(261, 118, 119, 122, 274),
        setpriority=140,
        ioprio_set=30,
        ioctl=29,
        socket=198,
        socketpair=199,
        alone=(157, 154, 27, 194, 196, 190, 186, 180),
        by_path=(53, 452, 54, 5, 6, 14, 15, 463, 466),
        utimensat=88,
    ),
}
_CLONE3 = 435
_X32 = 0x40000000
_CLONE_NEWUSER = 0x10000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_ARCH, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets in struct seccomp_data; of arguments the lower half."""
_HIGH = 4
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_IOPRIO_WHO_PROCESS = 1
_AND = 0x54
_KIND_OF_SOCKET = 0xF
"""Without SOCK_NONBLOCK and SOCK_CLOEXEC."""
_ERRNO = 0x00050000
_ALLOW: Line = (_RETURN, 0, 0, 0x7FFF0000)
_PRETEND: Line = (_RETURN, 0, 0, _ERRNO)
_REFUSE: Line = (_RETURN, 0, 0, _ERRNO | errno.EPERM)


@functools.cache
def call_filter(*, alone: bool = False, families: Sequence[int] = IN_OWN_NETWORK) -> bytes:
    """Return an array of struct sock_filter; empty on an unknown machine.

    `families`: of sockets that may be created.
    """
    of = _MACHINES.get(platform.machine())
    if of is None:
        return b""
    start = [(_LOAD, 0, 0, _AT_ARCH), (_EQUAL, 1, 0, of.arch), _REFUSE, (_LOAD, 0, 0, _AT_NUMBER)]
    blocks = _checked_by_arguments(of) + _sockets(of, families)
    refused: tuple[int, ...] = of.refused
    pretended: tuple[int, ...] = ()
    if alone:
        blocks += _when(of.utimensat, [*_zero(_SECOND, 3), *_zero(_SECOND + _HIGH, 1), _ALLOW, _PRETEND])
        refused = (*of.refused, *of.alone)
        pretended = of.by_path
    # The end: clone3 does not exist (its flags are in memory; libc then uses clone), and clone makes no user namespace.
    end = [
        (_EQUAL, 4, 0, _CLONE3),
        (_EQUAL, 0, 2, of.clone),
        (_LOAD, 0, 0, _FIRST),
        (_ANY_BIT, 2, 0, _CLONE_NEWUSER),
        _ALLOW,
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        _REFUSE,
        _PRETEND,
    ]
    checks = [(_EQUAL, number, 2) for number in refused] + [(_EQUAL, number, 1) for number in pretended]
    if platform.machine() == "x86_64":
        checks.insert(0, (_AT_LEAST, _X32, 2))
    total = len(checks) + len(end)
    # Jump to the last line but one or to the last, counted from the line after the check.
    jumps = [(code, total - back - at - 1, 0, number) for at, (code, number, back) in enumerate(checks)]
    return b"".join(struct.pack("=HBBI", *line) for line in (*start, *blocks, *jumps, *end))


def _checked_by_arguments(of: _Machine) -> list[Line]:
    own = [*_zero(_FIRST, 1), _ALLOW, _REFUSE]
    lines = [line for number in of.of_self for line in _when(number, own)]
    lines += _when(of.setpriority, [*_zero(_FIRST, 3), *_zero(_SECOND, 1), _ALLOW, _REFUSE])
    who = [(_LOAD, 0, 0, _FIRST), (_EQUAL, 0, 3, _IOPRIO_WHO_PROCESS), *_zero(_SECOND, 1), _ALLOW, _REFUSE]
    lines += _when(of.ioprio_set, who)
    terminal: list[Line] = [(_LOAD, 0, 0, _SECOND), (_EQUAL, 2, 0, _TIOCSTI), (_EQUAL, 1, 0, _TIOCLINUX)]
    return lines + _when(of.ioctl, [*terminal, _ALLOW, _REFUSE])


def _sockets(of: _Machine, families: Sequence[int]) -> list[Line]:
    """Return the lines for sockets. Pairs are always of Unix sockets.

    Without families a pair is connected for good: one of datagrams could be connected anew, to any path.
    """
    allowed = [(_EQUAL, len(families) - at, 0, family) for at, family in enumerate(families)]
    lines = _when(of.socket, [(_LOAD, 0, 0, _FIRST), *allowed, _REFUSE, _ALLOW])
    if families:
        return lines
    kinds = [(_EQUAL, 2, 0, int(socket.SOCK_STREAM)), (_EQUAL, 1, 0, int(socket.SOCK_SEQPACKET))]
    return lines + _when(
        of.socketpair, [(_LOAD, 0, 0, _SECOND), (_AND, 0, 0, _KIND_OF_SOCKET), *kinds, _REFUSE, _ALLOW]
    )


def _when(number: int, lines: list[Line]) -> list[Line]:
    """Return the lines for one call, of which every path ends in a return."""
    return [(_EQUAL, 0, len(lines), number), *lines]


def _zero(offset: int, beyond: int) -> list[Line]:
    """Continue if it is zero, else skip so many lines."""
    return [(_LOAD, 0, 0, offset), (_EQUAL, 0, beyond, 0)]
