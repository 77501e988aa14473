"""The Python client as a package of its own: built, installed, and run without anything of the server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from email import message_from_string
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "clients/python"
NAME = re.compile(r"[A-Za-z0-9._-]+")
BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
# Imports everything but what an extra is for, with every module of other packages out of reach.
RUN = """
import sys
from importlib.abc import MetaPathFinder

class Others(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FORBIDDEN:
            raise ModuleNotFoundError(f"{name} belongs to another package", name=name)

FORBIDDEN = set(sys.argv[2].split(","))
sys.path[:0] = [sys.argv[1]]
sys.meta_path.insert(0, Others())
import toolhub_client
assert toolhub_client.__file__.startswith(sys.argv[1]), toolhub_client.__file__
assert toolhub_client.channel.client_version() != "0"
print(*sorted(toolhub_client.__all__))
"""


def closure(names: Iterable[str]) -> set[str]:
    """The distributions and all that they need, as far as they are installed; names normalised (PEP 503)."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = normalised(waiting.pop())
        if name not in found:
            found.add(name)
            with suppress(PackageNotFoundError):
                needs = distribution(name).requires or ()
                waiting += [NAME.match(line)[0] for line in needs if "extra ==" not in line]  # type: ignore[index]
    return found


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.timeout(180)
@pytest.mark.promise("clients.packages")
def test_installed_wheel_runs_with_nothing_but_what_it_declares(tmp_path: Path) -> None:
    built = subprocess.run(
        (sys.executable, "-c", BUILD, str(tmp_path)), cwd=PACKAGE, check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    installed = tmp_path / "installed"
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(installed))
    subprocess.run((*pip, str(tmp_path / built)), check=True, capture_output=True)
    metadata = message_from_string(next(installed.glob("*.dist-info/METADATA")).read_text())
    needs = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    allowed = closure(NAME.match(line)[0] for line in needs)  # type: ignore[index]  # each begins with a name
    others = {
        module
        for module, owners in packages_distributions().items()
        if not {normalised(owner) for owner in owners} & allowed and module not in {"buf", "toolhub", "toolhub_client"}
    }
    assert {"httpx", "orjson", "structlog"} <= others
    forbidden = ",".join(sorted(others | {"toolhub_service"}))
    ran = subprocess.run(
        (sys.executable, "-c", RUN, str(installed), forbidden),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert {"connect", "connect_sync", "HubUnavailable"} <= set(ran.stdout.split())
