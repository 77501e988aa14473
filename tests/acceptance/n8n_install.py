"""`python -m tests.acceptance.n8n_install`: install n8n from npm, once; 2 GB and some minutes, then kept.

The folder is `TEST_N8N_FOLDER`, or `toolhub/n8n-<version>` in the user's cache. Two things stand in the way of a
plain `npm install n8n`: `xlsx` is fetched from a host of its own, so the version of the registry is taken instead; and
`sqlite3` is compiled where its binary cannot be downloaded, which needs the headers that come with Node.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.servers import Unavailable, program

VERSION: Final = "2.8.4"
"""The newest that runs on Node 20."""
OVERRIDES: Final = {"xlsx": "0.18.5"}
ADVICE: Final = "`make setup` brings a Node that fits, when none on the path does"
_REPORT_EVERY_S: Final = 15.0
_NUMBERS: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Install:
    """n8n as npm has put it there."""

    folder: Path
    node: str
    version: str

    @property
    def command(self) -> tuple[str, ...]:
        """The words that `start`, `import:workflow` and others are appended to."""
        return (self.node, str(self.folder / "node_modules" / "n8n" / "bin" / "n8n"))

    @property
    def is_complete(self) -> bool:
        stamp = self.folder / ".installed"
        return stamp.is_file() and stamp.read_text() == self.stamp

    @property
    def stamp(self) -> str:
        """What it is made from; another wish is another install."""
        return json.dumps({"n8n": self.version, "overrides": OVERRIDES})


def expected(version: str | None = None) -> Install:
    """Where n8n stands or would stand; by default the version of `TEST_N8N_VERSION`, else 2.8.4.

    Raises Unavailable without a Node.
    """
    version = version or os.environ.get("TEST_N8N_VERSION") or VERSION
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = os.environ.get("TEST_N8N_FOLDER") or cache / "toolhub" / f"n8n-{version}"
    return Install(Path(folder), program("node"), version)


def install(wanted: Install) -> None:
    """Does nothing where it is complete. Raises Unavailable with what to do."""
    if wanted.is_complete:
        return
    engines = _output_of(program("npm"), "view", f"n8n@{wanted.version}", "engines.node")
    check_node(_output_of(wanted.node, "--version"), engines)
    wanted.folder.mkdir(parents=True, exist_ok=True)
    package = {"name": "acceptance", "private": True, "dependencies": {"n8n": wanted.version}, "overrides": OVERRIDES}
    (wanted.folder / "package.json").write_text(json.dumps(package, indent=2))
    words = [program("npm"), "install", "--omit=optional", "--no-audit", "--no-fund", "--no-update-notifier"]
    _run_reporting(words, wanted.folder, {**os.environ, **node_headers(wanted.node)})
    (wanted.folder / ".installed").write_text(wanted.stamp)


def check_node(version: str, engines: str) -> None:
    """Refuses a Node that n8n's own `engines`, such as `>=20.19 <= 24.x`, leave out. Raises Unavailable."""
    has = _numbers(version)
    for operator, bound in re.findall(r"(>=|<=|<|>)\s*v?([\dx.]+)", engines):
        limit = _numbers(bound)
        mine = has[: len(limit)]
        if not {">=": mine >= limit, "<=": mine <= limit, ">": mine > limit, "<": mine < limit}[operator]:
            raise Unavailable(f"n8n needs Node {engines}, and node is {version}: {ADVICE}")


def node_headers(node: str) -> Mapping[str, str]:
    """What points node-gyp to the headers beside this Node; without it they are downloaded."""
    prefix = Path(node).resolve().parent.parent
    return {"npm_config_nodedir": str(prefix)} if (prefix / "include" / "node" / "node_api.h").is_file() else {}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBERS.findall(version)))


def _output_of(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(words[1:])}: {_last_line(done.stderr)}")
    return done.stdout.strip()


def _run_reporting(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
    """Run npm, with a line now and then of how far it is; what it says goes into install.log."""
    log, began = folder / "install.log", time.monotonic()
    with log.open("w") as kept:
        process = subprocess.Popen(words, cwd=folder, env=env, stdout=kept, stderr=subprocess.STDOUT)
        while True:
            try:
                process.wait(_REPORT_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                seconds, packages = time.monotonic() - began, sum(1 for _ in folder.glob("node_modules/*"))
                print(f"n8n: npm is at work for {seconds:.0f} s, {packages} folders in node_modules", flush=True)
    if process.returncode != 0:
        raise Unavailable(f"npm: {_last_line(log.read_text())} (all of it in {log})")
    print(f"n8n: installed in {time.monotonic() - began:.0f} s", flush=True)


def _last_line(text: str) -> str:
    errors = [line for line in text.splitlines() if "error" in line.lower()]
    return (errors or text.splitlines() or ["it said nothing"])[0].strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", help=f"instead of {VERSION}")
    try:
        wanted = expected(parser.parse_args().version)
        install(wanted)
    except Unavailable as unavailable:
        print(f"n8n: {unavailable}", file=sys.stderr)
        return 1
    print(f"n8n {wanted.version}: {wanted.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
