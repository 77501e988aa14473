"""The wheel with each of its extras, installed from the registry into an empty environment, answers a call.

At the locked versions; run by `make acceptance-packages`. Some hundred megabytes are downloaded, once: uv keeps them.
"""

from __future__ import annotations

import re
import sys
from itertools import combinations
from pathlib import Path

import pytest

from tests.acceptance.extras import ALSO, TRIALS, ExtraEnvironment
from tests.unit.deploy.test_package import A_CALL, PYPROJECT, ROOT, hub_of, run, wheel
from toolhub_service import __version__

__all__ = ["wheel"]
_INSTALL_S = 500.0


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked versions as constraints: pip wants hashes of all or of none, and a wheel of our own has none."""
    file = tmp_path_factory.mktemp("locked") / "constraints.txt"
    pins = re.findall(
        r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", (ROOT / ".ci/toolchain/dev.txt").read_text(), re.MULTILINE
    )
    file.write_text("".join(f"{name}=={version}\n" for name, version in pins))
    return file


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("uv")
    run(sys.executable, "-m", "venv", str(home), cwd=home, within_s=_INSTALL_S)
    run(str(home / "bin/python"), "-m", "pip", "install", "--quiet", "uv", cwd=home, within_s=_INSTALL_S)
    return str(home / "bin/uv")


def test_every_extra_is_tried() -> None:
    assert set(TRIALS) == set(PYPROJECT["project"]["optional-dependencies"])


def test_the_wheel_is_installed_by_pip_alone_and_serves(wheel: Path, locked: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    run(sys.executable, "-m", "venv", str(home), cwd=tmp_path, within_s=_INSTALL_S)
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", str(locked))
    run(str(home / "bin/python"), *install, str(wheel), cwd=tmp_path, within_s=_INSTALL_S)
    run(str(home / "bin/python"), "-m", "pip", "check", cwd=tmp_path)
    with hub_of([str(home / "bin/toolhub")], tmp_path) as command:
        assert '"ok": true' in command(*A_CALL)


@pytest.mark.parametrize("extra", TRIALS)
async def test_the_wheel_with_an_extra_answers_a_call_that_needs_it(
    extra: str, wheel: Path, locked: Path, uv: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The trial of each extra (tests/acceptance/extras.py) asserts what its call answers."""
    home = tmp_path / "environment"
    run(uv, "venv", "--quiet", "--python", sys.executable, str(home), cwd=tmp_path)
    target = ("--python", str(home / "bin/python"))
    wanted = f"{wheel}[{ALSO.get(extra, '')}{extra}]"
    run(
        uv, "pip", "install", "--quiet", *target, "--constraint", str(locked), wanted, cwd=tmp_path, within_s=_INSTALL_S
    )
    run(uv, "pip", "check", *target, cwd=tmp_path)
    await TRIALS[extra](ExtraEnvironment(home / "bin", tmp_path, request))


def test_the_pip_of_python_resolves_all_extras_of_the_checkout_at_once(tmp_path: Path) -> None:
    """The pip that came with this Python, without a list of pins: pip 23.2 ended with an AssertionError."""
    home = tmp_path / "environment"
    run(sys.executable, "-m", "venv", str(home), cwd=tmp_path, within_s=_INSTALL_S)
    extras = ",".join(PYPROJECT["project"]["optional-dependencies"])
    resolve = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run", f"{ROOT}[{extras}]")
    run(str(home / "bin/python"), *resolve, cwd=tmp_path, within_s=_INSTALL_S)


def test_every_pair_of_extras_resolves(uv: str, tmp_path: Path) -> None:
    for pair in combinations(PYPROJECT["project"]["optional-dependencies"], 2):
        extras = [f"--extra={extra}" for extra in pair]
        compile_ = (uv, "pip", "compile", "--quiet", "--no-header", *extras, str(ROOT / "pyproject.toml"))
        assert run(*compile_, cwd=tmp_path, within_s=_INSTALL_S), pair


def test_an_installed_hub_adds_the_packages_of_an_extra(wheel: Path, locked: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    run(sys.executable, "-m", "venv", str(home), cwd=tmp_path, within_s=_INSTALL_S)
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", str(locked))
    run(str(home / "bin/python"), *install, str(wheel), cwd=tmp_path, within_s=_INSTALL_S)
    toolhub = str(home / "bin/toolhub")
    before = run(toolhub, "extras", "list", cwd=tmp_path)
    assert re.search(r"^desktop +no ", before, re.MULTILINE)
    said = run(toolhub, "extras", "install", "desktop", cwd=tmp_path, within_s=_INSTALL_S)
    assert said.endswith("Installed: desktop. Restart a hub that is running.\n")
    assert re.search(r"^desktop +yes ", run(toolhub, "extras", "list", cwd=tmp_path), re.MULTILINE)


def test_uvx_starts_the_wheel_by_the_name_of_its_package(wheel: Path, locked: Path, uv: str, tmp_path: Path) -> None:
    """As `uvx --from WHEEL toolhub serve`, by the other name of the program."""
    program = [
        uv,
        "tool",
        "run",
        "--python",
        sys.executable,
        "--from",
        str(wheel),
        "--constraints",
        str(locked),
        "tool-hub",
    ]
    assert run(*program, "--version", cwd=tmp_path, within_s=_INSTALL_S) == f"toolhub, version {__version__}\n"
    # Taken from what the first run has fetched: the hub's environment knows neither the registry nor its CAs.
    fetched = {"UV_CACHE_DIR": run(uv, "cache", "dir", cwd=tmp_path).strip(), "UV_OFFLINE": "1"}
    with hub_of(program, tmp_path, environment=fetched) as command:
        assert '"ok": true' in command(*A_CALL)
