"""How packages are added to the environment that the hub runs in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from toolhub_service.app import installation
from toolhub_service.app.installation import (
    DISTRIBUTION,
    EXTRAS,
    CannotInstallError,
    command_to_install,
    is_installed,
    requirements_of,
)

PYPROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


def test_every_extra_of_the_package_is_described_and_no_other() -> None:
    assert EXTRAS.keys() == PYPROJECT["optional-dependencies"].keys()
    assert PYPROJECT["name"] == DISTRIBUTION


def test_the_requirements_of_an_extra_are_those_of_the_package() -> None:
    for extra, stated in PYPROJECT["optional-dependencies"].items():
        assert len(requirements_of(extra)) == len(stated)


def test_a_requirement_counts_as_installed_with_its_own_extras_only() -> None:
    assert is_installed("click>=8.1")
    assert is_installed("pyjwt[crypto]>=2.10.1")
    assert not is_installed("a-package-of-nobody>=1")
    assert not is_installed("aiohttp[speedups]")
    assert not is_installed(">=1")


def test_the_environment_of_the_hub_gets_the_packages_by_its_own_pip() -> None:
    assert command_to_install(["trafilatura>=2.0"]) == [sys.executable, "-m", "pip", "install", "trafilatura>=2.0"]


def test_without_pip_uv_installs_into_the_environment_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name == "uv" else None)
    expected = ["/usr/bin/uv", "pip", "install", "--python", sys.executable, "mss>=10"]
    assert command_to_install(["mss>=10"]) == expected


def test_with_neither_pip_nor_uv_the_command_that_brings_pip_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(CannotInstallError, match="ensurepip"):
        command_to_install(["mss>=10"])


def test_an_environment_of_pipx_is_changed_by_pipx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pipx_metadata.json").write_text("{}")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert command_to_install(["mss>=10"]) == ["pipx", "inject", DISTRIBUTION, "mss>=10"]


def test_an_environment_of_uvx_is_not_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "uv" / "archive-v0" / "abc"))
    with pytest.raises(CannotInstallError, match="uvx --with 'mss>=10'"):
        command_to_install(["mss>=10"])


def test_the_python_of_the_operating_system_is_not_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "EXTERNALLY-MANAGED").write_text("[externally-managed]\n")
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    folders = {"stdlib": str(tmp_path), "purelib": sysconfig.get_path("purelib")}
    monkeypatch.setattr(sysconfig, "get_path", folders.__getitem__)
    with pytest.raises(CannotInstallError, match="PEP 668"):
        command_to_install(["mss>=10"])


def test_a_folder_of_packages_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CannotInstallError, match="cannot be written by this user"):
        command_to_install(["mss>=10"])


def test_a_hub_that_runs_from_a_folder_says_how_to_install_it(tmp_path: Path) -> None:
    """As with PYTHONPATH: the code is there, its metadata is not."""
    venv.create(tmp_path / "environment", symlinks=True)
    program = "from toolhub_service.app.installation import requirements_of; requirements_of('web')"
    source = Path(installation.__file__).parents[2]
    ended = subprocess.run(
        [tmp_path / "environment/bin/python", "-c", program],
        env={"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "is not installed: install that folder first" in ended.stderr
