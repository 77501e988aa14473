"""What a program that is held must not reach: made by a test, given to `escape_probes.py` by name."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

HUB: Final = """
import time
from toolhub_service.sandbox.kernel_walls import hide_memory
hide_memory()
print("hidden", flush=True)
time.sleep(600)
"""
"""A process that hides as a hub does."""
SECRET: Final = "s3cret-of-the-hub"
PORTS: Final = ("grpc", "mcp", "metrics", "database")
STREAMS: Final = ("hub.sock", ".s.PGSQL.5432", "docker.sock", "system_bus_socket", "agent.sock")
"""Unix sockets that anybody on the machine may connect to, as far as their modes say."""


@dataclass(slots=True)
class ForbiddenResources:
    """What a confined program must not reach: made by the test, given to the probes by name."""

    key: Path
    outside: Path
    silent: tuple[socket.socket, ...]
    """Datagram sockets, to which nothing may have been sent."""
    given: dict[str, Any]

    def untouched(self) -> None:
        status = self.key.stat()
        assert (status.st_mode & 0o777, status.st_uid, self.key.read_text()) == (0o600, os.geteuid(), "c4nary")
        assert status.st_mtime > 1_000
        assert os.listxattr(self.key) == []
        assert self.key.parent.stat().st_mode & 0o777 == 0o700
        assert {path.name for path in self.key.parent.iterdir()} <= {"audit.key", "workspaces"}
        assert list(self.outside.iterdir()) == []
        for each in self.silent:
            with pytest.raises(BlockingIOError):
                each.recv(99)


@contextmanager
def surroundings(folder: Path, user: int) -> Iterator[ForbiddenResources]:
    hub, outside = folder / "hub", folder / "outside"
    hub.mkdir(mode=0o700)
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    key = hub / "audit.key"
    key.write_text("c4nary")
    key.chmod(0o600)
    workspace = hub / "workspaces" / "another" / "notes.txt"
    workspace.parent.mkdir(parents=True, mode=0o700)
    workspace.write_text("c4nary")
    name, libc = f"toolhub-{os.getpid()}-{id(folder)}", ctypes.CDLL(None)
    segment_key = id(folder) & 0x7FFFFFFF
    segment = libc.shmget(segment_key, 4096, 0o1666)
    shared = Path("/dev/shm", name)
    shared.write_text("c4nary")
    shared.chmod(0o666)
    with ExitStack() as stack:
        stack.callback(shared.unlink)
        stack.callback(libc.shmctl, segment, 0, None)
        made = {port: listening(stack, socket.AF_INET, ("127.0.0.1", 0)) for port in PORTS}
        abstract = (f"{name}-dbus", f"{name}-X0")
        for each in abstract:
            listening(stack, socket.AF_UNIX, f"\0{each}")
        streams = [str(folder / each) for each in STREAMS]
        for path in streams:
            listening(stack, socket.AF_UNIX, path)
        udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        log = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        log.bind(str(folder / "log"))
        for each in (*streams, str(folder / "log")):
            Path(each).chmod(0o777)
        for silent in (udp, log):
            silent.setblocking(False)
        as_user: dict[str, Any] = {"user": user, "group": user, "extra_groups": ()} if user != os.geteuid() else {}
        victim = stack.enter_context(subprocess.Popen(["/bin/sleep", "600"], **as_user))
        stack.callback(victim.kill)
        hub_process = stack.enter_context(subprocess.Popen([sys.executable, "-c", HUB], stdout=subprocess.PIPE))
        stack.callback(hub_process.kill)
        assert hub_process.stdout is not None
        hub_process.stdout.readline()
        given = {
            "key": str(key),
            "outside": str(outside),
            "workspace": str(workspace),
            "hub": hub_process.pid,
            "victim": victim.pid,
            "abstract": abstract,
            "tcp": {port: each.getsockname()[1] for port, each in made.items()},
            "udp": udp.getsockname()[1],
            "streams": streams,
            "datagrams": [str(folder / "log")],
            "secret": SECRET,
            "segment_key": segment_key,
            "shared_file": str(shared),
            "marker": f"600.{id(folder)}",
            "inherited": (),
            "other_names": (),
        }
        yield ForbiddenResources(key, outside, (udp, log), given)


def listening(stack: ExitStack, family: int, address: object) -> socket.socket:
    made = stack.enter_context(socket.socket(family))
    made.bind(address)  # type: ignore[arg-type]
    made.listen()
    return made


def of_marker(marker: str) -> list[int]:
    """Processes that were left behind."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if marker.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def open_the_way(folder: Path) -> None:
    """To other users: what they do not reach is what the sandbox keeps from them."""
    for place in (folder, *folder.parents[:2]) if os.geteuid() == 0 else ():
        place.chmod(0o711)
