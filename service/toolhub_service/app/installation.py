"""How this hub's Python packages were installed, and so how the packages of an extra are added to them.

Extras are read from the metadata of the installed package, so the command works for a wheel, a checkout and an image
alike, and nothing has to be published under the hub's name.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "tool-hub"
"""The name of the Python package. It is not registered anywhere: messages and pages name a checkout, a wheel or
`toolhub extras install`. An owner who publishes it changes it here and in pyproject.toml."""

EXTRAS: Final[Mapping[str, str]] = {
    "betterproto": "the dataclass flavour of the client stubs; the hub never uses it",
    "browser": "core/web.screenshot; needs Chromium too",
    "comfyui": "progress of ComfyUI servers over WebSocket",
    "credentials": "callers' own credentials of sources, sealed",
    "db": "core/db.*: SQL databases",
    "desktop": "core/desktop.screenshot",
    "docket": "delivery of jobs to any replica, over Redis",
    "langchain": "LangChain tools",
    "mcp": "MCP servers as sources, and the hub as an MCP server",
    "media": "core/media.send: messages to channels",
    "oidc": "tokens of OpenID Connect and OAuth issuers (auth mode jwt)",
    "otlp": "traces and audit events over OTLP",
    "parquet": "results of core/db.query as Parquet",
    "postgres": "stores and audit log in PostgreSQL",
    "programs": "core/program.run, and skills that are programs",
    "redis": "stores in Redis",
    "s3": "artifacts and audit events in a bucket",
    "spiffe": "client certificates as identity (auth modes spiffe and xfcc)",
    "web": "core/web.fetch: the text of pages",
}
"""Each extra of pyproject.toml, and what it is for."""

_NAME_AND_EXTRAS: Final = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")


class CannotInstallError(Exception):
    """Packages cannot be added to this environment; the message says why, and what to do instead."""


def requirements_of(extra: str) -> list[str]:
    """What an extra asks for, such as `trafilatura>=2.0`, as the installed metadata states it.

    Raises CannotInstallError without metadata.
    """
    try:
        return list(_requirements_of(DISTRIBUTION, extra))
    except PackageNotFoundError:
        raise CannotInstallError(
            f"The hub runs from a folder in which {DISTRIBUTION} is not installed: install that folder first, with "
            "`python -m pip install FOLDER`."
        ) from None


def is_installed(requirement: str) -> bool:
    """Whether some version of the package is there, with its own extras; floors are the installer's business."""
    found = _NAME_AND_EXTRAS.match(requirement)
    if found is None:
        return False
    name, extras = found[1], (found[2] or "").split(",")
    try:
        distribution(name)
        return all(
            is_installed(each) for extra in filter(None, extras) for each in _requirements_of(name, extra.strip())
        )
    except PackageNotFoundError:
        return False


def _requirements_of(name: str, extra: str) -> Iterator[str]:
    """The requirements of a package's extra. Raises PackageNotFoundError."""
    of_extra = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    for stated in distribution(name).requires or ():
        wanted, _, marker = stated.partition(";")
        if of_extra.search(marker):
            yield wanted.strip()


def command_to_install(requirements: list[str]) -> list[str]:
    """The command line that adds packages to the environment that the hub runs in. Raises CannotInstallError."""
    prefix = Path(sys.prefix)
    if "archive-v0" in prefix.parts or "environments-v2" in prefix.parts:
        packages = " ".join(f"--with '{requirement}'" for requirement in requirements)
        raise CannotInstallError(
            f"uvx made this environment for one run: start the hub with `uvx {packages} …`, or install it for good "
            "with `uv tool install`."
        )
    is_shared = sys.prefix == sys.base_prefix
    if is_shared and (Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED").exists():
        raise CannotInstallError(
            "This Python belongs to the operating system, which installs its packages (PEP 668): install the hub into "
            "an environment of its own (`python3 -m venv FOLDER`), and run this there."
        )
    packages_folder = sysconfig.get_path("purelib")
    if not os.access(packages_folder, os.W_OK):
        raise CannotInstallError(
            f"{packages_folder} cannot be written by this user. Run this as its owner; for a container image, build "
            "one on top of it that runs this."
        )
    if (prefix / "pipx_metadata.json").exists() and shutil.which("pipx"):
        return ["pipx", "inject", DISTRIBUTION, *requirements]
    if find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", *requirements]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable, *requirements]
    raise CannotInstallError(
        f"This environment has neither pip nor uv. Run `{sys.executable} -m ensurepip`, then try again."
    )
