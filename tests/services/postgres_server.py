"""A PostgreSQL of its own: a fresh cluster on loopback that trusts every connection, fast rather than durable."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.command_failures import failure_reason
from tests.free_port import free_port
from tests.services.programs import POSTGRES, Unavailable, need
from tests.services.server_process import ServerProcess, rootless, unprivileged

_SUPERUSER = "postgres"
_FAST = ("fsync=off", "full_page_writes=off", "max_connections=200", "shared_buffers=64MB", "unix_socket_directories=")
# A process of the server that waits for a client to authenticate outlives a killed server for this long, by default a
# minute, and holds up its restart: a test that restarts the server lets no client speak meanwhile.
_PROMPT = ("authentication_timeout=3s",)


class PostgresServer:
    """On one port and one cluster for life. Killing loses nothing as long as the machine itself goes on."""

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        """`folder` is empty and reachable for other users. Raises Unavailable when there is no program."""
        programs = need(POSTGRES)
        self.port = port or free_port()
        self._initdb = str(programs / "initdb")
        self._cluster = folder / "cluster"
        command = [str(programs / "postgres"), "-D", str(self._cluster), "-h", "127.0.0.1", "-p", str(self.port)]
        for setting in (*_FAST, *_PROMPT):
            command += ("-c", setting)
        self._process = ServerProcess(command, folder, environment={"LC_ALL": "C", "TZ": "UTC"}, rootless=True)

    @property
    def url(self) -> str:
        return f"postgresql://{_SUPERUSER}@127.0.0.1:{self.port}/postgres"

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        if not self._cluster.exists():
            self._create_cluster()
        self._process.start()

    def stop(self) -> None:
        """In an orderly way, ending the sessions that are open (a fast shutdown)."""
        self._process.stop(signal.SIGINT)

    def kill(self) -> None:
        """As a crash of all its processes, for those of the sessions end with their parent."""
        self._process.stop(signal.SIGQUIT)

    def restart(self) -> None:
        """Killed and back on the same port with the same data."""
        self.kill()
        self.start()

    def _create_cluster(self) -> None:
        self._cluster.mkdir(mode=0o700)
        if os.geteuid() == 0:
            account = unprivileged()
            shutil.chown(self._cluster, account.pw_uid, account.pw_gid)
        command = (self._initdb, "-D", str(self._cluster), "-A", "trust", "-U", _SUPERUSER)
        done = subprocess.run(
            rootless((*command, "-E", "UTF8", "--locale=C", "--no-sync")),
            check=False,
            cwd=self._cluster.parent,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            shutil.rmtree(self._cluster, ignore_errors=True)
            raise Unavailable(f"initdb failed: {failure_reason(done.stdout + done.stderr, done.returncode)}")
