"""The wheel: everything that the hub needs is inside, and it serves from an environment without the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.processes import WITHIN_S
from toolhub_service import __version__

ROOT = Path(__file__).parents[3]
BUILT_WITHIN_S = 240.0
A_CALL = ("call", "core/fs.writeText", "path=a.txt", "text=x", "--json")
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, which has no history that a version could be read from."""
    folder = tmp_path_factory.mktemp("wheel")
    pack = ("-m", "hatchling", "build", "--target", "sdist", "--directory")
    run(sys.executable, *pack, str(folder), cwd=ROOT, within_s=BUILT_WITHIN_S)
    (source,) = folder.glob("*.tar.gz")
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir")
    run(sys.executable, *build, str(folder), str(source), cwd=folder, within_s=BUILT_WITHIN_S)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with the wheel. The packages that it needs are those of this one,
    put on the path so that the checkout, which is installed here, does not come with them."""
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", str(home), cwd=home)
    python = home / "bin" / "python"
    install = ("-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    run(sys.executable, *install, str(wheel), cwd=home)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "locked.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return home / "bin"


def run(
    *command: str, cwd: Path, env: Mapping[str, str] | None = None, given: str = "", within_s: float = WITHIN_S
) -> str:
    """What it prints. `given`: on its standard input."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("TOOLHUB_", "PYTHON", "VIRTUAL"))
    }
    env = {**clean, **(env or {})}
    done = subprocess.run(
        command, cwd=cwd, env=env, input=given, capture_output=True, text=True, timeout=within_s, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def hub_of(
    program: Sequence[str], folder: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[Callable[..., str]]:
    """A hub of the program serves on a socket in the folder, until the end; yields what runs a command of the program.

    `options`: of `serve`; the last of two wins."""
    settings = {"TOOLHUB_DATA_DIR": str(folder / "hub"), "HOME": str(folder), "TOOLHUB_METRICS_LISTEN": ""}
    settings |= {"TOOLHUB_SERVER_MCP_ENABLED": "false", "PATH": os.defpath, **(environment or {})}
    with (
        (folder / "hub.log").open("w") as log,
        subprocess.Popen(
            [*program, "serve", "--listen", f"unix:{folder}/hub.sock", *options],
            cwd=folder,
            env=settings,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as hub,
    ):
        try:
            assert hub.stdout is not None
            greeting = "".join(takewhile(lambda line: not line.startswith("Next"), hub.stdout))
            serving = re.search(r"is serving on (\S+)", greeting)
            assert serving, f"it did not serve\n{(folder / 'hub.log').read_text()}"
            asked = {**settings, "TOOLHUB_ADDRESS": serving[1]}
            yield lambda *command, given="": run(*program, *command, cwd=folder, env=asked, given=given)
        finally:
            hub.terminate()
        assert hub.wait(WITHIN_S) == 0


@pytest.mark.promise("packaging.wheel")
def test_the_wheel_holds_every_file_of_the_packages_and_nothing_of_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"tool_hub-{__version__}.dist-info/METADATA").decode()
        licence = archive.read(f"tool_hub-{__version__}.dist-info/licenses/LICENSE").decode()
    wanted = set()
    for package in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        folder = ROOT / package
        files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        wanted |= {str(path.relative_to(folder.parent)) for path in files}
    assert wanted <= names
    assert {"toolhub_service/py.typed", "toolhub/v1/tool_service_pb2.pyi"} <= names
    assert {name.partition("/")[0] for name in names - wanted} == {f"tool_hub-{__version__}.dist-info"}
    assert set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE)) == set(
        PYPROJECT["project"]["optional-dependencies"]
    )
    assert f"\nVersion: {__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert licence == (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("folder", ["clients/go", "clients/python", "clients/ts", "gen/go"])
def test_every_package_has_the_licence_of_the_repository(folder: str) -> None:
    """Each is published from its own folder, and a module of Go takes nothing from outside of it."""
    assert (ROOT / folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    stated = [(ROOT / folder / name) for name in ("pyproject.toml", "package.json") if (ROOT / folder / name).exists()]
    assert all("Apache-2.0" in path.read_text() for path in stated)


@pytest.mark.promise("packaging.wheel")
def test_an_installed_hub_serves_and_answers_a_call_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    for program in (
        ("toolhub",),
        ("tool-hub",),
        ("python", "-m", "toolhub_service"),
    ):  # `uvx tool-hub` wants the second
        version = run(str(installed / program[0]), *program[1:], "--version", cwd=tmp_path)
        assert version == f"toolhub, version {__version__}\n"
    where = (
        "import toolhub_service, toolhub.v1, toolhub_client; print(toolhub_service.__file__, toolhub_client.__file__)"
    )
    for file in run(str(installed / "python"), "-c", where, cwd=tmp_path).split():
        assert Path(file).is_relative_to(installed.parent), "the checkout is on the path"
    with hub_of([str(installed / "toolhub")], tmp_path) as command:
        assert '"ok": true' in command(*A_CALL)
