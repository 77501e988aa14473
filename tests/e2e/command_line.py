"""A hub in a process of its own, and its command line in pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.command_server import forked, run
from tests.e2e.terminal import ROOT, CommandOutput, environment, in_terminal

_WAIT_S = 60


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command wrote into its pipes."""

    out: str
    err: str
    code: int

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A user with a home of their own, and a hub at `address` (empty: none)."""

    home: Path
    address: str = ""

    @property
    def data_dir(self) -> Path:
        return self.home / ".local/share/toolhub"

    @property
    def env(self) -> dict[str, str]:
        return environment(self.home, **({"TOOLHUB_ADDRESS": self.address} if self.address else {}))

    def __call__(self, *words: str, stdin: str = "", **env: str) -> CommandResult:
        """Run to the end, in pipes."""
        done = run(words, stdin=stdin, env={**self.env, **env}, cwd=self.home, timeout_s=_WAIT_S)
        assert "Traceback" not in done.stderr
        return CommandResult(done.stdout, done.stderr, done.returncode)

    def shown(self, *words: str, keys: bytes = b"", after: str = "", **env: str) -> CommandOutput:
        """Run to the end, in a terminal."""
        shown = in_terminal(["toolhub", *words], {**self.env, **env}, cwd=self.home, keys=keys, after=after)
        assert "Traceback" not in shown.text
        return shown

    def piped(self, line: str) -> CommandResult:
        """A line of bash; its exit code is that of its first command."""
        done = subprocess.run(
            ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
            env=self.env,
            timeout=_WAIT_S,
            check=False,
        )
        return CommandResult(done.stdout, done.stderr, done.returncode)


@contextmanager
def serving(home: Path, *options: str, **env: str) -> Iterator[CommandLine]:
    """`toolhub serve` on a free port until the block is left, then SIGTERM; it must end well."""
    home.mkdir(parents=True, exist_ok=True)
    words = ("serve", "--listen", "127.0.0.1:0", *options)
    env = environment(home, TOOLHUB_METRICS_LISTEN="127.0.0.1:0", TOOLHUB_POLICY_RELOAD_S="0.05", **env)
    with forked(words, env=env, cwd=ROOT) as hub:
        text = ""
        while "serving on " not in text:
            line = hub.stdout.readline()
            text += line
            assert line, f"ended before it served: {text}{hub.stderr()}"
        yield CommandLine(home, text.rpartition("serving on ")[2].strip())
        os.kill(hub.pid, signal.SIGTERM)
        assert hub.wait(_WAIT_S) == 0, hub.stderr()
