"""A Redis of one's own: an append-only file keeps what was answered, so that a killed server has it again."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.free_port import free_port
from tests.services.programs import REDIS, need
from tests.services.server_process import ServerProcess


class RedisServer:
    """On one port and one folder for life. Killing loses nothing: the file is written before the answer is sent."""

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        """Raises Unavailable when there is no program."""
        self.folder = folder
        self.port = port or free_port()
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "databases": "16",
            "maxmemory-policy": "noeviction",
        }
        command = [str(need(REDIS) / "redis-server")]
        for name, value in options.items():
            command += (f"--{name}", value)
        self._process = ServerProcess(command, folder)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        self._process.start()

    def stop(self) -> None:
        """In an orderly way."""
        self._process.stop()

    def kill(self) -> None:
        self._process.stop(signal.SIGKILL)

    def restart(self) -> None:
        """Killed and back on the same port with the same data."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Connections stay and are accepted, and nothing is answered, until `thaw`."""
        self._process.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send(signal.SIGCONT)
