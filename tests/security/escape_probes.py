"""Ways out of a sandbox, tried one by one by a program inside it. Prints a JSON object of those that led out.

Run as a script by any Python: the standard library alone. Its one argument is JSON of what the test has put outside:
`key` (a file that must not be read or changed), `outside` (a folder that must not be written), `workspace` (a file of
another caller), `hub` and `victim` (processes), `tcp` (ports that listen), `udp`, `abstract` (names), `streams` and
`datagrams` (Unix sockets by path), `secret` (a value of the hub's environment), `shared_file` (POSIX shared memory),
`inherited` (descriptors that it may have), `only` (probes to try; all without it).
Published families: the capabilities of the GTFOBins list, the tests of bubblewrap, firejail and nsjail, CVE-2019-5736
(/proc/PID/exe, descriptors), CVE-2017-5226 (TIOCSTI), CVE-2022-0492, CVE-2023-0386 (user namespaces, mounts).
"""

# The plain calls are what is tried, most of them for their errors.
# mypy: ignore-errors
from __future__ import annotations

import ctypes
import glob
import json
import mmap
import os
import platform
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable

GIVEN = json.loads(sys.argv[1])
KEY, OUTSIDE, HUB, VICTIM = GIVEN["key"], GIVEN["outside"], GIVEN["hub"], GIVEN["victim"]
CANARY = "c4nary"
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
X86 = platform.machine() == "x86_64"
PROBES: dict[str, Callable[[], object]] = {}


def probe(function: Callable[[], object]) -> Callable[[], object]:
    PROBES[function.__name__] = function
    return function


def shows_key(path: str) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return CANARY.encode() in os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def any_of(ways: list[Callable[[], object]]) -> bool:
    for way in ways:
        try:
            if way():
                return True
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
    return False


def called(number_x86: int, number_arm: int, *arguments: object) -> bool:
    """Whether the call was not refused by EPERM, EACCES or ENOSYS: then the kernel itself looked at it."""
    ctypes.set_errno(0)
    number = number_x86 if X86 else number_arm
    return LIBC.syscall(number, *arguments) >= 0 or ctypes.get_errno() not in (1, 13, 38)


@probe
def descriptors() -> list[str]:
    found = []
    for number in range(3, 256):
        try:
            os.fstat(number)
        except OSError:
            continue
        if number not in GIVEN["inherited"]:
            found.append(str(number))
    return found


@probe
def fs_read() -> bool:
    for name, target in (("l1", KEY), ("l2", "/proc/self/root" + KEY), ("l3", os.path.dirname(KEY))):
        try:
            os.symlink(target, name)
        except OSError:
            continue  # it may write nowhere; the other spellings are tried
    up = "/".join([".."] * 40)
    ways = [KEY, up + KEY, "/" + KEY, "l1", "l2", "l3/" + os.path.basename(KEY), "/proc/self/cwd/" + up + KEY]
    ways += ["/proc/self/root" + KEY, "/proc/1/root" + KEY, f"/proc/{HUB}/root{KEY}", f"/proc/{HUB}/cwd/{up}{KEY}"]
    ways += [f"/proc/thread-self/root{KEY}", f"/proc/{VICTIM}/root{KEY}", *GIVEN["other_names"]]
    return any_of([lambda path=path: shows_key(path) for path in ways])


@probe
def fs_workspace_of_another() -> bool:
    path = GIVEN["workspace"]
    return any_of([lambda: shows_key(path), lambda: bool(os.listdir(os.path.dirname(path)))])


@probe
def fs_hard_link() -> bool:
    return any_of([lambda: os.link(KEY, "hard") is None, lambda: os.rename(KEY, "moved") is None])


@probe
def fs_descriptors_of_others() -> bool:
    return any_of([lambda path=path: shows_key(path) for path in glob.glob("/proc/[0-9]*/fd/*")])


@probe
def fs_process_files() -> list[str]:
    names = ("environ", "mem", "maps", "auxv", "stack")
    return [
        f"{whose} {name}"
        for whose, pid in (("hub", HUB), ("other", VICTIM))
        for name in names
        if any_of([lambda path=f"/proc/{pid}/{name}": bool(open(path, "rb").read(1))])
    ]


@probe
def fs_devices() -> bool:
    names = [
        f"/dev/{name}" for name in ("mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "loop0", "fuse", "kvm")
    ]
    made = [lambda: os.mknod("disk", stat.S_IFBLK | 0o600, os.makedev(8, 0)) is None]
    return any_of([*(lambda path=path: os.close(os.open(path, os.O_RDONLY)) is None for path in names), *made])


@probe
def fs_write() -> list[str]:
    """Whether anything was planted, the test sees outside: a /tmp of one's own may have folders of the same name."""
    folder = os.path.dirname(KEY)
    for path in (f"{OUTSIDE}/planted", f"{folder}/planted"):
        any_of([lambda path=path: open(path, "w").close(), lambda path=path: os.mkdir(path + "-folder")])
    any_of([lambda: os.symlink("/", "link") is None and os.rename("link", f"{OUTSIDE}/renamed")])
    ways: dict[str, Callable[[], object]] = {
        "truncate": lambda: os.truncate(KEY, 0) is None,
        "unlink": lambda: os.unlink(KEY) is None,
        "usr": lambda: open("/usr/planted", "w").close() is None,
        "bin": lambda: open("/usr/bin/planted", "w").close() is None,
        "etc": lambda: open("/etc/planted", "w").close() is None,
        "oom": lambda: open(f"/proc/{HUB}/oom_score_adj", "w").write("1000") > 0,
        "core_pattern": lambda: open("/proc/sys/kernel/core_pattern", "w").close() is None,
        "uevent": lambda: open("/sys/kernel/uevent_helper", "w").close() is None,
    }
    return [name for name, way in ways.items() if any_of([way])]


@probe
def fs_change_by_path() -> bool:
    """What is changed is seen by the test: some sandboxes only pretend."""
    any_of(
        [
            lambda: os.chmod(KEY, 0o777),
            lambda: os.chown(KEY, os.getuid(), os.getgid()),
            lambda: os.utime(KEY, (1, 1)),
            lambda: os.setxattr(KEY, "user.x", b"x"),
            lambda: os.chmod(os.path.dirname(KEY), 0o777),
        ]
    )
    return False


@probe
def fs_watch() -> bool:
    descriptor = LIBC.inotify_init1(0)
    return descriptor >= 0 and LIBC.inotify_add_watch(descriptor, KEY.encode(), 0xFFF) >= 0


@probe
def fs_by_handle() -> bool:
    room = ctypes.create_string_buffer(256)
    ctypes.memmove(room, (128).to_bytes(4, sys.byteorder), 4)
    mount = ctypes.c_int()
    return called(303, 264, -100, b"/", room, ctypes.byref(mount), 0) or called(304, 265, -100, room, 0)


@probe
def mounts() -> bool:
    flags = 4096
    calls = [
        called(165, 40, OUTSIDE.encode(), b".", b"none", flags, None),
        called(166, 39, b"/", 2),
        called(155, 41, b".", b"."),
        called(161, 51, b"."),
        *(called(number, number, -100, b"/", 1, 0, 0) for number in (428, 429, 430, 431, 432, 433, 442)),
    ]
    return any(calls)


@probe
def namespaces() -> bool:
    kinds = (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x10020000)
    entered = any_of([lambda: LIBC.setns(os.open(f"/proc/{HUB}/ns/mnt", os.O_RDONLY), 0) == 0])
    cloned = LIBC.syscall(56 if X86 else 220, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if cloned == 0:
        os._exit(0)
    return any(LIBC.unshare(kind) == 0 for kind in kinds) or entered or cloned > 0


@probe
def privileges() -> bool:
    binaries = [shutil.which(name) for name in ("su", "mount", "passwd", "sudo", "newgrp")]
    shutil.copy("/bin/sh", "shell")
    any_of([lambda: os.chmod("shell", 0o6755)])
    ids = [subprocess.run(["./shell", "-p", "-c", "id -u"], capture_output=True, text=True, check=False).stdout.strip()]
    changed = any_of([lambda: os.setuid(0 if os.getuid() else 1) is None, lambda: os.setgroups([0, 27]) is None])
    may_gain = LIBC.prctl(39, 0, 0, 0, 0) != 1 and any(binaries)
    return may_gain or (os.getuid() != 0 and (changed or "0" in ids))


def connects(family: int, kind: int, address: object) -> bool:
    with socket.socket(family, kind) as made:
        made.settimeout(2)
        made.connect(address)
        return True


@probe
def tcp_ports() -> list[str]:
    """The hub's own are among them, by whose name (`grpc`, `mcp`, `metrics`) it is reported."""
    ways = {}
    for name, port in GIVEN["tcp"].items():
        ways[name] = [
            lambda port=port: connects(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", port)),
            lambda port=port: connects(socket.AF_INET6, socket.SOCK_STREAM, ("::ffff:127.0.0.1", port)),
        ]
    return [name for name, each in ways.items() if any_of(each)]


@probe
def udp() -> bool:
    """Whether anything arrives, the test sees."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.sendto(b"out", ("127.0.0.1", GIVEN["udp"]))
    return False


@probe
def unix_sockets_by_path() -> list[str]:
    """Of the hub, of a database, of a container's daemon, of a log: connected to, and sent to without a connection."""
    found = [
        path
        for path in GIVEN["streams"]
        if any_of(
            [
                lambda path=path: connects(socket.AF_UNIX, socket.SOCK_STREAM, path),
                lambda path=path: reconnected(socket.SOCK_STREAM, path),
                lambda path=path: reconnected(socket.SOCK_SEQPACKET, path),
            ]
        )
    ]
    found += [
        path
        for path in GIVEN["datagrams"]
        if any_of(
            [
                lambda path=path: connects(socket.AF_UNIX, socket.SOCK_DGRAM, path),
                lambda path=path: reconnected(socket.SOCK_DGRAM, path),
                lambda path=path: reconnected(socket.SOCK_RAW, path),
                lambda path=path: sent(path),
            ]
        )
    ]
    return [os.path.basename(path) for path in found]


def reconnected(kind: int, path: str) -> bool:
    """A pair of Unix sockets needs no address; is one of them connected to another than its twin?"""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with ours, theirs:
        ours.settimeout(2)
        ours.connect(path)
        return True


def sent(path: str) -> bool:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        return ours.sendto(b"", path) >= 0


@probe
def unix_sockets_by_abstract_name() -> list[str]:
    """The old D-Bus and X servers have such names."""
    return [
        name.rpartition("-")[2]
        for name in GIVEN["abstract"]
        if any_of([lambda name=name: connects(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + name)])
    ]


@probe
def socket_families() -> list[str]:
    """Those that no namespace confines, or that reach the kernel's insides."""
    kinds = {
        "AF_NETLINK": (16, socket.SOCK_RAW, 0),
        "AF_PACKET": (17, socket.SOCK_RAW, 3),
        "AF_RAW": (2, socket.SOCK_RAW, 1),
        "AF_KEY": (15, socket.SOCK_RAW, 2),
        "AF_RDS": (21, socket.SOCK_SEQPACKET, 0),
        "AF_CAN": (29, socket.SOCK_RAW, 1),
        "AF_TIPC": (30, socket.SOCK_STREAM, 0),
        "AF_BLUETOOTH": (31, socket.SOCK_RAW, 1),
        "AF_ALG": (38, socket.SOCK_SEQPACKET, 0),
        "AF_VSOCK": (40, socket.SOCK_STREAM, 0),
        "AF_XDP": (44, socket.SOCK_RAW, 0),
    }
    return [name for name, of in kinds.items() if any_of([lambda of=of: socket.socket(*of).close() is None])]


@probe
def interfaces() -> bool:
    """The machine's own, by name: loopback is in every namespace."""
    try:
        return {name for _, name in socket.if_nameindex()} > {"lo"}
    except OSError:
        return False


@probe
def tracing() -> bool:
    LIBC.ptrace.restype = ctypes.c_long
    room = ctypes.create_string_buffer(16)
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(room), 16)
    calls = [LIBC.ptrace(request, pid, None, None) >= 0 for pid in (HUB, VICTIM) for request in (16, 0x4206)]
    calls += [called(310, 270, pid, vector, 1, vector, 1, 0) for pid in (HUB, VICTIM)]
    calls += [called(311, 271, pid, vector, 1, vector, 1, 0) for pid in (HUB, VICTIM)]
    calls += [called(312, 272, os.getpid(), HUB, 0, 0, 0)]
    return any(calls)


@probe
def descriptors_of_processes() -> bool:
    def taken(pid: int) -> bool:
        held = os.pidfd_open(pid)
        return any(LIBC.syscall(438, held, number, 0) >= 0 for number in range(8))

    return any_of([lambda: taken(HUB), lambda: taken(VICTIM)])


@probe
def signals() -> bool:
    def queued() -> bool:
        return LIBC.sigqueue(VICTIM, signal.SIGCONT, None) == 0

    return any_of([lambda: os.kill(HUB, 0) is None, lambda: os.kill(VICTIM, 0) is None, queued])


@probe
def limits_of_others() -> bool:
    ways = [lambda pid=pid: bool(resource.prlimit(pid, resource.RLIMIT_NOFILE)) for pid in (HUB, VICTIM)]
    ways += [lambda pid=pid: os.setpriority(os.PRIO_PROCESS, pid, 19) is None for pid in (HUB, VICTIM)]
    ways += [lambda pid=pid: os.sched_setaffinity(pid, {0}) is None for pid in (HUB, VICTIM)]
    ways += [lambda pid=pid: os.sched_setscheduler(pid, 5, os.sched_param(0)) is None for pid in (HUB, VICTIM)]
    ways += [lambda: os.setpriority(os.PRIO_USER, 0, 19) is None]
    return any_of(ways)


@probe
def kernel_calls() -> list[str]:
    numbers = {"keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280)}
    numbers |= {"io_uring_setup": (425, 425), "perf_event_open": (298, 241), "userfaultfd": (323, 282)}
    numbers |= {"kexec_load": (246, 104), "init_module": (175, 105), "syslog": (103, 116), "reboot": (169, 142)}
    numbers |= {"swapon": (167, 224), "acct": (163, 89), "quotactl": (179, 60), "fanotify_init": (300, 262)}
    return [name for name, (x86, arm) in numbers.items() if called(x86, arm, 0, 0, 0, 0, 0)]


@probe
def clock_and_names() -> bool:
    now = time.clock_gettime(time.CLOCK_REALTIME)
    set_clock = any_of([lambda: time.clock_settime(time.CLOCK_REALTIME, now) is None])
    named = any_of([lambda: socket.sethostname(socket.gethostname()) is None])
    return set_clock or named or called(159, 171, ctypes.create_string_buffer(512))


@probe
def terminals() -> bool:
    import fcntl
    import termios

    def pushed(descriptor: int) -> bool:
        fcntl.ioctl(descriptor, termios.TIOCSTI, b"x")
        return True

    ways: list[Callable[[], object]] = [lambda: os.close(os.open("/dev/tty", os.O_RDWR)) is None]
    ways += [lambda: pushed(os.openpty()[0]), lambda: pushed(os.openpty()[1]), lambda: pushed(0)]
    return any_of(ways)


@probe
def shared_memory() -> bool:
    """That of others, which the test has made: of System V, and a file of POSIX."""
    return LIBC.shmget(GIVEN["segment_key"], 1, 0) >= 0 or any_of([lambda: shows_key(GIVEN["shared_file"])])


@probe
def environment() -> list[str]:
    leaked = ("LD_", "TOOLHUB")
    return [name for name, value in os.environ.items() if GIVEN["secret"] in value or name.startswith(leaked)]


@probe
def core_dump() -> bool:
    child = os.fork()
    if child == 0:
        os.abort()
    os.waitpid(child, 0)
    return bool(glob.glob("core*")) or resource.getrlimit(resource.RLIMIT_CORE)[1] != 0


@probe
def executable_memory_file() -> bool:
    """A program from memory is as confined as any other: it still reads nothing."""
    descriptor = os.memfd_create("x")
    with open("/bin/cat", "rb") as binary:
        os.write(descriptor, binary.read())
    os.set_inheritable(descriptor, True)
    child = (
        subprocess.run(
            [f"/proc/self/fd/{descriptor}", KEY], capture_output=True, close_fds=False, check=False, text=True
        )
        if os.path.exists("/proc/self/fd")
        else None
    )
    os.close(descriptor)
    return child is not None and CANARY in child.stdout


def leave_behind() -> None:
    """Processes that outlive the probe where nothing ends them: in the group, out of it, and with a timer."""
    for leaves in (False, True):
        child = os.fork()
        if child == 0:
            if leaves:
                try:
                    os.setsid()
                except OSError:
                    pass
                if os.fork():
                    os._exit(0)
            for signal_number in (signal.SIGHUP, signal.SIGTERM):
                signal.signal(signal_number, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 600)
            os.execv("/bin/sleep", ["/bin/sleep", GIVEN["marker"]])


def main() -> None:
    mmap.mmap(-1, 4096).close()
    escaped = {}
    only = GIVEN.get("only") or list(PROBES)
    for name in only:
        attempt = PROBES[name]
        try:
            found = attempt()
        except (OSError, ValueError, AttributeError, subprocess.SubprocessError):
            continue
        if found:
            escaped[name] = found
    if not GIVEN.get("only"):
        leave_behind()
    print(json.dumps({"tried": len(only), "escaped": escaped}), flush=True)
    if GIVEN.get("stays"):
        time.sleep(600)


main()
